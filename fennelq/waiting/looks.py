"""How a waiter looks at jobs, with and without an event loop: the calls of `watch`, and how to read the replies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fennelq.broker import verbs
from fennelq.broker.dispatch import dispatch
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all
from fennelq.errors import ResultExpired
from fennelq.model.job import split_id
from fennelq.model.lifetimes import Lifetimes

Look = tuple[str, str | None, bytes | None]
"""The reply of `watch`: end, wait or gone; the task; the envelope, or the progress of a job that goes on."""

OF_PROGRESS = "+"
"""The first character of messages about progress. All others are about the end of a job."""


class Ended(NamedTuple):
    """How a job ended: the envelope that settling wrote, and the task if it is known."""

    task: str | None
    envelope: bytes


def watched(
    app: str,
    channel: str,
    ids: Sequence[str],
    lifetimes: Lifetimes,
    followed: Collection[str] = (),
) -> Talk[list[Look | Exception]]:
    """The reply of `watch` for each job, or its own error: an id that cannot be sent or read does not fail the others.
    With an empty channel it registers nothing. The progress of the `followed` jobs is asked for as well."""

    def watch(queue: str, page: list[str]) -> Talk[list[Look]]:
        keys = queue_keys(app, queue)
        if not followed:
            return ask(verbs.jobs.watch(keys, channel, list(map(_key, page)), lifetimes))
        return _watch_and_follow(keys, channel, page, lifetimes, followed)

    return dispatch(ids, _queue, watch)


def _watch_and_follow(
    keys: QueueKeys, channel: str, page: list[str], lifetimes: Lifetimes, followed: Collection[str]
) -> Talk[list[Look]]:
    """Jobs that are followed and others, in one round trip."""
    parts = [[job_id for job_id in page if (job_id in followed) is follows] for follows in (False, True)]
    calls = [
        verbs.jobs.watch(keys, channel, list(map(_key, part)), lifetimes, follows=follows)
        for part, follows in zip(parts, (False, True), strict=True)
        if part
    ]
    looks: dict[str, Look] = {}
    for part, reply in zip(filter(None, parts), (yield from ask_all(calls)), strict=True):
        looks.update(zip(part, reply, strict=True))
    return [looks[job_id] for job_id in page]


def _key(job_id: str) -> str:
    return job_id.partition(":")[2]


def _queue(job_id: str) -> str:
    return split_id(job_id)[0]


def ended(job_id: str, look: Look) -> Ended | None:
    """The end in a reply of `watch`; None while the job goes on. Raises ResultExpired for a job that is gone."""
    code, task, envelope = look
    if code == "gone":
        raise ResultExpired(job_id)
    return Ended(task, envelope or b"") if code == "end" else None
