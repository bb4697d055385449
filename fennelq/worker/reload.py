"""Notices that source files have changed, for `--reload` during development."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

_LOOK_EVERY = 0.5
_SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", ".fennelq", "site-packages"}


class SourceWatch:
    """The Python files of a project, as they were when last looked at."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = self._look()

    async def changed(self) -> set[Path]:
        """Waits for a change; answers the files that are new, gone or different."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = await asyncio.to_thread(self._look)
            if different := {
                path for path in now.keys() | self._known.keys() if now.get(path) != self._known.get(path)
            }:
                self._known = now
                return different

    def _look(self) -> dict[Path, int]:
        return {path: stamp for path in self._files() if (stamp := _stamp(path)) is not None}

    def _files(self) -> set[Path]:
        loaded = {
            Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
        }
        inside = {path for path in loaded if path.suffix == ".py" and self._root in path.parents}
        found = (path for path in self._root.rglob("*.py"))
        return {path for path in (*inside, *found) if not _SKIPPED & set(path.parts)}


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
