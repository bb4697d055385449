"""Makes an address from a URL: the place of the server, and the first commands of a connection."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from fennelq.broker.verb import Word
from fennelq.errors import ConfigurationError

SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class Address:
    """The place of a server, and the first commands of a connection. It is not a tuple, because a tuple would show the
    password in its repr and when it is written as JSON."""

    shown: str
    """The URL as it may be logged."""
    host: str
    port: int
    path: str
    """The path of a unix socket: then host and port are not used."""
    greeting: tuple[tuple[Word, ...], ...] = field(repr=False)
    """Not in the repr, because it contains the password."""
    tls: ssl.SSLContext | None = None
    private: bool = False
    """Whether fennelq itself has started this server, for one project."""


def masked(url: str) -> str:
    """The URL with its password hidden: the only form that fennelq shows.

    It splits the text and does not parse the URL. A password with characters that should have been escaped makes the
    URL invalid, and the error about this URL must not show the password either.
    """
    scheme, separator, rest = url.partition("://")
    credentials, at, where = rest.rpartition("@")
    if at and ":" in (credentials.partition("/")[0] if scheme == "unix" else credentials):
        rest = f"{credentials.partition(':')[0]}:***@{where}"
    return re.sub(r"([?&]password=)[^&]*", r"\1***", f"{scheme}{separator}{rest}")


def address_of(url: str) -> Address:
    """The address of a URL; raises ConfigurationError, whose text hides the password, when the URL is not valid."""
    shown = masked(url)
    if url.partition("://")[0] not in SCHEMES:
        raise ConfigurationError(
            f"redis_url {shown!r} is not understood: use redis://, rediss://, unix:// or embedded://"
        )
    try:
        _refuse_stray_at(url)
        parts = _parts(url)
        return Address(
            shown,
            parts.get("host", "localhost"),
            int(parts.get("port", 6379)),
            parts.get("path", ""),
            tuple(_greeting(parts)),
            _tls(parts) if url.startswith("rediss") else None,
        )
    except ValueError:
        # Do not include the text of the error: it quotes a part of the URL, which may be a part of the password.
        raise ConfigurationError(
            f"redis_url {shown!r} is not understood: write redis://user:password@host:port/db, "
            "with every special character of the password percent-escaped"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"redis_url {shown!r} is not understood: {error}") from None


def _refuse_stray_at(url: str) -> None:
    """Raises ConfigurationError for an @ after the host: it is a part of a password that was not escaped. The parser
    would take the wrong host."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ValueError


def _parts(url: str) -> dict[str, str]:
    """The parts of a URL, and the parameters behind its question mark, without escapes.

    `redis.connection.parse_url` would do it, but importing redis takes a third of the start of a command.
    """
    split = urlsplit(url)
    parts = {name: values[0] for name, values in parse_qs(split.query).items()}
    path = unquote(split.path)
    found = {
        "username": unquote(split.username or ""),
        "password": unquote(split.password or ""),
        "path": path if split.scheme == "unix" else "",
        "host": unquote(split.hostname or ""),
        "port": str(split.port or ""),
        # The number may stand in either place; the parameter comes first.
        "db": parts.get("db", "") or ("" if split.scheme == "unix" else path.strip("/")),
    }
    return parts | {name: value for name, value in found.items() if value}


def _greeting(parts: Mapping[str, str]) -> Sequence[tuple[Word, ...]]:
    words: list[tuple[Word, ...]] = []
    if parts.get("password"):
        user = (parts["username"],) if parts.get("username") else ()
        words.append(("AUTH", *user, parts["password"]))
    if number := int(parts.get("db", 0)):
        words.append(("SELECT", number))
    return words


def _tls(parts: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=parts.get("ssl_ca_certs"), capath=parts.get("ssl_ca_path"))
    if parts.get("ssl_check_hostname", "true").lower() in ("false", "0", "no", "f", "n"):
        context.check_hostname = False
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if parts.get("ssl_certfile"):
        context.load_cert_chain(parts["ssl_certfile"], parts.get("ssl_keyfile"))
    return context
