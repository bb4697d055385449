"""Where an App is made, which names the service it belongs to."""

from __future__ import annotations

from types import FrameType

from fennelq.declaration import main_module

_MAIN = ("__main__", "__mp_main__")


def module_of(caller: FrameType) -> str:
    """The module that was being imported, or run, when `caller` made an App.

    Not the module of the caller itself: services may share a function that makes their apps. A module that runs as
    `__main__` has the name it would be imported by, so that `python tasks.py` and a worker agree.
    """
    frame: FrameType | None = caller
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or not (frame is caller or _is_of_service(frame)):
        frame = caller
    name = str(frame.f_globals.get("__name__") or "__main__")
    return (main_module() if name in _MAIN else name).removesuffix(".__main__")


def _is_of_service(module: FrameType) -> bool:
    """Whether this is a module that is being imported, or a script. Programs like pytest or uvicorn are neither: apps
    that are made while they run belong to the module that makes them."""
    name = str(module.f_globals.get("__name__"))
    if name in _MAIN:
        is_script = str(module.f_globals.get("__file__") or "").endswith(".py")
        return is_script and not main_module().endswith(".__main__")
    return bool(getattr(module.f_globals.get("__spec__"), "_initializing", False))
