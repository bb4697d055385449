"""`fennelq web`: show apps in a browser, and operate them there."""

from __future__ import annotations

import getpass
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fennelq.app import App
from fennelq.cli import output
from fennelq.cli.command import command, family_that_runs, itself
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.served import Host, HostNames, Port, ReadOnly, Tokens, Users, require_web
from fennelq.cli.session import Session
from fennelq.errors import ConfigurationError
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fennelq.web.auth import Auth

commands = family_that_runs()

_SHORTEST: Final = 8
"""Characters of a password."""
_PORT: Final = 3367
_THREE_WAYS: Final = (
    "pass --users FILE (names and passwords, which `fennelq web user` writes), --tokens FILE (which "
    "`fennelq token add` writes), or --proxy-header X-Forwarded-User --trusted 10.0.0.0/8 (a proxy that signs users in)"
)


@dataclass(frozen=True)
class Place:
    """Where it listens, and what it shows."""

    host: Host = "127.0.0.1"
    port: Port = _PORT
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="Show the apps of this Redis, without their code. Default: the app's.",
        ),
    ] = None
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Show this app without its code; repeatable: the page switches between them. Default: the app; with "
            "--redis-url, all apps.",
        ),
    ] = None
    read_only: ReadOnly = False


@dataclass(frozen=True)
class SignIn:
    """How users sign in."""

    users: Users = None
    tokens: Tokens = None
    proxy_header: Annotated[
        str | None,
        typer.Option(
            "--proxy-header",
            metavar="NAME",
            help="The header in which a proxy names the user. Default: none.",
        ),
    ] = None
    trusted: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted",
            metavar="NETWORK",
            help="The network of the proxy, like 10.0.0.0/8; repeatable. Default: none.",
        ),
    ] = None
    host_names: HostNames = None

    def auth(self) -> Auth | None:
        """The way to sign in; None when there is none."""
        from fennelq.web.auth import Basic, Proxy, Token

        ways = [self.users, self.tokens, self.proxy_header]
        if sum(way is not None for way in ways) > 1:
            raise typer.BadParameter("--users, --tokens and --proxy-header exclude each other: pass only one")
        if self.users is not None:
            return Basic(self.users)
        if self.tokens is not None:
            return Token(self.tokens)
        if self.proxy_header is not None:
            return Proxy(self.proxy_header, trusted=self.trusted or [])
        return None


@itself(commands)
def run(context: typer.Context, session: Session, place: Place, sign_in: SignIn) -> None:
    """Show an app in a browser, and operate it there, until SIGTERM or Ctrl-C.

    It needs no code of the app: with --redis-url, it shows all apps of a Redis. Without a way to sign in, it accepts
    requests from this machine only; `fennelq web user` adds a user.
    """
    if context.invoked_subcommand is not None:
        return
    require_web("the dashboard")
    from fennelq.web.application import dashboard
    from fennelq.web.choice import Choice
    from fennelq.web.gate import Gate
    from fennelq.web.loopback import is_loopback
    from fennelq.web.ports import bound
    from fennelq.web.serving import Served, serve, url_of

    auth = sign_in.auth()
    if auth is None and not is_loopback(place.host):
        raise ConfigurationError(
            f"--host {place.host} accepts requests from other machines, and users would not have to sign in: "
            f"{_THREE_WAYS}"
        )
    hosts = [*(sign_in.host_names or []), *([] if is_loopback(place.host) else [place.host])]
    made: Served
    if place.redis_url is not None and not place.namespaces:
        made = Choice(place.redis_url, Gate(auth, hosts, place.read_only))
        what = f"the apps of {made.redis}"
    else:
        apps = _apps(session, place)
        made = dashboard(*apps, auth=auth, hosts=hosts, read_only=place.read_only)
        what = f"{', '.join(app.namespace for app in apps)} of {apps[0].address.shown}"
    listening = bound(place.host, place.port)
    whom = "this machine" if auth is None else "users who sign in"
    serve(made, [listening], lambda: output.note(f"{url_of(listening)} shows {what}, for {whom}"))


@command(commands, "user")
def add_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    users: Annotated[
        Path,
        typer.Option(
            "--users",
            metavar="FILE",
            help="The file of users, which is created if it does not exist. Default: none, pass one.",
        ),
    ],
    may: Annotated[
        str,
        typer.Option(
            "--may", metavar="RIGHTS", help="`all`, `read`, or words like see,see_arguments,cancel."
        ),
    ] = "all",
) -> None:
    """Add a user to a file, or change the password and the rights of a user. It asks for the password, or reads it from
    stdin."""
    require_web("the dashboard")
    from fennelq.web.passwords import password_hash, write

    password = _password()
    known = write(users, name, password_hash(password), may)
    output.line(f"{name}: {'changed' if known else 'added'}, may {may}")


def _apps(session: Session, place: Place) -> Sequence[App]:
    """The apps: those of the namespaces, or the one whose code is here."""
    names = [*dict.fromkeys(place.namespaces or [])]
    if not names:
        try:
            return [session.found.app]
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. Without code, --redis-url URL shows the apps of a Redis"
            ) from None
    url = place.redis_url
    if url is None and session.app is not None:
        return [
            session.found.app,
            *(App(name, redis_url=session.found.app.settings.redis_url) for name in names),
        ]
    return [_codeless(name, url) for name in names]


def _codeless(name: str, url: str | None) -> App:
    """An app without its code."""
    return App(name, namespace=name) if url is None else App(name, namespace=name, redis_url=url)


def _password() -> str:
    if is_terminal(sys.stdin):
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise Problem("the two passwords differ: nothing was changed", Exit.USAGE)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < _SHORTEST:
        hint = secrets.token_urlsafe(9)
        raise Problem(
            f"a password has at least {_SHORTEST} characters, like {hint}: nothing was changed", Exit.USAGE
        )
    return password
