"""The ways to sign in. Each is a function of the request that returns the user, or None when the request names none.

Any other function, also `async def`, can take their place: `dashboard(app, auth=user_of_my_session)`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from starlette.requests import HTTPConnection

from fennelq.errors import ConfigurationError
from fennelq.web.passwords import Tokens, UsersFile, is_password, unknown
from fennelq.web.users import RIGHTS, User

Auth = Callable[[HTTPConnection], "User | Awaitable[User | None] | None"]
"""Returns the user of a request; None when it names none. Raises Refused when it names a wrong one."""

BASIC: Final = 'Basic realm="fennelq", charset="UTF-8"'
_MOST_VERIFIED: Final = 1000
_AT_ONCE: Final = 4
_LONGEST: Final = 1024
"""Characters of a password: a longer one is none."""


class Refused(Exception):
    """A request names a user, and the password or the token is wrong."""


class Basic:
    """User names and passwords in a file: `Basic("users")`. `fennelq web user NAME --users users` writes it."""

    challenge = BASIC

    def __init__(self, users_file: str | Path) -> None:
        self._file = UsersFile(users_file)
        self._file.users()
        self._secret = os.urandom(32)
        self._verified: dict[bytes, None] = {}
        """Passwords that were right. Only keyed hashes of them are kept, and only in memory: a browser sends its
        password with every request, and scrypt takes 50 ms."""
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, request: HTTPConnection) -> User | None:
        """The user whose name and password the request has."""
        given = basic_of(request)
        if given is None:
            return None
        name, password = given
        known = self._file.checked().get(name)
        hashed = known.hash if known else unknown()
        if not await self._is_password(password, hashed) or known is None:
            raise Refused(name)
        return known.user

    async def _is_password(self, password: str, hashed: str) -> bool:
        mark = hmac.digest(self._secret, f"{hashed}\n{password}".encode("utf-8", "surrogatepass"), "sha256")
        if mark in self._verified:
            return True
        async with self._turn:  # each attempt takes 16 MiB
            right = await asyncio.to_thread(is_password, password, hashed)
        if right:
            while len(self._verified) >= _MOST_VERIFIED:
                self._verified.pop(next(iter(self._verified)))
            self._verified[mark] = None
        return right


class Token:
    """Tokens in a file: programs send `Authorization: Bearer …`, and people type theirs as a password."""

    challenge = BASIC
    guessable = False
    """A token has 256 bits. So its user is let in although others have sent wrong ones from the same address, which may
    be that of a proxy."""

    def __init__(self, tokens_file: str | Path) -> None:
        self._tokens = Tokens(tokens_file)

    def __call__(self, request: HTTPConnection) -> User | None:
        """The user of the token that the request has."""
        token = token_of(request)
        if token is None:
            return None
        found = self._tokens.user_of(token)
        if found is None:
            raise Refused("token")
        return found


class Proxy:
    """A proxy that has signed the user in, and names the user in a header:
    `Proxy("X-Forwarded-User", trusted=["10.0.0.0/8"])`. The header is ignored unless the request comes from one of
    these networks. The proxy must replace the header if its client sends one."""

    challenge: str | None = None

    def __init__(
        self,
        header: str = "X-Forwarded-User",
        *,
        trusted: Iterable[str],
        may: Collection[str] | Callable[[str], Collection[str]] = RIGHTS,
    ) -> None:
        """`may` has the rights of every user, or is a function of the name that returns them."""
        self._header, self._may = header, may
        self._trusted = [_network(text) for text in ([trusted] if isinstance(trusted, str) else trusted)]
        if not self._trusted:
            raise ConfigurationError("Proxy trusts no network: write trusted=['10.0.0.0/8']")

    def __call__(self, request: HTTPConnection) -> User | None:
        """The user whom the proxy names."""
        names = request.headers.getlist(self._header)
        if not names or not is_of(request.client.host if request.client else "", self._trusted):
            return None
        if len(names) > 1 or not names[0].strip():
            raise Refused("proxy")
        name = names[0].strip()
        try:
            return User(name, self._may(name) if callable(self._may) else self._may)
        except ConfigurationError:
            raise Refused(name) from None


def basic_of(request: HTTPConnection) -> tuple[str, str] | None:
    """The name and the password of a request; None when it has none."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except ValueError:
        raise Refused("unreadable") from None
    if not colon or len(password) > _LONGEST:
        raise Refused(name)
    return name, password


def token_of(request: HTTPConnection) -> str | None:
    """The token of a request; None when it has none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    given = basic_of(request)
    return None if given is None else given[1]


def is_ambient(request: HTTPConnection) -> bool:
    """Whether a browser may send this request, with its credentials, on behalf of another site. It adds no token by
    itself."""
    return request.headers.get("Authorization", "").partition(" ")[0].lower() != "bearer"


def is_of(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether an address is in one of these networks."""
    try:
        one = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    one = getattr(one, "ipv4_mapped", None) or one
    return any(one in network for network in networks if network.version == one.version)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"{text!r:.100} is not a network: write 10.0.0.0/8, 127.0.0.1 or fd00::/8"
        ) from None
