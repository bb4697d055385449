"""Finds the facts of which the story of a job consists. `fennelq.model.story` puts them into words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import LANES, QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all, together
from fennelq.broker.trouble import ReplyError, lacks_permission
from fennelq.broker.verb import Step
from fennelq.broker.verbs.queues import Reading
from fennelq.broker.verbs.times import RUN, WINDOW_MS
from fennelq.errors import BrokerUnavailable
from fennelq.model.because import Turn
from fennelq.model.job import Event, JobInfo, Status, split_id
from fennelq.model.runs import Traces
from fennelq.model.story import Story, story
from fennelq.waiting import reasons

if TYPE_CHECKING:
    from fennelq.app import App

A = TypeVar("A")

_COUNTED: Final = 500
"""At most so many entries before or after a job are read to find its turn. In a longer lane, the turn of a job in the
middle has only a lower bound."""
_REPORTED: Final = 60.0
"""Seconds between two reports of an executor: no rate is computed from less."""


class JobStory(NamedTuple):
    """A job, its history, and the story that follows from them: all of one moment."""

    info: JobInfo
    events: Sequence[Event]
    story: Story


def story_of(app: App, job_id: str) -> Talk[Story | None]:
    """The story of a job; None when it has no record."""
    found = yield from job_story_of(app, job_id)
    return None if found is None else found.story


def job_story_of(app: App, job_id: str) -> Talk[JobStory | None]:
    """A job, its history and its story; None when it has no record."""
    queue, key = split_id(job_id)
    keys = queue_keys(app.namespace, queue)
    steps: list[Step[Any]] = [
        verbs.jobs.history(keys, key),
        verbs.jobs.traces(keys, key),
        verbs.server.now(),
    ]
    talks: list[Talk[Any]] = [reasons.known_of(keys, key), ask_all(steps)]
    info: JobInfo | None
    info, (events, traces, now_ms) = yield from together(talks)
    if info is None:
        return None
    return JobStory(info, events, (yield from _in_words(keys, info, events, traces, now_ms)))


def _in_words(
    keys: QueueKeys, info: JobInfo, events: Sequence[Event], traces: Traces, now_ms: int
) -> Talk[Story]:
    turn = gone = None
    if info.status is Status.EXECUTING:
        executors = yield from reasons.executors_of(keys.app)
        gone = None if executors is None else reasons.gone_of(info, executors)
    elif info.status is Status.SENT and info.waiting_because is None:
        turn = yield from _if_known(_turn(keys, info, now_ms))
    return story(info, events, clock.from_ms(now_ms), traces, turn=turn, gone=gone)


def _if_known(talk: Talk[A]) -> Talk[A | None]:
    """The value of a conversation; None when a key has another type, or the user of Redis may not read it."""
    try:
        return (yield from talk)
    except ReplyError:
        return None
    except BrokerUnavailable as error:
        if lacks_permission(error):
            return None
        raise


# The turn of a job


def _turn(keys: QueueKeys, info: JobInfo, now_ms: int) -> Talk[Turn | None]:
    """How many jobs start before a job that waits in a lane; None for a job in another place."""
    lane, _, entry = (info.place or "").partition("/")
    if not entry:
        return None
    executors = yield from reasons.executors_of(keys.app)
    before, at_least = yield from _before(keys, lane, entry)
    before += yield from _in_higher_lanes(keys, lane)
    serving = None if executors is None else len(executors.serving(info.queue, lane))
    rate, within = (yield from _rate(keys, now_ms)) if before else (None, 0.0)
    return Turn(before, at_least, serving, rate, within)


def _before(keys: QueueKeys, lane: str, entry: str) -> Talk[tuple[int, bool]]:
    """How many entries of a lane are delivered before this one, and whether there are more."""
    asked: list[Step[Any]] = [verbs.queues.length(keys, lane), verbs.queues.reading(keys, lane)]
    length, reading = yield from ask_all(asked)
    around = [
        verbs.queues.waiting(keys, lane, reading.last, _COUNTED + 1, until=f"({entry}"),
        verbs.queues.waiting(keys, lane, entry, _COUNTED + 1),
    ]
    before, after = map(len, (yield from ask_all(around)))
    if before <= _COUNTED:
        return before, False
    if after <= _COUNTED:
        return max(0, length - reading.pending - 1 - after), False
    return _COUNTED, True


def _in_higher_lanes(keys: QueueKeys, lane: str) -> Talk[int]:
    """How many jobs wait in the lanes that executors read before this one."""
    lanes = list(LANES.values())
    higher = lanes[: lanes.index(lane)] if lane in lanes else []
    lengths = yield from ask_all(verbs.queues.length(keys, name) for name in higher)
    filled = {name: length for name, length in zip(higher, lengths, strict=True) if length}
    readings: list[Reading] = yield from ask_all(verbs.queues.reading(keys, name) for name in filled)
    return sum(max(0, length - one.pending) for length, one in zip(filled.values(), readings, strict=True))


def _rate(keys: QueueKeys, now_ms: int) -> Talk[tuple[float | None, float]]:
    """How many jobs of the queue have run per second lately, and for how many seconds that was counted."""
    moments = (now_ms - WINDOW_MS, now_ms)
    counts: list[int] = []
    for moment in moments:
        found = yield from _if_known(ask(verbs.times.times(keys, moment)))
        durations = found.durations if found else {}
        counts.append(sum(sum(buckets) for (_, what), buckets in durations.items() if what == RUN))
    within = now_ms % WINDOW_MS / 1000 + (WINDOW_MS / 1000 if counts[0] else 0)
    within = max(_REPORTED, within)
    return (sum(counts) / within or None), within
