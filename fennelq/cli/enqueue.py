"""`fennelq enqueue`: send a job from the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import orjson
import typer

from fennelq.cli import output
from fennelq.cli.job import ended, print_result
from fennelq.cli.options import (
    AppDir,
    AppPath,
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
)
from fennelq.cli.session import found, with_app
from fennelq.errors import InvalidArguments, UnknownTask

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.job import AnyJob
    from fennelq.model.options import OptionArgs
    from fennelq.task import AnyTask


def send(
    task: TaskName,
    arguments: CallArguments = None,
    app: AppPath = None,
    app_dir: AppDir = None,
    kwargs: CallKeywords = None,
    queue: ToQueue = None,
    priority: ToLane = None,
    delay: Annotated[
        Any,
        typer.Option(
            "--delay",
            parser=duration,
            metavar="DURATION",
            help="Start it not before: 60, 90s, 30m, 2h. Default: start it at once.",
        ),
    ] = None,
    at: Annotated[
        Any,
        typer.Option(
            "--at",
            parser=moment,
            metavar="MOMENT",
            help="Start it not before: 2026-05-01T14:30. Default: start it at once.",
        ),
    ] = None,
    expires: Expires = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Idempotency key: a second job with it is not sent. Default: none."
        ),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job-id", metavar="KEY", help="Its id becomes QUEUE:KEY. Default: a new id that is unique."
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Send it even if the app has no such task.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send a job, and print its id.

    Example: fennelq enqueue shop.tasks:welcome 42 --delay 60
    """
    named = found(app, app_dir).app
    said = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "at": at,
        "expires": expires,
        "key": key,
        "job_id": job_id,
    }
    options = cast("OptionArgs", {name: value for name, value in said.items() if value is not None})
    job = described(named, task, arguments or [], kwargs or [], options, anyway=anyway)
    sent, end = with_app(named, lambda app: _send(app, job, timeout, wait=wait))
    if not wait:
        _say_sent(sent, as_json=as_json)
        return
    print_result({**sent, **(end or {})}, as_json=as_json)


async def _send(
    app: App, job: AnyJob, timeout: float | None, *, wait: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    handle = (await app.enqueue([job]))[0]
    sent = {"id": handle.id, "deduplicated": handle.deduplicated}
    if not wait:
        return sent, None
    output.say(f"sent {handle.id}")
    return sent, await ended(app, handle.id, timeout)


def _say_sent(sent: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.document(sent)
        return
    output.line(sent["id"])
    if sent["deduplicated"]:
        output.say("the job of an earlier call with the same key or id")


# From texts to a call


def described(
    app: App, name: str, arguments: list[str], kwargs: list[str], options: OptionArgs, *, anyway: bool
) -> AnyJob:
    """The call that is meant; raises UnknownTask, with the nearest name, and InvalidArguments."""
    task = _task(app, name)
    if task is not None:
        args, named = _call_of(task, arguments, kwargs)
        return task.options(**options).job(*args, **named)
    if not anyway:
        raise UnknownTask(name, app.tasks)
    return app.describe(name, *map(_value, arguments), _kwargs=_keywords(kwargs, _value), **options)


def _task(app: App, name: str) -> AnyTask | None:
    if name in app.tasks:
        return app.tasks[name]
    alike = [task for known, task in app.tasks.items() if known.rpartition(":")[2] == name]
    return alike[0] if len(alike) == 1 else None


def _call_of(
    task: AnyTask, arguments: list[str], kwargs: list[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call, checked and read by the task's annotations: as JSON values, else as the texts they were."""
    try:
        return _decoded(task, [_value(text) for text in arguments], _keywords(kwargs, _value))
    except InvalidArguments as refusal:
        # `greet 42` for a `name: str` is meant as a text, and a text is read as a number where one is wanted.
        try:
            return _decoded(task, arguments, _keywords(kwargs, str))
        except InvalidArguments:
            raise refusal from None


def _decoded(
    task: AnyTask, args: list[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return task.calls.decode(orjson.dumps([args, kwargs]))


def _keywords(said: list[str], value: Any) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    for text in said:
        if text.lstrip().startswith("{"):
            keywords.update(_object(text))
            continue
        name, equals, worth = text.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"--kwargs {text!r} is neither name=value nor a JSON object")
        keywords[name] = value(worth)
    return keywords


def _object(text: str) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", orjson.loads(text))
    except ValueError as error:
        raise typer.BadParameter(f"--kwargs {text!r} is not a JSON object: {error}") from None


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return text
