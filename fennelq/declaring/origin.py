"""Finds the module in which an App is made: it names the service that the App belongs to."""

from __future__ import annotations

from types import FrameType

from fennelq.declaration import main_module

_MAIN = ("__main__", "__mp_main__")


def module_of(caller: FrameType) -> str:
    """The module that was being imported, or run, when `caller` made an App.

    It is not the module of the caller itself, because services may share a function that makes their apps. A module
    that runs as `__main__` gets the name by which it would be imported, so that `python tasks.py` and a worker agree.
    """
    frame: FrameType | None = caller
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or not (frame is caller or _is_of_service(frame)):
        frame = caller
    name = str(frame.f_globals.get("__name__") or "__main__")
    return (main_module() if name in _MAIN else name).removesuffix(".__main__")


def _is_of_service(module: FrameType) -> bool:
    """Whether this module is being imported, or is a script. Programs like pytest or uvicorn are neither: an app that
    is made while they run belongs to the module that makes it."""
    name = str(module.f_globals.get("__name__"))
    if name in _MAIN:
        is_script = str(module.f_globals.get("__file__") or "").endswith(".py")
        return is_script and not main_module().endswith(".__main__")
    return bool(getattr(module.f_globals.get("__spec__"), "_initializing", False))
