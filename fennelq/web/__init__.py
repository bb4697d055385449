"""The dashboard: pages that show an app and operate it, in a browser. It needs `pip install 'fennelq[web]'`.

dashboard    `dashboard(app, auth=…)`: the pages as an ASGI application, to be mounted in another one
serving      `fennelq web`: the same in a process of its own; ports: its socket
routes       the table: method, path, right, handler, form
users        users and their rights; auth, passwords: the ways to sign in; failures: how often a sign-in may fail
gate         what every request passes: the host, the origin, the user, the right, the headers of the answer
site         what the pages of an app share; looks: what is known of the app, looked up once for all readers
series       the runs and times of the queues, for charts; charts, drawing: how they are drawn
live         pages that update themselves
http/        the HTTP API: `api(app, auth=…)`
pages/       a module per page; templates/, static/: their texts and drawings
rendering    templates; words, drawing: how values are shown
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fennelq.web.users import READ_ONLY, RIGHTS, Right, User

if TYPE_CHECKING:
    from fennelq.web.application import dashboard
    from fennelq.web.auth import Basic, Proxy, Token
    from fennelq.web.http.application import api

__all__ = ["READ_ONLY", "RIGHTS", "Basic", "Proxy", "Right", "Token", "User", "api", "dashboard"]

_LATER = {
    "Basic": "fennelq.web.auth",
    "Proxy": "fennelq.web.auth",
    "Token": "fennelq.web.auth",
    "api": "fennelq.web.http.application",
    "dashboard": "fennelq.web.application",
}


def __getattr__(name: str) -> Any:
    """Import what needs the packages of the extra when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from fennelq.errors import ConfigurationError

    try:
        return getattr(import_module(_LATER[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "jinja2", "uvicorn", "httptools"):
            raise
        raise ConfigurationError(
            f"the dashboard needs {error.name}: run pip install 'fennelq[web]'"
        ) from error
