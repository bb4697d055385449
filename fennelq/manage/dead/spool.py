"""Keeps many values in order, for work that must know of a problem before it begins. Beyond a few megabytes they are in
a temporary file without a name, and not in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import Any, Final

import orjson

from fennelq.errors import FennelqError

IN_MEMORY: Final = 8 << 20
"""The bytes that are kept in memory."""


class Spool:
    """Lists of JSON values, which can be read any number of times."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile[bytes](max_size=IN_MEMORY)
        self._end = 0
        self.count = 0

    def __del__(self) -> None:
        with suppress(Exception):  # also when the constructor could not make the file
            self._file.close()

    def add(self, *values: Any) -> None:
        """Add a list at the end. Raises FennelqError when the temporary file cannot be written."""
        line = orjson.dumps(values) + b"\n"
        try:
            self._file.seek(self._end)
            self._file.write(line)
        except OSError as error:
            raise FennelqError(
                f"a temporary file cannot be written: {error.strerror}. Set TMPDIR to a folder that has room"
            ) from error
        self._end += len(line)
        self.count += 1

    def __iter__(self) -> Iterator[list[Any]]:
        at = 0
        while at < self._end:
            # Another reader, or `add`, may have moved the position of the file.
            self._file.seek(at)
            line = self._file.readline()
            at = self._file.tell()
            yield orjson.loads(line)
