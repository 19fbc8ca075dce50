"""Mooncake's package with handfast's engine: every other module is Mooncake's own, if installed."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
