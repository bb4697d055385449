"""Puts an ASGI application below a prefix of another one, for frameworks that cannot mount one, or change its paths."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


def below(prefix: str, inner: ASGIApp, otherwise: ASGIApp, at_prefix: ASGIApp | None = None) -> ASGIApp:
    """An application that passes paths below this prefix to `inner`, and all others on. `at_prefix` answers the prefix
    itself; `inner` does if there is none."""
    prefix = f"/{prefix.strip('/')}"

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not f"{path}/".startswith(f"{prefix}/"):
            await otherwise(scope, receive, send)
        elif path == prefix and at_prefix is not None:
            await at_prefix(scope, receive, send)
        else:
            root = f"{scope.get('root_path', '')}{prefix}"
            await inner({**scope, "root_path": root}, receive, send)

    return answer
