"""A problem between this process and Redis, as a sentence with its cause and its cure.

The asynchronous and the synchronous API, the command line and the worker all use this table.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fennelq.broker.connection import Address
from fennelq.broker.trouble import NoReply, ReplyError, WrongServer, classify, tls_reason
from fennelq.errors import BrokerUnavailable
from fennelq.streams import clean

_URL = "redis_url (FENNELQ_REDIS_URL)"
_OLDEST = (7, 0)
_MOST = 200
_UPGRADE = "Use Redis 7.0, Valkey 7.2 or a later version."


class Diagnosis(NamedTuple):
    """The problem with the Redis at `url`, in a sentence."""

    url: str
    """Without the password."""
    reason: str
    """The end of a sentence that begins with "Redis at <url>"."""
    cure: str
    retriable: bool = True
    """Whether waiting may help. Otherwise the configuration is wrong."""

    @property
    def sentence(self) -> str:
        """The problem, its cause and its cure in one sentence or two."""
        return str(self.error())

    def error(self, jobs: Sequence[Any] = ()) -> BrokerUnavailable:
        """The same as an exception."""
        return BrokerUnavailable(self.reason, jobs, url=self.url, cure=self.cure, retriable=self.retriable)


def diagnose(address: Address, error: BaseException) -> Diagnosis:
    """The cause of this error at this address, and its cure."""
    # The reply of a replica to one call ends the connection, and with it the other calls.
    reply = error if isinstance(error, ReplyError) else error.__cause__
    if isinstance(reply, ReplyError):
        reason, cure = _of_reply(reply)
    else:
        reason, cure = _of_connection(address, error)
    retriable = classify(error).passes
    return Diagnosis(address.shown, reason, cure, retriable)


def outdated(address: Address, server: Mapping[str, str]) -> Diagnosis | None:
    """The problem with a server that is too old for fennelq, by its INFO; None when it is not too old."""
    found = re.match(r"(\d+)\.(\d+)", server.get("redis_version", ""))
    if found is None or (int(found[1]), int(found[2])) >= _OLDEST:
        return None
    return Diagnosis(address.shown, _TOO_OLD, _UPGRADE, retriable=False)


# Errors that the server replied with

_TOO_OLD: Final = "is too old for fennelq"
_WORDS: Final = {
    "NOAUTH": (
        "requires a password, and redis_url contains none (NOAUTH)",
        f"Write it into {_URL}: redis://user:password@host:port/0.",
    ),
    "WRONGPASS": (
        "does not accept the user name or the password of redis_url (WRONGPASS)",
        f"Correct them in {_URL}, with every special character percent-escaped.",
    ),
    "NOPERM": (
        "does not permit a command or a key that fennelq needs ({text})",
        "Grant it to the user of redis_url with ACL SETUSER.",
    ),
    "DENIED": (
        "accepts connections from its own machine only (DENIED, protected mode)",
        "Set a password on the server (`requirepass`) and in redis_url.",
    ),
    "OOM": (
        "has no memory left for writes (OOM)",
        "Raise `maxmemory` on the server, or delete data that is not needed.",
    ),
    "MISCONF": (
        "cannot save its data to disk and refuses writes (MISCONF)",
        "Check the free space and the permissions of its data directory; its log names the error.",
    ),
    "NOREPLICAS": (
        "has too few replicas connected and refuses writes (NOREPLICAS)",
        "Check the replicas, or lower `min-replicas-to-write` on the server.",
    ),
    "BUSY": (
        "is busy with a script that runs for long (BUSY)",
        "Wait until the script has ended, or end it with SCRIPT KILL.",
    ),
    "READONLY": (
        "is a replica and refuses writes (READONLY)",
        f"If no failover is under way, correct {_URL}: it must lead to the primary.",
    ),
    "MASTERDOWN": (
        "is a replica that has lost its primary (MASTERDOWN)",
        f"Check the primary; {_URL} must lead to it.",
    ),
    "LOADING": (
        "is loading its data from disk (LOADING)",
        "It replies when it has finished: wait, and watch its log.",
    ),
    "WRONGTYPE": (
        "has a key of a wrong type ({text})",
        "`fennelq queue list` and `fennelq info` name such a key of a queue: rename or delete it.",
    ),
    "TRYAGAIN": ("is a cluster that is being rearranged (TRYAGAIN)", "Try again when that has ended."),
    "CLUSTERDOWN": ("is a cluster that is down (CLUSTERDOWN)", "Check it with `redis-cli --cluster check`."),
}
_UNKNOWN_COMMAND: Final = (
    "does not know a command that fennelq needs ({text})",
    f"{_UPGRADE} A Sentinel, or a server with renamed commands, cannot be used.",
)
_NO_DATABASE: Final = (
    "has no database with the number in redis_url",
    f"Use a smaller number in {_URL}, or raise `databases` on the server.",
)
_NO_PASSWORD_SET: Final = (
    "has no password, and redis_url contains one",
    f"Remove it from {_URL}, or set a password on the server (`requirepass`).",
)
_ERRORS: Final = (
    (
        "max number of clients",
        (
            "has no room for another client (max number of clients reached)",
            "Close connections that are not needed, or raise `maxclients` on the server.",
        ),
    ),
    ("DB index", _NO_DATABASE),
    ("SELECT is not allowed", _NO_DATABASE),
    ("without any password configured", _NO_PASSWORD_SET),
    ("no password is set", _NO_PASSWORD_SET),
    ("Error compiling script", (_TOO_OLD, _UPGRADE)),
    ("nknown command", _UNKNOWN_COMMAND),
    ("Unknown Redis command", _UNKNOWN_COMMAND),
)
"""Parts of errors whose first word does not name the cause."""


def _of_reply(error: ReplyError) -> tuple[str, str]:
    word = "READONLY" if "instance state changed" in str(error) else error.word
    found = _WORDS.get(word) or next((row for part, row in _ERRORS if part in str(error)), None)
    reason, cure = found or ("replied with an error ({text})", "Look into the log of the server.")
    return reason.replace("{text}", clean(str(error)[:_MOST])), cure


# Errors of the connection

_ELSEWHERE: Final = f"Correct the host and the port in {_URL}."
_START: Final = f"Is it running? Start it, or correct {_URL}."
_PRIVATE: Final = (
    "It is the private server of this project: its server.log has the reason. Start this program again."
)
_NO_ROUTE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_CLIENT_CERTIFICATE: Final = "?ssl_certfile=/path/cert.pem&ssl_keyfile=/path/key.pem"


def _of_connection(address: Address, error: BaseException) -> tuple[str, str]:
    reason, cure = next(explain(address, error) for fits, explain in _CAUSES if fits(error))
    return f"cannot be reached: {clean(reason)}", cure


def _has_number(*numbers: int) -> Callable[[BaseException], bool]:
    return lambda error: _number(error) in numbers


def _number(error: BaseException) -> int | None:
    """The errno. For a host name with several addresses, asyncio raises one error whose text names each errno."""
    if not isinstance(error, OSError):
        return None
    each = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    return error.errno or (each.pop() if len(each) == 1 else None)


def _is_late(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)


def _is(*kinds: type[BaseException]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, kinds)


def _wrong_server(address: Address, error: BaseException) -> tuple[str, str]:
    begins = getattr(error, "begins", b"")
    if address.tls is not None:
        return _plain(address, error)
    if not begins or begins.startswith(b"\x15\x03"):
        return "the server there expects TLS", f"Change redis:// to rediss:// in {_URL}."
    if begins.startswith(b"HTTP/") or begins.lstrip().startswith(b"<"):
        return "an HTTP server listens there, not Redis", _ELSEWHERE
    shown = begins.split(b"\n")[0].decode("ascii", "replace").strip()
    return f"another kind of server listens there, its reply begins with {shown!r}", _ELSEWHERE


def _certificate(_: Address, error: BaseException) -> tuple[str, str]:
    why = getattr(error, "verify_message", "") or "certificate verify failed"
    return (
        f"its TLS certificate cannot be verified ({why.rstrip('.')})",
        f"Add ?ssl_ca_certs=/path/ca.pem to {_URL}, and use a host name that the certificate contains.",
    )


def _client_certificate(_: Address, __: BaseException) -> tuple[str, str]:
    return "the server requires a client certificate", f"Add {_CLIENT_CERTIFICATE} to {_URL}."


def _plain(_: Address, __: BaseException) -> tuple[str, str]:
    return (
        "the server there does not use TLS",
        f"Change rediss:// to redis:// in {_URL}, or correct its port.",
    )


def _other_tls(_: Address, error: BaseException) -> tuple[str, str]:
    reason = tls_reason(error).replace("_", " ").lower()
    return f"the TLS handshake failed ({reason})", f"Compare the TLS settings of the server with {_URL}."


def _no_host(_: Address, __: BaseException) -> tuple[str, str]:
    return "its host name cannot be resolved", f"Check the host in {_URL}, and the DNS of this machine."


def _no_socket(address: Address, __: BaseException) -> tuple[str, str]:
    cure = f"Start Redis with `unixsocket` set to this path, or correct {_URL}."
    return "the socket file does not exist", _PRIVATE if address.private else cure


def _not_allowed(_: Address, __: BaseException) -> tuple[str, str]:
    return "permission denied", "A socket file needs write permission for this user (`unixsocketperm`)."


def _refused(address: Address, __: BaseException) -> tuple[str, str]:
    return "connection refused", _PRIVATE if address.private else _START


def _no_route(_: Address, __: BaseException) -> tuple[str, str]:
    return "no route to the host", f"Check the host in {_URL}, and the network of this machine."


def _silent(_: Address, __: BaseException) -> tuple[str, str]:
    return (
        "it did not reply in time",
        f"Check the host and the port in {_URL}, the firewall, and whether the server is overloaded.",
    )


def _no_reply(address: Address, __: BaseException) -> tuple[str, str]:
    proxy = "If a proxy listens there, check the server behind it"
    if address.tls is not None:
        return (
            "the connection was closed before the first reply",
            f"{proxy}; a server that requires a client certificate needs {_CLIENT_CERTIFICATE} in {_URL}.",
        )
    return "the connection was closed before the first reply", f"{proxy}, or correct {_URL}."


def _closed(_: Address, __: BaseException) -> tuple[str, str]:
    return "the connection was closed", "Was it restarted? Its log has the reason."


def _other(_: Address, error: BaseException) -> tuple[str, str]:
    number = _number(error)
    text = os.strerror(number) if number is not None else str(error)[:_MOST]
    return text or type(error).__name__, f"Check {_URL}, and the log of the server."


_Explain = Callable[[Address, BaseException], tuple[str, str]]
_CAUSES: Final[Sequence[tuple[Callable[[BaseException], bool], _Explain]]] = (
    (_is(WrongServer), _wrong_server),
    (_is(ssl.SSLCertVerificationError), _certificate),
    (lambda error: "CERTIFICATE_REQUIRED" in tls_reason(error), _client_certificate),
    (lambda error: bool(tls_reason(error)) and not classify(error).passes, _plain),
    (_is(NoReply), _no_reply),
    (lambda error: bool(tls_reason(error)), _other_tls),
    (_is(socket.gaierror), _no_host),
    (_has_number(errno.ENOENT), _no_socket),
    (_has_number(errno.EACCES, errno.EPERM), _not_allowed),
    (_has_number(errno.ECONNREFUSED), _refused),
    (_has_number(*_NO_ROUTE), _no_route),
    (_is_late, _silent),
    (_is(ConnectionError, EOFError), _closed),
    (lambda _: True, _other),
)
"""The first entry that fits explains the error."""
