"""`fennelq exporter`: serve the metrics of what is in Redis to Prometheus."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from fennelq.cli import output
from fennelq.cli.session import Session

if TYPE_CHECKING:
    from fennelq.app import App

PORT = "3369"


def run(
    session: Session,
    port: Annotated[
        str,
        typer.Option(
            "--port", metavar="[HOST:]PORT", help="Where to listen. Default: port 3369 of every interface."
        ),
    ] = PORT,
) -> None:
    """Serve the metrics of the queues, schedules and dead jobs in Redis to Prometheus, at /metrics, until SIGTERM or
    Ctrl-C.

    One exporter per app is enough: workers have a page of their own, see `fennelq worker --health-port`. /live and
    /ready reply to health checks; /ready returns 503 while Redis is away.
    """
    asyncio.run(_serve(session.found.app, port))


async def _serve(app: App, port: str) -> None:
    from fennelq.manage.measures import Measures
    from fennelq.manage.watch import SHORTEST, Watch
    from fennelq.worker.processes.health import Health

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # A scrape follows after many seconds, and has no rates: looking on until then would be in vain.
    async with app, Watch(app, linger=SHORTEST) as watch, Measures(app, watch) as measures:
        pages = Health(port, live=lambda: True, ready=measures.up, metrics=measures.page, option="--port")
        await pages.start()
        output.note(f"serving metrics of {app.name} ({app.address.shown}) on port {pages.port}, at /metrics")
        await stop.wait()
        pages.close()
