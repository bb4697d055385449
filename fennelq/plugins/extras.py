"""Imports the library that a plugin needs, when an app uses the plugin."""

from __future__ import annotations

from importlib import import_module

from fennelq.errors import ConfigurationError


def require(plugin: str, module: str, extra: str) -> None:
    """Import this module; raises ConfigurationError, which names the extra, when it is not installed."""
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"the plugin {plugin} needs a package that is not installed ({error}): pip install 'fennelq[{extra}]'"
        ) from error
