"""What every request passes before a page gets it: its host, its origin, its user and the right of the user."""

from __future__ import annotations

import inspect
import math
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request

from fennelq.web.auth import Auth, Refused, is_ambient, is_of
from fennelq.web.failures import Failures
from fennelq.web.loopback import LOCAL_NAMES
from fennelq.web.passwords import SignInUnavailable
from fennelq.web.table import PUBLIC
from fennelq.web.users import MEANINGS, User

LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer`, browsers would send `Origin: null` with forms. Over plain HTTP, forms have no Sec-Fetch-Site.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
THREE_WAYS: Final = (
    "pass auth=Basic(users_file), auth=Token(tokens_file) or "
    "auth=Proxy('X-Forwarded-User', trusted=['10.0.0.0/8'])"
)


class Rejected(Exception):
    """A request does not pass."""

    def __init__(self, status: int, title: str, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class Gate:
    """Who may pass."""

    auth: Auth | None
    """None: this machine only."""
    hosts: Collection[str] = ()
    """Names of this server besides `localhost`, the name of the machine and all IP addresses; `*.example.com` is a
    pattern."""
    read_only: bool = False
    failures: Failures = field(default_factory=Failures)
    local: User = field(default_factory=lambda: User("local"))
    """The user without `auth`."""

    def check_site(self, request: HTTPConnection, method: str) -> None:
        """Raises Rejected when the request names another host, or comes from a page of another site."""
        self.check_host(request)
        if method not in ("GET", "HEAD") and not is_same_site(request, request.headers.get("host", "")):
            raise Rejected(
                403,
                "Refused",
                "This request comes from another site, so nothing was done. Programs send a token instead of a "
                "password.",
            )

    def check_host(self, request: HTTPConnection) -> None:
        """Raises Rejected when the request names another host."""
        host = request.headers.get("host", "")
        if not self._is_known(host):
            raise Rejected(
                403,
                "Unknown host",
                f"This dashboard does not know the host {host!r:.200}. If it is the right one, add it: "
                "hosts=['jobs.example.com'] in the code, or --host-name jobs.example.com on the command line.",
            )

    async def user_of(self, request: Request, right: str) -> User:
        """The user, who has this right. Raises Rejected otherwise."""
        user = await self._signed_in(request)
        if right != PUBLIC and not user.can(right):
            raise Rejected(403, "Not allowed", f"{user.name} may not {MEANINGS[right]}.")
        return user

    async def _signed_in(self, request: Request) -> User:
        if self.auth is None:
            self._check_local(request)
            user: User | None = self.local
        else:
            user = await self._named(request, self.auth)
        if user is None:
            challenge = getattr(self.auth, "challenge", None)
            headers = {"WWW_Authenticate": challenge} if challenge else {}
            raise Rejected(401, "Not signed in", "Sign in to see this page.", **headers)
        return user.read_only() if self.read_only else user

    async def _named(self, request: Request, auth: Auth) -> User | None:
        address = request.client.host if request.client else ""
        if not getattr(auth, "guessable", True):
            return await self._found(request, auth, address, self.failures.wait(address))
        async with self.failures.attempt(address) as wait:
            if wait:
                raise _too_many(wait)
            return await self._found(request, auth, address, wait)

    async def _found(self, request: Request, auth: Auth, address: str, wait: float) -> User | None:
        try:
            found = auth(request)
            return await found if inspect.isawaitable(found) else found
        except Refused:
            if wait:
                raise _too_many(wait) from None
            self.failures.add(address)
            return None
        except SignInUnavailable as error:
            text = f"{str(error)[:1].upper()}{str(error)[1:]}."
            raise Rejected(503, "Sign-in is not possible", text, Retry_After="10") from None

    def _check_local(self, request: HTTPConnection) -> None:
        address = request.client.host if request.client else ""
        forwarded = [name for name in _FORWARDED if name in request.headers]
        if forwarded or not is_of(address, LOOPBACK):
            how = (
                f"through a proxy ({forwarded[0]})"
                if forwarded
                else f"from {address or 'an unknown address'}"
            )
            raise Rejected(
                403,
                "This machine only",
                f"The request came {how}, and users need not sign in here, so only this machine is answered. "
                f"For others, {THREE_WAYS}.",
            )

    def _is_known(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        if name in LOCAL_NAMES or name.endswith(".localhost"):
            return True
        if is_address(name):
            # Another site can give its own name the address of this server, but it has no other name than that.
            return self.auth is not None or is_of(name, LOOPBACK)
        known: Iterable[str] = (*self.hosts, socket.gethostname().lower()) if self.auth else self.hosts
        return any(fnmatchcase(name, pattern.lower()) for pattern in known)


def _too_many(wait: float) -> Rejected:
    text = f"Too many wrong passwords came from this address. Try again in {math.ceil(wait)} seconds."
    return Rejected(429, "Too many failures", text, Retry_After=str(math.ceil(wait)))


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None when it is not valid."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    valid = not any(sign in host for sign in "@/?# ")
    return parts.hostname.rstrip(".") if valid and parts.hostname else None


def is_address(name: str) -> bool:
    """Whether this is an IP address, and not a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_same_site(request: HTTPConnection, host: str) -> bool:
    """Whether a request that changes something comes from a page of this dashboard, or from a program. Browsers send
    Sec-Fetch-Site over HTTPS and to this machine, and Origin with every form."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == host.lower()
    return not is_ambient(request)
