"""Mooncake's engine, by handfast. Names that handfast does not have, such as RPC classes, are those of Mooncake's
own module, where it is installed and can be loaded."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

from handfast.mooncake import *  # noqa: F403
from handfast.mooncake import __all__  # noqa: F401
from handfast.mooncake import __getattr__ as _refuse

_theirs: ModuleType | None = None


def _their_engine() -> ModuleType:
    """Load Mooncake's module, which lies behind this one on the package's path."""
    global _theirs
    if _theirs is None:
        behind = sys.modules[__package__].__path__[1:]
        spec = importlib.machinery.PathFinder.find_spec(__name__, behind)
        if spec is None or spec.loader is None:
            raise ImportError("Mooncake's own package is not installed")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        # Not before: a module whose import failed has a part of its names, and the next use tries again.
        _theirs = module
    return _theirs


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(_their_engine(), name)
    except (ImportError, AttributeError) as error:
        try:
            _refuse(name)
        except AttributeError as refusal:
            raise AttributeError(f"{refusal} ({error})") from None
