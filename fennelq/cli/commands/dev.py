"""`fennelq dev`: everything for development, from one command."""

from __future__ import annotations

import asyncio
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from fennelq.cli import output
from fennelq.cli.options import AppDir, AppPath
from fennelq.cli.served import require_web

_HOST: Final = "127.0.0.1"


def run(
    app: AppPath = None,
    app_dir: AppDir = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="PORT",
            help="The port of the dashboard; 0 takes the first free one from 3367 on.",
        ),
    ] = 3367,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the dashboard in a browser. Default: only print its URL.")
    ] = False,
) -> None:
    """For development: run a worker, the dashboard and the history until Ctrl-C, with one log.

    It starts the embedded server, unless a Redis is configured. A changed source file is used at once: the worker and
    the dashboard import it anew. The dashboard accepts requests from this machine only, and needs no sign-in.
    """
    require_web("the dashboard")
    from fennelq.cli.dev.log import Log
    from fennelq.cli.dev.parent import Parent
    from fennelq.cli.dev.plan import Plan
    from fennelq.embedded import project_root
    from fennelq.web.ports import bound, next_free
    from fennelq.web.serving import url_of
    from fennelq.worker.processes import pid_one

    pid_one.end_on_sigterm()
    listening = bound(_HOST, port) if port else next_free(_HOST)
    url = url_of(listening)
    plan = Plan(app, app_dir, project_root(app_dir or Path.cwd()), listening, url)

    async def work() -> None:
        await Parent(plan, Log(sys.stdout), lambda: _open(url) if open_browser else None).run()

    asyncio.run(work())


def _open(url: str) -> None:
    """Open a page in a browser. In a thread, because the programs that do it may take long."""
    threading.Thread(target=_open_now, args=(url,), daemon=True).start()


def _open_now(url: str) -> None:
    if not webbrowser.open(url):
        output.note(f"No browser could be opened: go to {url}")
