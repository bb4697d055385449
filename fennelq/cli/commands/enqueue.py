"""`fennelq enqueue`: send a job from the shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from fennelq.cli import complete, output
from fennelq.cli.calls import described, only_given
from fennelq.cli.ending import ended, print_end
from fennelq.cli.options import (
    CallArguments,
    CallKeywords,
    Expires,
    Json,
    TaskName,
    Timeout,
    ToLane,
    ToQueue,
    duration,
    moment,
    one_of,
)
from fennelq.cli.session import Session
from fennelq.model.dedupe import OnDuplicate
from fennelq.model.job import Dedupe

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.documents import Document
    from fennelq.model.job import AnyJob
    from fennelq.model.options import OptionArgs


@dataclass(frozen=True)
class JobOptions:
    """The options of the job that is sent."""

    queue: ToQueue = None
    priority: ToLane = None
    delay: Annotated[
        Any,
        typer.Option(
            "--delay",
            parser=duration,
            metavar="DURATION",
            help="Start the job after this delay: 60, 90s, 30m, 2h. Default: start it at once.",
        ),
    ] = None
    at: Annotated[
        Any,
        typer.Option(
            "--at",
            parser=moment,
            metavar="MOMENT",
            help="Do not start the job before this (local) time: 2026-05-01T14:30. Default: start it at once.",
        ),
    ] = None
    expires: Expires = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Idempotency key: a second job with the same key is not sent. Default: the task's.",
        ),
    ] = None
    dedupe: Annotated[
        str | None,
        typer.Option(
            "--dedupe",
            parser=one_of(Dedupe),
            metavar="MODE",
            help="How long the key is held: until_start, until_done, throttle, debounce or latest. "
            "Default: the task's.",
            autocompletion=complete.words(*get_args(Dedupe)),
        ),
    ] = None
    ttl: Annotated[
        Any,
        typer.Option(
            "--ttl",
            parser=duration,
            metavar="DURATION",
            help="Hold the key this long, with --dedupe throttle or without --dedupe: 60, 5m. Default: the task's.",
        ),
    ] = None
    debounce_wait: Annotated[
        Any,
        typer.Option(
            "--debounce-wait",
            parser=duration,
            metavar="DURATION",
            help="With --dedupe debounce: start the job this long after the last call. Default: the task's wait=.",
        ),
    ] = None
    max_wait: Annotated[
        Any,
        typer.Option(
            "--max-wait",
            parser=duration,
            metavar="DURATION",
            help="With --dedupe debounce: start it at most this long after the first call. Default: the task's.",
        ),
    ] = None
    on_duplicate: Annotated[
        str | None,
        typer.Option(
            "--on-duplicate",
            parser=one_of(OnDuplicate),
            metavar="ACTION",
            help="If another job holds the key: return its id, raise an error, or replace its arguments. "
            "Default: the task's.",
            autocompletion=complete.words(*get_args(OnDuplicate)),
        ),
    ] = None
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job-id", metavar="KEY", help="The id of the job becomes QUEUE:KEY. Default: a new unique id."
        ),
    ] = None

    def given(self) -> OptionArgs:
        """Those that are given on the command line."""
        given = only_given(vars(self))
        if "debounce_wait" in given:  # `--wait` waits for the result
            given["wait"] = given.pop("debounce_wait")
        return cast("OptionArgs", given)


def send(
    session: Session,
    task: TaskName,
    arguments: CallArguments = None,
    kwargs: CallKeywords = None,
    *,
    options: JobOptions,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Send the job even if the app has no such task.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send a job, and print its id.

    Example: fennelq enqueue shop.tasks:welcome 42 --delay 60
    """
    app, given = session.found.app, options.given()
    job = described(app, task, arguments or [], kwargs or [], given, anyway=anyway)
    sent, end = session.run(lambda app: _send(app, job, timeout, wait=wait))
    if end is None:
        _print_sent(sent, as_json=as_json)
    else:
        print_end({**sent, **end}, as_json=as_json)


async def _send(
    app: App, job: AnyJob, timeout: float | None, *, wait: bool
) -> tuple[Document, Document | None]:
    handle = (await app.enqueue([job]))[0]
    sent = {"id": handle.id, "deduplicated": handle.deduplicated}
    if not wait:
        return sent, None
    output.note(f"sent {handle.id}")
    return sent, await ended(app, handle.id, timeout)


def _print_sent(sent: Document, *, as_json: bool) -> None:
    if as_json:
        output.document(sent)
        return
    output.line(sent["id"])
    if sent["deduplicated"]:
        output.note("no new job: an earlier call with the same key or id has created this one")
