"""`fennelq api`: serve the HTTP API, without the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.served import require_web, served_app
from fennelq.cli.session import Session
from fennelq.errors import ConfigurationError


def serve(
    session: Session,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")
    ] = 3367,
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="Serve an app of this Redis, without its code; with --namespace. Default: the app's.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", metavar="NAME", help="The app that is served without its code. Default: the app."
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="Tokens of programs, as `fennelq token add` writes them. Default: none.",
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            help="Users and their passwords, as `fennelq web user` writes them. Default: none.",
        ),
    ] = None,
    host_names: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="A name of this server, like jobs.example.com; repeatable. Default: none.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", min=0.001, metavar="N", help="The most calls per second of each user. Default: any."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Answer questions, and change nothing.")
    ] = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C, so that programs in every language can send and follow jobs.

    Without --tokens or --users, it accepts requests from this machine only. `fennelq web` serves the API too.
    """
    require_web()
    from fennelq.web import Basic, Token, api
    from fennelq.web.loopback import is_loopback
    from fennelq.web.ports import bound
    from fennelq.web.serving import serve as serve_until_stopped
    from fennelq.web.serving import url_of

    if tokens is not None and users is not None:
        raise Problem("--tokens and --users exclude each other: pass only one", Exit.USAGE)
    auth = Token(tokens) if tokens is not None else Basic(users) if users is not None else None
    if auth is None and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} accepts requests from other machines, and every program could send jobs: pass --tokens "
            "FILE, which `fennelq token add` writes"
        )
    app = served_app(session, redis_url, namespace)
    hosts = [*(host_names or []), *([] if is_loopback(host) else [host])]
    made = api(app, auth=auth, hosts=hosts, read_only=read_only, rate=rate)
    listening = bound(host, port)
    whom = "this machine" if auth is None else "users who sign in"
    serve_until_stopped(
        made,
        [listening],
        lambda: output.note(
            f"{url_of(listening)}api/v1 serves {app.namespace} of {app.address.shown}, for {whom}; "
            f"{url_of(listening)}openapi.json describes it"
        ),
    )
