"""What the commands share that serve an app: the app, and the packages that they need."""

from __future__ import annotations

from importlib.util import find_spec

from fennelq.app import App
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.session import Session
from fennelq.errors import ConfigurationError


def served_app(session: Session, redis_url: str | None, namespace: str | None) -> App:
    """The app with its code, or one of a Redis without its code."""
    if (redis_url is None) != (namespace is None):
        raise Problem("--redis-url and --namespace belong together: pass both, or none", Exit.USAGE)
    if redis_url is not None and namespace is not None:
        return App(namespace, namespace=namespace, redis_url=redis_url)
    return session.found.app


def require_web(what: str = "the HTTP API") -> None:
    """Raises ConfigurationError when a package of the extra `web` is missing."""
    require(what, "web", "starlette", "jinja2", "uvicorn")


def require(what: str, extra: str, *packages: str) -> None:
    """Raises ConfigurationError when a package of an extra is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigurationError(f"{what} needs {package}: run pip install 'fennelq[{extra}]'")
