"""Where a message of the Redis protocol ends: enough of RESP2 and RESP3 to separate replies."""

from __future__ import annotations

BULKS = b"$=!"
LISTS = b"*~>"


class Framer:
    """Cuts a stream of bytes, fed in pieces of any size, into whole messages (requests or replies)."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._owed = 1  # elements still missing from the message that begins the buffer

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that became complete with this piece."""
        self._buffer += data
        messages: list[bytes] = []
        while self._step():
            if self._owed == 0:
                messages.append(self._cut())
        return messages

    def _step(self) -> bool:
        """Move past one element; False when it is not complete yet."""
        line_end = self._buffer.find(b"\r\n", self._position)
        if line_end < 0:
            return False
        kind = self._buffer[self._position]
        end, owed = line_end + 2, -1
        if kind in BULKS:
            length = self._count(line_end)
            end += length + 2 if length >= 0 else 0
        elif kind in LISTS:
            owed += max(self._count(line_end), 0)
        elif kind == ord("%"):
            owed += 2 * self._count(line_end)
        elif kind == ord("|"):  # attributes come before the element they describe
            owed = 2 * self._count(line_end)
        if end > len(self._buffer):
            return False
        self._position, self._owed = end, self._owed + owed
        return True

    def _count(self, line_end: int) -> int:
        return int(self._buffer[self._position + 1 : line_end])

    def _cut(self) -> bytes:
        message = bytes(self._buffer[: self._position])
        del self._buffer[: self._position]
        self._position, self._owed = 0, 1
        return message


def words(request: bytes) -> tuple[bytes, ...]:
    """A request's command and arguments."""
    if not request.startswith(b"*"):
        return tuple(request.split())  # an inline command
    position, found = request.index(b"\r\n") + 2, list[bytes]()
    while position < len(request):
        line_end = request.index(b"\r\n", position)
        length = int(request[position + 1 : line_end])
        found.append(request[line_end + 2 : line_end + 2 + length])
        position = line_end + 2 + length + 2
    return tuple(found)


def is_push(reply: bytes) -> bool:
    """Whether the server sent this unasked (RESP3)."""
    return reply.startswith(b">")
