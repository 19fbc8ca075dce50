"""Mooncake's engine, by handfast."""

from handfast.mooncake import *  # noqa: F403
from handfast.mooncake import __all__, __getattr__  # noqa: F401
