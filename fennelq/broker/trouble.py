"""The kinds of errors of a server or a connection, and the remedy for each: one table for all code that retries."""

from __future__ import annotations

import ssl
from enum import Enum
from typing import Final


class ReplyError(Exception):
    """An error reply of the server; `word` is the first word of its text, by which it is classified."""

    def __init__(self, text: str) -> None:
        self.word = text.partition(" ")[0].lstrip("-")
        super().__init__(text)


class LinkDown(ConnectionError):
    """The connection is gone; commands without a reply may or may not have been executed."""


class NoReply(LinkDown):
    """The server closed the connection before its first reply. Possible causes are a restart, a proxy without a
    server behind it, and a server that expects TLS or another protocol."""


class WrongServer(LinkDown):
    """The server at this address uses another protocol than the URL names. `begins` has the first bytes of its reply;
    it is empty when the server expects TLS and the URL does not."""

    def __init__(self, begins: bytes = b"") -> None:
        self.begins = begins
        super().__init__("the server does not speak the protocol of the URL")


class Trouble(Enum):
    """Kinds of errors, by their remedy."""

    FATAL = "the configuration is wrong: waiting does not help"
    CONNECTION = "no answer: reconnect and try again; whether the call was executed is unknown"
    ROLE = "this server may not write now: reconnect, look for the primary"
    CAPACITY = "memory, disk or clients are exhausted: wait; nothing was written"
    GROUP = "a stream or its group is gone: make it again and go on"
    SCRIPT = "the server has forgotten the script: send its source"
    BUG = "the call itself is wrong: repeating it does not help"

    @property
    def passes(self) -> bool:
        """Whether waiting and trying again may help."""
        return self in (Trouble.CONNECTION, Trouble.ROLE, Trouble.CAPACITY)


_BY_WORD: Final = {
    "NOGROUP": Trouble.GROUP,
    "NOSCRIPT": Trouble.SCRIPT,
    "MISCONF": Trouble.CAPACITY,
    "OOM": Trouble.CAPACITY,
    "NOREPLICAS": Trouble.CAPACITY,
    "BUSY": Trouble.CAPACITY,
    "READONLY": Trouble.ROLE,
    "MASTERDOWN": Trouble.ROLE,
    "LOADING": Trouble.CONNECTION,
    "TRYAGAIN": Trouble.CONNECTION,
    "CLUSTERDOWN": Trouble.CONNECTION,
    "NOAUTH": Trouble.FATAL,
    "WRONGPASS": Trouble.FATAL,
    "NOPERM": Trouble.FATAL,
    "DENIED": Trouble.FATAL,
}


_NO_ROOM: Final = "max number of clients"
_MISCONFIGURED: Final = (
    "DB index is out of range",
    "invalid DB index",
    "SELECT is not allowed in cluster mode",
    "without any password configured",
    "no password is set",
    "unknown command",
    "Unknown Redis command",
    "Error compiling script",
)
"""Parts of errors of the configuration whose first word is only ERR."""
_TLS_MISCONFIGURED: Final = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "CERTIFICATE_VERIFY_FAILED",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
)


def refuses_to_publish(error: ReplyError) -> bool:
    """Whether the server refuses only subscriptions: the user lacks permission, or the server has too many clients.

    Other errors, such as a wrong password or a server that is loading, concern every command.
    """
    return error.word == "NOPERM" or classify(error) in (Trouble.CAPACITY, Trouble.BUG)


def lacks_permission(error: BaseException) -> bool:
    """Whether the user of Redis may not do this: the error is the server's reply, or was caused by it."""
    reply = error if isinstance(error, ReplyError) else error.__cause__
    return isinstance(reply, ReplyError) and reply.word == "NOPERM"


def refuses_connection(error: ReplyError) -> bool:
    """Whether the server closes the connection after this reply."""
    return error.word == "DENIED" or _NO_ROOM in str(error)


def classify(error: BaseException) -> Trouble:
    """The kind of an error."""
    if isinstance(error, ReplyError):
        return _of_reply(error)
    if isinstance(error, WrongServer) or tls_reason(error) in _TLS_MISCONFIGURED:
        return Trouble.FATAL
    return Trouble.CONNECTION if isinstance(error, OSError | EOFError) else Trouble.BUG


def tls_reason(error: BaseException) -> str:
    """OpenSSL's name for this error, or for the one that caused it; empty when it is not about TLS."""
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    return (
        str(getattr(cause, "reason", None) or type(cause).__name__) if isinstance(cause, ssl.SSLError) else ""
    )


def _of_reply(error: ReplyError) -> Trouble:
    text = str(error)
    if error.word == "ERR":
        if _NO_ROOM in text:
            return Trouble.CAPACITY
        if any(part in text for part in _MISCONFIGURED):
            return Trouble.FATAL
    return _BY_WORD.get(error.word, Trouble.BUG)
