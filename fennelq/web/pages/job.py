"""One job: where it is and why, what happened to it, its call and its result; cancel it, run it now, send it again."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pydantic import Field

from fennelq.errors import FennelqError
from fennelq.manage.jobs import JobAnswer
from fennelq.manage.stories import JobStory, job_story_of
from fennelq.model.job import JobInfo, Status, split_id
from fennelq.model.named_call import parts
from fennelq.model.runs import StoryRun
from fennelq.web import words
from fennelq.web.ended import has_history, story_in_history
from fennelq.web.http.paths import PREFIX
from fennelq.web.jobs_shown import arguments_of, headers_of
from fennelq.web.table import Form
from fennelq.web.visit import Forbidden, Moved, NotFound, Page, Visit, link

_WIDTH: Final = 1080
_LETTER: Final = 6.2
"""The width of a letter in the drawing, about."""
_PATIENT: Final = 0.5
"""Seconds to wait for the end of a running job that is cancelled."""
_COLOURS: Final = {"succeeded": "done", "failed": "lost", "died": "lost", "lost": "lost", "running": "ran"}


class RunBar(NamedTuple):
    """A run in the drawing."""

    kind: str
    x: int
    width: int
    above: str
    below: str
    above_at: int = 0
    below_at: int = 0
    """Where the labels begin: further left than the run when they would not fit otherwise."""


async def show(visit: Visit) -> Page:
    """A job."""
    known, past = await _known_or_past(visit)
    look = await visit.look()
    info, _, story = known
    call = info if past or info.arguments else await _call_of(visit, info)
    result, kept = await _result(visit, info)
    bars = bars_of(info, story.runs, look.now.timestamp())
    question, _, answer = story.sentence.partition("? ")
    return Page(
        template="job.html",
        title=info.id,
        section="jobs",
        values={
            "info": info,
            "question": f"{question}?" if answer else "",
            "answer": answer or story.sentence,
            "story": story,
            "bars": bars,
            "took": _took(info, story.runs),
            "call": arguments_of(visit, call),
            "from_history": past or call is not info,
            "function": info.task.rpartition(":")[2],
            "headers": headers_of(visit, info),
            "result": result,
            "kept": kept,
            "may": visit.can("see_arguments"),
            "acts": [] if past else _acts(visit, info),
            "copies": _copies(visit, call),
            "percent": int(info.progress.fraction * 100)
            if info.progress and info.progress.fraction
            else None,
        },
    )


class CancelForm(Form):
    """Why a job is cancelled."""

    reason: str = Field(default="cancelled", min_length=1, max_length=200)


async def ask_cancel(visit: Visit) -> Page:
    """Ask for the reason."""
    info = (await _known(visit)).info
    return Page(template="job_cancel.html", title="Cancel a job", section="jobs", values={"info": info})


async def cancel(visit: Visit) -> Moved:
    """Cancel a job; one that is running is asked to stop."""
    job, reason = visit.names["job"], visit.given(CancelForm).reason
    async with visit.site.recorded(
        visit, "job cancel", target=job, filter=f"--reason {shlex.quote(reason)}"
    ) as record:
        answer = await visit.app.jobs.cancel(job, reason, wait=_PATIENT)
        record.ended(int(answer.done), answer.text)
    return Moved(
        link("jobs", job), "cancelled" if answer.done else "asked" if "stop" in answer.text else "late"
    )


async def run(visit: Visit) -> Moved:
    """Run a job now that is due later."""
    return await _one(visit, "job run", visit.app.jobs.run, "due")


async def replay(visit: Visit) -> Moved:
    """Put a dead job back."""
    return await _one(visit, "job retry", visit.app.jobs.retry, "replayed")


async def again(visit: Visit) -> Moved:
    """Send the call of a job as a new job."""
    info = (await _known(visit)).info
    if not visit.user.can_send(info.task):
        raise Forbidden(f"{visit.user.name} may not send {info.task}.")
    if not info.arguments:
        raise NotFound("The arguments of this job are not kept, so it cannot be sent again.")
    args, kwargs = parts(info.arguments)
    async with visit.site.recorded(visit, "enqueue", target=info.task) as record:
        sent = await visit.app.send(
            info.task,
            *args,
            _kwargs=kwargs,
            queue=info.queue,
            priority=info.priority,
            headers=dict(info.headers),
        )
        record.ended(1, f"sent {sent.id}, the call of {info.id}")
    return Moved(link("jobs", sent.id), "sent")


async def _one(visit: Visit, what: str, act: Any, done: str) -> Moved:
    job = visit.names["job"]
    async with visit.site.recorded(visit, what, target=job) as record:
        answer: JobAnswer = await act(job)
        record.ended(int(answer.done), answer.text)
    return Moved(link("jobs", job), done if answer.done else "late")


async def _known(visit: Visit) -> JobStory:
    job = visit.names["job"]
    split_id(job)
    found: JobStory | None = await visit.app.client.converse(job_story_of(visit.app, job))
    if found is None:
        raise NotFound(
            f"Redis has no record of {job}. Records of jobs that have ended are kept for a while (record_ttl) only."
        )
    return found


async def _known_or_past(visit: Visit) -> tuple[JobStory, bool]:
    """What Redis has of a job, or else the history; and whether it is from the history."""
    try:
        return await _known(visit), False
    except NotFound as error:
        past, problem = await story_in_history(visit.app, visit.names["job"])
        if past is not None:
            return past, True
        if not has_history(visit.app):
            raise NotFound(f"{error} This app has no history; the setting history_url names one.") from None
        raise NotFound(f"{error} {problem or 'The history does not have it either.'}") from None


async def _call_of(visit: Visit, info: JobInfo) -> JobInfo:
    """The job with its arguments, which Redis does not keep after a success, if the history has them."""
    past, _ = (await story_in_history(visit.app, info.id)) if info.status.ended else (None, "")
    return info if past is None or not past.info.arguments else past.info


async def _result(visit: Visit, info: JobInfo) -> tuple[str | None, bool]:
    """The result as JSON; None when there is none. And whether it is kept."""
    if info.status is not Status.SUCCESS:
        return None, False
    if not visit.can("see_arguments"):
        return None, True
    with suppress(FennelqError):  # it has expired, or this user of Redis may not read it
        value = (await visit.app.jobs.wait(info.id, 0)).result
        return words.as_json(
            visit.redaction.fact("", value) if isinstance(value, dict | list) else value, 2
        ), True
    return None, False


def _acts(visit: Visit, info: JobInfo) -> list[tuple[str, str, str, str]]:
    """What can be done: the path, the label, the class, and `ask` when it is a page of its own."""
    job, status = info.id, info.status
    found: list[tuple[str, str, str, str, str]] = []
    if status is Status.DEAD:
        found.append(("replay", link("jobs", job, "replay"), "Replay", "primary", ""))
        found.append(("edit", link("jobs", job, "edit"), "Change arguments…", "", "ask"))
    if status in (Status.SCHEDULED, Status.RETRY):
        found.append(("send", link("jobs", job, "run"), "Run now", "", ""))
    if info.arguments and visit.user.can_send(info.task):
        found.append(("send", link("jobs", job, "again"), "Run again as a new job", "", ""))
    if not status.ended and status is not Status.UNKNOWN:
        found.append(("cancel", link("jobs", job, "cancel"), "Cancel…", "danger", "ask"))
    return [(path, label, kind, how) for right, path, label, kind, how in found if visit.can(right)]


def _copies(visit: Visit, info: JobInfo) -> list[tuple[str, str]]:
    """The call in Python and for a shell. A secret is shown as such, so the copy has to be completed."""
    pairs = arguments_of(visit, info)
    if not pairs and not visit.can("see_arguments"):
        return []
    module, _, function = info.task.rpartition(":")
    shown = [f"{name}={_python(value)}" if name else _python(value) for name, value in pairs]
    python = f"from {module} import {function}\n\nawait {function}.delay({', '.join(shown)})"
    given = [
        f"--kwargs {shlex.quote(f'{name}={value}')}" if name else shlex.quote(value) for name, value in pairs
    ]
    shell = " ".join(["fennelq enqueue", shlex.quote(info.task), *given])
    return [
        ("Python", python if module else ""),
        ("CLI", shell),
        ("curl", _curl(info.task, pairs)),
        ("Look at it", f"fennelq job show {info.id}"),
    ]


def _curl(task: str, pairs: list[tuple[str, str]]) -> str:
    """The call over HTTP; empty when the names of its arguments are not known. The page does not know its own address,
    which may be behind a proxy."""
    if not all(name for name, _ in pairs):
        return ""
    body = ", ".join(f"{words.as_json(name)}: {value}" for name, value in pairs)
    return (
        f'curl "$DASHBOARD{PREFIX}/{link("jobs", task)}" -H "Authorization: Bearer $TOKEN" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(f'{{{body}}}')}"
    )


def _python(text: str) -> str:
    return {"true": "True", "false": "False", "null": "None"}.get(text, text)


# The drawing


def _took(info: JobInfo, runs: tuple[StoryRun, ...]) -> str:
    ran = sum(run.seconds or 0.0 for run in runs)
    if info.enqueued_at is None or info.ended_at is None:
        return f"{words.duration(ran)} of running" if ran else ""
    whole = max(0.0, (info.ended_at - info.enqueued_at).total_seconds())
    return f"{words.duration(whole)} from sent to ended · {words.duration(ran)} of it running"


def bars_of(info: JobInfo, runs: tuple[StoryRun, ...], now: float) -> list[RunBar]:
    """The runs from when the job was sent; empty when none has begun."""
    begun = [run for run in runs if run.began is not None]
    if not begun or info.enqueued_at is None:
        return []
    start = info.enqueued_at.timestamp()
    end = max(info.ended_at.timestamp() if info.ended_at else now, *(_end(run, now) for run in begun))
    span = max(end - start, 0.001)

    def x(at: float) -> int:
        return min(_WIDTH - 2, max(0, round(_WIDTH * (at - start) / span)))

    bars: list[RunBar] = []
    last = start
    for run in begun:
        began = run.began.timestamp() if run.began else last
        if began - last > span / 200:
            bars.append(
                RunBar(
                    "wait",
                    x(last),
                    x(began) - x(last),
                    f"waited {words.duration(began - last)}",
                    words.moment(info.enqueued_at) if last == start else "",
                )
            )
        label = f"run {run.number}{f', {run.executor}' if run.executor else ''}: {run.outcome}"
        bars.append(
            RunBar(
                _COLOURS.get(run.outcome, "ran"),
                x(began),
                max(2, x(_end(run, now)) - x(began)),
                label,
                words.moment(run.began),
            )
        )
        last = max(last, _end(run, now))
    return _readable(bars)


def _readable(bars: list[RunBar]) -> list[RunBar]:
    """Without labels for which there is no room."""
    shown: list[RunBar] = []
    above = below = 0.0
    for bar in bars:
        text = bar.above if bar.width > 60 or bar.kind != "wait" else ""
        wide, narrow = round(len(text) * _LETTER) + 8, round(len(bar.below) * _LETTER) + 8
        above_at, below_at = min(bar.x + 4, _WIDTH - wide), min(bar.x, _WIDTH - narrow)
        text, time = text if above_at >= above else "", bar.below if below_at >= below else ""
        shown.append(bar._replace(above=text, below=time, above_at=above_at, below_at=below_at))
        above = above_at + wide if text else above
        below = below_at + narrow if time else below
    return shown


def _end(run: StoryRun, now: float) -> float:
    if run.ended is not None:
        return run.ended.timestamp()
    return now if run.outcome == "running" else (run.began.timestamp() if run.began else now)
