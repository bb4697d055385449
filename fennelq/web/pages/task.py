"""One task: its signature, its options, its times; send a job of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast, get_args
from urllib.parse import parse_qsl

import orjson

from fennelq.errors import InvalidArguments, UnknownTask
from fennelq.manage.dead.new_arguments import Written, fitting
from fennelq.manage.times import TaskTimes
from fennelq.model.job import Priority
from fennelq.model.options import OptionArgs
from fennelq.model.times import Times, added
from fennelq.task import AnyTask
from fennelq.web import words
from fennelq.web.pages.tasks import failed_of
from fennelq.web.visit import Forbidden, Moved, Page, Visit, link

_ARGUMENT: Final = "arg."
"""The fields of the form with the arguments begin with this."""
_LANES: Final = ("", *get_args(Priority))


class Parameter(NamedTuple):
    """A parameter in the form."""

    name: str
    type: str
    default: str
    """As JSON, or Python; empty when it has none."""
    is_required: bool


async def show(visit: Visit) -> Page:
    """A task."""
    look, name = await visit.look(), visit.names["task"]
    unread = await look.series.read(look, look.queues)
    known = look.series.tasks([*look.queues], look.at.timestamp())
    times = next((one for one in known if one.task == name), None)
    task = visit.app.tasks.get(name)
    if task is None and times is None and not unread:
        raise UnknownTask(name, visit.app.tasks)
    options: Mapping[str, Any] = {} if task is None else {**task.declared.given}
    groups = [group for group in (await look.groups()).groups if group.task == name]
    return Page(
        template="task.html",
        title=name,
        section="tasks",
        values={
            "name_of_task": name,
            "task": task,
            "figures": _figures(times),
            "signature": _signature(task),
            "doc": (inspect.getdoc(task.function) or "") if task else "",
            "options": {
                key: value if isinstance(value, str | int | float) else repr(value)
                for key, value in options.items()
            },
            "running": [job for job in await look.running() if job.task == name][:10],
            "groups": groups[:5],
            "may_send": visit.user.can_send(name),
        },
    )


def _figures(times: TaskTimes | None) -> list[tuple[str, str, str]]:
    """What it did lately, and how long that took."""
    empty = TaskTimes(task="", run=added([]), wait=added([]))
    run, wait, failed = (times or empty).run, (times or empty).wait, failed_of(times or empty)
    died = (times or empty).ended.get("dead", 0)
    return [
        ("Runs", words.number(run.count), "of the last 10 to 20 minutes"),
        (
            "Tries that failed",
            words.DASH if failed is None else f"{words.number(failed)} %",
            f"{words.counted(died, 'job')} died of it",
        ),
        ("Wait before start, p95", words.duration(wait.p95), _others(wait)),
        ("Run, p95", words.duration(run.p95), _others(run)),
    ]


def _others(times: Times) -> str:
    return f"p50 {words.duration(times.p50)}, p99 {words.duration(times.percentile(99))}"


async def ask_send(visit: Visit) -> Page:
    """The form of a call."""
    name = visit.names["task"]
    _check(visit, name)
    await visit.look()
    task = visit.app.tasks.get(name)
    return Page(
        template="task_send.html",
        title=f"Send {name}",
        section="tasks",
        values={"task": task, "name_of_task": name, "parameters": _parameters(task), "lanes": _LANES},
    )


async def send(visit: Visit) -> Moved:
    """Send a job."""
    name = visit.names["task"]
    _check(visit, name)
    fields = dict(
        parse_qsl(visit.body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=500)
    )
    options = _options(fields)
    task = visit.app.tasks.get(name)
    async with visit.site.recorded(visit, "enqueue", target=name) as record:
        if task is not None:
            named = {
                key.removeprefix(_ARGUMENT): Written(value)
                for key, value in fields.items()
                if key.startswith(_ARGUMENT) and value
            }
            args, kwargs = task.calls.decode(fitting(task, named).encoded)
            sent = (await visit.app.enqueue([task.options(**options).job(*args, **kwargs)]))[0]
        else:
            sent = await visit.app.send(name, _kwargs=_object(name, fields.get("arguments", "")), **options)
        record.ended(1, f"sent {sent.id}")
    return Moved(link("jobs", sent.id), "sent")


def _check(visit: Visit, name: str) -> None:
    if not visit.user.can_send(name):
        raise Forbidden(f"{visit.user.name} may not send {name}.")


def _options(fields: Mapping[str, str]) -> OptionArgs:
    given: dict[str, Any] = {key: fields[key] for key in ("queue", "priority", "key") if fields.get(key)}
    if delay := fields.get("delay"):
        try:
            given["delay"] = float(delay)
        except ValueError:
            raise InvalidArguments("the form", f"delay {delay[:40]!r} is not a number of seconds") from None
    return cast("OptionArgs", given)


def _object(task: str, text: str) -> Mapping[str, Any]:
    try:
        found: Any = orjson.loads(text) if text.strip() else {}
    except ValueError as error:
        raise InvalidArguments(task, f"the arguments are not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArguments(task, "the arguments are not an object of arguments by name")
    return cast("Mapping[str, Any]", found)


class _AsWritten(str):
    """An annotation that is a text, as under `from __future__ import annotations`: it is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _bare(one: inspect.Parameter) -> inspect.Parameter:
    return one.replace(annotation=_AsWritten(one.annotation)) if isinstance(one.annotation, str) else one


def _signature(task: AnyTask | None) -> str:
    if task is None:
        return ""
    return f"{task.name.rpartition(':')[2]}({', '.join(str(_bare(one)) for one in task.calls.signature)})"


def _parameters(task: AnyTask | None) -> list[Parameter]:
    return [] if task is None else [_parameter(_bare(one)) for one in task.calls.signature]


def _parameter(one: inspect.Parameter) -> Parameter:
    hint = "" if one.annotation is one.empty else str(one).partition(":")[2].partition("=")[0].strip()
    required = one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    default = "" if one.default is one.empty else repr(one.default)
    return Parameter(one.name, hint, default, required)
