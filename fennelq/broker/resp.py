"""Code of both links: the parser and packer of Redis's protocol, and the detection of other protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from fennelq.broker.connection import Address
from fennelq.broker.trouble import LinkDown, ReplyError, WrongServer
from fennelq.broker.verb import Word

CONNECT_TIMEOUT = 5.0
PROBE_TIMEOUT = 1.0
REFUSED_WITHIN = 0.1
"""Seconds to listen before the greeting when the last connection was closed without a reply. A server that refuses a
connection sends the reason and closes the connection. A greeting that arrives after that makes the kernel discard the
reason before it can be read."""
SHOWN = 40
PING = b"PING\r\n"
TLS_HELLO = (
    b"\x16\x03\x01\x0a\x00\x01\x00\x09\xfc\x03\x03"
    + bytes(32)
    + b"\x00\x00\x0c\xc0\x2b\xc0\x2f\xc0\x2c\xc0\x30\x00\x9c\x00\x2f\x01\x00\x09\xc7\x00\x15\x09\xc3"
    + bytes(0x9C3)
)
"""The first message of a TLS client: a TLS server replies with its own, or with an alert. Its length is chosen so that
one byte of the length field is a line break, before the first zero byte. A Redis without TLS therefore reads the first
bytes as an unknown command."""
NOT_YET = object()
"""The parser returns this while a reply is incomplete."""

ProtocolError = hiredis.ProtocolError

# The type stubs of hiredis declare a tuple of one word, and no type for the result.
_pack: Callable[[tuple[Word, ...]], bytes] = cast("Any", hiredis).pack_command


def packed(words: Sequence[Word]) -> bytes:
    """The bytes of a command."""
    # Numbers become texts here and not in hiredis: a handler of a signal may run there and raise an exception, such as
    # KeyboardInterrupt, for which hiredis 3.5 does not look, and the process would crash.
    return _pack(tuple([str(word) if isinstance(word, int) else word for word in words]))


def parser() -> tuple[Callable[[bytes], Any], Callable[[], Any]]:
    """A new parser: how to feed it bytes, and how to get the next reply, or NOT_YET."""
    reader = hiredis.Reader(replyError=ReplyError, notEnoughData=NOT_YET)
    return reader.feed, reader.gets


def unreadable(data: bytes, *, replied: bool) -> LinkDown:
    """The error for bytes that are not a reply. `replied`: the server has replied on this connection before."""
    return LinkDown("the server sent bytes that are not a reply") if replied else WrongServer(data[:SHOWN])


def tls_could_help(address: Address) -> bool:
    """Whether the URL names a host without TLS."""
    return address.tls is None and not address.path


def is_tls(reply: bytes) -> bool:
    """Whether it begins with a handshake or an alert of TLS."""
    return reply[:2] in (b"\x16\x03", b"\x15\x03")
