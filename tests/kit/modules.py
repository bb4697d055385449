"""The modules that a test has imported from a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def forgotten(folder: Path) -> Generator[None]:
    """Modules that are imported from this folder within are forgotten afterwards, and so are changes of the path.

    Other modules stay. An extension in C, such as psycopg's, would raise the errors of its first import when it is
    imported again.
    """
    path = list(sys.path)
    try:
        yield
    finally:
        for name, module in [*sys.modules.items()]:
            if _is_in(folder, module):
                del sys.modules[name]
        sys.path[:] = path


def _is_in(folder: Path, module: ModuleType) -> bool:
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(Path(place).is_relative_to(folder) for place in places if place)
