"""What the commands share that serve an app to programs: the app, where they listen, who may call, the packages that
they need."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fennelq.app import App
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.session import Session
from fennelq.errors import ConfigurationError

Host = Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="Tokens of programs, as `fennelq token add` writes them. Default: none.",
    ),
]
Users = Annotated[
    Path | None,
    typer.Option(
        "--users",
        metavar="FILE",
        help="Users and their passwords, as `fennelq web user` writes them. Default: none.",
    ),
]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--host-name",
        metavar="NAME",
        help="A name of this server, like jobs.example.com; repeatable. Default: none.",
    ),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, and change nothing.")]


@dataclass(frozen=True)
class Served:
    """Which app is served, on which address, and to which programs."""

    host: Host = "127.0.0.1"
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="Serve an app of this Redis, without its code; with --namespace. Default: the app's.",
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Serve this app without its code. Default: the app with its code.",
        ),
    ] = None
    tokens: Tokens = None

    def app(self, session: Session) -> App:
        """The app with its code, or one of a Redis without its code."""
        if (self.redis_url is None) != (self.namespace is None):
            raise Problem("--redis-url and --namespace belong together: pass both, or none", Exit.USAGE)
        if self.redis_url is not None and self.namespace is not None:
            return App(self.namespace, namespace=self.namespace, redis_url=self.redis_url)
        return session.found.app

    def check_callers(self, *, sign_in: bool) -> None:
        """Raises ConfigurationError when other machines could call without signing in."""
        if not sign_in and not self.is_local:
            raise ConfigurationError(
                f"--host {self.host} accepts requests from other machines, and every program could send jobs: pass "
                "--tokens FILE, which `fennelq token add` writes"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address."""
        from fennelq.web.loopback import is_loopback

        return is_loopback(self.host)


def require_web(what: str = "the HTTP API") -> None:
    """Raises ConfigurationError when a package of the extra `web` is missing."""
    require(what, "web", "starlette", "jinja2", "uvicorn", "httptools")


def require(what: str, extra: str, *packages: str) -> None:
    """Raises ConfigurationError when a package of an extra is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigurationError(f"{what} needs {package}: run pip install 'fennelq[{extra}]'")
