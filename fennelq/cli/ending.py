"""Waits for the end of a job, and prints it: `job wait`, `enqueue --wait`, `cron run --wait`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.known import no_record
from fennelq.errors import ResultExpired
from fennelq.manage.documents import Document, of_end

if TYPE_CHECKING:
    from fennelq.app import App


async def ended(app: App, job: str, timeout: float | None) -> Document:
    """Wait for the end of a job; raises ResultTimeout, or a Problem if the job is unknown."""
    try:
        return of_end(await app.jobs.wait(job, timeout))
    except asyncio.CancelledError:  # only Ctrl-C cancels a command
        raise Interrupted(f"Interrupted: job {job} goes on; `fennelq job wait {job}` waits again.") from None
    except ResultExpired:
        if await app.client.info(job) is None:
            raise await no_record(app, job) from None
        raise


def print_end(end: Document, *, as_json: bool, on_one_line: bool = False) -> None:
    """Print how a job ended; exit with 1 if it has no result. `on_one_line`: as JSON on one line, after others."""
    if as_json and on_one_line:
        print(output.record(end))
    elif as_json:
        output.document(end)
    elif "error" not in end:
        print(output.record(end["result"]))
    else:
        output.note(f"fennelq: {end['error']}")
    if "error" in end:
        raise typer.Exit(Exit.FAILED)
