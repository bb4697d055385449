"""Detects changed source files, for `--reload` during development."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fennelq import clock, log

_logger = log.get("fennelq.supervisor")

LOOK_EVERY = 0.5
_SHARE = 10
"""The pause after a look is this many times as long as the look, so that a large project does not keep a core busy."""
_PRUNED = {"venv", "node_modules", "__pycache__", "site-packages"}
_VIRTUALENV = {"pyvenv.cfg", "conda-meta"}
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class SourceWatch:
    """The Python files of a project, as they were at the last look.

    It skips hidden folders, virtual environments of any name, and `node_modules`. Links to folders are not followed,
    because they may form a cycle; modules that were imported through one are watched nevertheless.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._known = self.look()

    async def changed(self) -> set[Path]:
        """Waits for a change; returns the files that are new, gone or different."""
        pause = LOOK_EVERY
        while True:
            await asyncio.sleep(pause)
            began = clock.monotonic()
            try:
                now = await asyncio.to_thread(self.look)
            except (OSError, RuntimeError) as error:
                # Out of descriptors or threads. Files that could not be read must not count as deleted.
                _logger.warning("sources_not_read", error=str(error))
                continue
            pause = max(LOOK_EVERY, _SHARE * (clock.monotonic() - began))
            if different := {path for path, _ in now.items() ^ self._known.items()}:
                self._known = now
                return set(map(Path, different))

    def look(self) -> dict[str, int]:
        """When each file was modified last, in nanoseconds."""
        pruned: list[str] = []
        found = {path: stamp for path in self._walk(pruned) if (stamp := _stamp(path)) is not None}
        for path in self._imported():
            if (
                path not in found
                and not path.startswith(tuple(pruned))
                and (stamp := _stamp(path)) is not None
            ):
                found[path] = stamp
        return found

    def _walk(self, pruned: list[str]) -> Iterator[str]:
        """The paths of Python files; adds the skipped folders to `pruned`."""
        for folder, inner, files in os.walk(self._root, onerror=_raise_if_out_of_resources):
            if folder != self._root and not _VIRTUALENV.isdisjoint((*files, *inner)):
                pruned.append(folder + os.sep)
                inner.clear()
                continue
            skipped = [name for name in inner if name.startswith(".") or name in _PRUNED]
            pruned.extend(f"{folder}{os.sep}{name}{os.sep}" for name in skipped)
            inner[:] = (name for name in inner if name not in skipped)
            yield from (f"{folder}{os.sep}{file}" for file in files if file.endswith(".py"))

    def _imported(self) -> Iterator[str]:
        inside = self._root.rstrip(os.sep) + os.sep
        for module in list(sys.modules.values()):
            file: object = getattr(module, "__file__", None)
            if isinstance(file, str) and file.startswith(inside) and file.endswith(".py"):
                yield file


def _raise_if_out_of_resources(error: OSError) -> None:
    """A folder that was deleted or may not be read counts as empty. A folder that cannot be opened because descriptors
    are used up does not: its files would look deleted."""
    if error.errno in _OUT_OF_RESOURCES:
        raise error


def _stamp(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a Path per file would double the cost of a look
    except OSError:
        return None
