"""The frames that an executor and a cell exchange: a mark, two lengths, a header as JSON, and bytes.

The bytes are arguments or a result as the codec wrote them. Nothing is pickled, so a cell that runs hostile or broken
code cannot make its executor run any of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

_PREFIX: Final = struct.Struct("!HII")
_MARK: Final = 0xFE11
LEAVING: Final = "leaving"
"""The kind of a frame: the task has ended, and its providers are about to end."""
PROGRESS: Final = "progress"
"""The kind of a frame: how far the job has come."""
CLOSED: Final = 76
"""The exit code of a cell that cannot send the end of a job, because its task has closed the connection."""
CHUNK: Final = 1 << 18
"""Bytes that one read asks for."""


class Frame(NamedTuple):
    """A header, and the bytes that belong to it."""

    head: Mapping[str, Any]
    body: bytes = b""


class Damaged(Exception):
    """The bytes are not frames: other code has written into the connection."""


def packed(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    """A frame as bytes."""
    header = orjson.dumps(head)
    return b"".join((_PREFIX.pack(_MARK, len(header), len(body)), header, body))


class Reader:
    """Makes frames of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._at = 0
        """Where the next frame begins."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with these bytes. Raises Damaged."""
        self._read += data
        try:
            while (frame := self._next()) is not None:
                yield frame
        finally:
            # Once for all frames: a task that logs a lot sends a thousand at a time.
            del self._read[: self._at]
            self._at = 0

    def _next(self) -> Frame | None:
        head_at = self._at + _PREFIX.size
        if len(self._read) < head_at:
            return None
        mark, header, body = _PREFIX.unpack_from(self._read, self._at)
        if mark != _MARK:
            raise Damaged(f"a frame begins with {mark:#x}")
        body_at = head_at + header
        end = body_at + body
        if len(self._read) < end:
            return None
        whole = memoryview(self._read)
        frame = Frame(_header(whole[head_at:body_at]), bytes(whole[body_at:end]))
        self._at = end
        return frame


def _header(raw: memoryview) -> Mapping[str, Any]:
    try:
        head: object = orjson.loads(raw)
    except ValueError as error:
        raise Damaged(f"the header of a frame is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise Damaged("the header of a frame is not an object")
    return head  # pyright: ignore[reportUnknownVariableType]
