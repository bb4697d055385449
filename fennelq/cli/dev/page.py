"""The process of the pages: `python -m fennelq.cli.dev.page PARENT SOCKET APP FOLDER`.

It also records the history. Its socket listens already when it starts, because the parent has made it: while the pages
are replaced, no request is refused.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fennelq import log, streams
from fennelq.cli import output
from fennelq.cli.dev.tie import report_ready, tie
from fennelq.cli.exits import code_of
from fennelq.errors import FennelqError, HistoryRefused

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.history.recording import HistoryRecorder

_logger = log.get("fennelq.dev")


def main(parent: str, listening: str, app: str, folder: str) -> int:
    """Show the pages until a signal; returns the exit code. An empty text stands for a default."""
    tie(int(parent))
    try:
        return _show(int(parent), int(listening), app or None, Path(folder) if folder else None)
    except FennelqError as error:
        output.note(f"fennelq: {error}")
        return code_of(error)


def _show(parent: int, listening: int, path: str | None, folder: Path | None) -> int:
    from fennelq.web.serving import new_loop
    from fennelq.worker.processes.discovery import find_app

    app = find_app(path, folder).app
    settings = app.settings
    log.setup(settings.log_format, "warning", config=settings.log_config)
    log.hide(app.redaction.fact)
    # Starts the embedded server, or says what is wrong with the URL: before a page would.
    _ = app.address
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(app, parent, socket.socket(fileno=listening)))
    return 0


async def _serve(app: App, parent: int, listening: socket.socket) -> None:
    from fennelq.manage.history.looking import KEEP, KEEP_DEAD, keep_of
    from fennelq.manage.history.recording import HistoryRecorder
    from fennelq.web.application import dashboard
    from fennelq.web.serving import serving

    recorder = HistoryRecorder(app, keep=keep_of(KEEP, KEEP_DEAD, None))
    recording = asyncio.create_task(_record(recorder))
    try:
        await serving(dashboard(app), [listening], lambda: report_ready(parent))
    finally:
        recorder.stop()
        await recording


async def _record(recorder: HistoryRecorder) -> None:
    """Record how jobs end. Without a history, the pages still show everything else."""
    try:
        await recorder.run()
    except HistoryRefused as error:
        _logger.error("history_refused", why=str(error))
    except Exception as error:
        _logger.error("history_ended", error=f"{type(error).__name__}: {error}"[:500])


if __name__ == "__main__":
    streams.open_missing()
    sys.exit(main(*sys.argv[1:5]))
