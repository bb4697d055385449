"""Waits for the ends of jobs, and reads their progress, without an event loop: for `sync`."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from fennelq import clock
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.inbox import Ticket, process_name
from fennelq.broker.keys import channel_name
from fennelq.broker.patience import Patience
from fennelq.broker.talk import Finding, Finds, Talk, patient
from fennelq.broker.trouble import ReplyError, refuses_to_publish
from fennelq.errors import BrokerUnavailable, ResultExpired, ResultTimeout
from fennelq.model.job import split_id
from fennelq.model.progress import Newest, Progress, Reported, from_wire
from fennelq.result import progress_of
from fennelq.usage import is_over
from fennelq.waiting import reasons
from fennelq.waiting.looks import OF_PROGRESS, Ended, Look, ended, watched
from fennelq.waiting.waiting import FIRST_POLL, LONGEST_POLL, RECHECK, report_refusal

if TYPE_CHECKING:
    from fennelq.app import App

A = TypeVar("A")

End = Ended | Exception
"""How a job has ended, or why that is unknown: a ResultExpired, or an error that concerns this job only."""

_SHORTEST_LOOK = 0.05


def end_of(app: App, job_id: str, timeout: float | None) -> Ended:
    """How a job has ended; raises ResultTimeout, or ResultExpired when the job is unknown or its result has expired."""
    if (ended := end_within(app, job_id, timeout)) is not None:
        return ended
    if not timeout or is_over(timeout):
        raise ResultTimeout(job_id, timeout or 0.0)
    reason = app.blocking.converse(reasons.after_timeout(app, job_id, timeout))
    raise ResultTimeout(job_id, timeout, reason)


def ends_of(app: App, ids: Iterable[str], timeout: float | None) -> Generator[tuple[str, End]]:
    """Yields each job and its end, as soon as it has ended, until the timeout. With `timeout=0` it checks once."""
    over = timeout is not None and is_over(timeout)
    waiting = _Waiting(app, ids, timeout)
    return waiting.ended_by_now() if over else waiting.ends()


def end_within(app: App, job_id: str, seconds: float | None) -> Ended | None:
    """How a job has ended; None when it goes on for longer than this."""
    with closing(ends_of(app, [job_id], seconds)) as ends:
        for _, end in ends:
            return unless_error(end)
    return None


def progress_until_end(app: App, job_id: str) -> Generator[Progress]:
    """Yields the progress of a job, until it ends."""
    newest = Newest()
    with closing(_Waiting(app, [job_id], None, follows=True).news()) as news:
        for _, new in news:
            if isinstance(new, Reported):
                if (progress := newest.news_in(new)) is not None:
                    yield progress
            elif isinstance(new, Exception) and not isinstance(new, ResultExpired):
                raise new
    # The end may have been found by a look, and the last message may be lost.
    if (last := newest.news_in(converse(app, progress_of(app, job_id)))) is not None:
        yield last


def unless_error(end: End) -> Ended:
    """The end; raises the error in its place."""
    if isinstance(end, Exception):
        raise end
    return end


class _Waiting:
    """One thread that waits for the ends of jobs. It subscribes before it looks, so an end after the look arrives as a
    message. It looks again from time to time, because messages can be lost."""

    def __init__(self, app: App, ids: Iterable[str], timeout: float | None, *, follows: bool = False) -> None:
        """With `follows`, `news` yields the progress of the jobs as well."""
        self._app = app
        self._going_on: dict[str, str | None] = dict.fromkeys(ids)
        """The jobs that have not ended yet, with their tasks as far as they are known."""
        for job_id in self._going_on:
            split_id(job_id)
        self._followed = frozenset(self._going_on) if follows else frozenset[str]()
        self._deadline = math.inf if timeout is None else clock.monotonic() + timeout

    def ended_by_now(self) -> Generator[tuple[str, End]]:
        """Yields each job that has ended already."""
        patience = Patience(self._app.settings.enqueue_timeout, self._app.address)
        yield from _ends_among(self._look("", patience))

    def ends(self) -> Generator[tuple[str, End]]:
        """Yields each job when it ends."""
        with closing(self.news()) as news:
            yield from _ends_among(news)

    def news(self) -> Generator[tuple[str, End | Reported]]:
        """Yields each job when it ends, and the progress of those that are followed."""
        channel, pauses = channel_name(self._app.namespace, process_name()), _pauses()
        progress = [OF_PROGRESS + job_id for job_id in self._followed]
        with self._app.blocking.inbox.wait_for(channel, *self._going_on, newest=progress) as ticket:
            while self._going_on:
                try:
                    patience = self._patience()
                    hearing = _subscribed(self._app, ticket, patience)
                    found = self._look(channel if hearing else "", patience)
                except BrokerUnavailable:
                    if clock.monotonic() < self._deadline:
                        raise
                    return
                yield from found
                if not self._going_on:
                    return
                if hearing:
                    yield from self._messages(ticket)
                else:
                    time.sleep(min(next(pauses), self._left()))
                if clock.monotonic() >= self._deadline:
                    return

    def _left(self) -> float:
        return max(0.0, self._deadline - clock.monotonic())

    def _patience(self) -> Patience:
        # Even with a very short timeout there must be enough time to look once.
        seconds = min(self._app.settings.enqueue_timeout, max(self._left(), _SHORTEST_LOOK))
        return Patience(seconds, self._app.address, renewable=False)

    def _look(self, channel: str, patience: Patience) -> list[tuple[str, End | Reported]]:
        """Ask for every job that goes on; returns those that have ended, and progress. The error of one job counts as
        its end here."""
        ids = list(self._going_on)
        asked = watched(self._app.namespace, channel, ids, self._app.lifetimes, self._followed)
        looks = self._app.blocking.converse(patient(asked, patience))
        found: list[tuple[str, End | Reported]] = []
        for job_id, look in zip(ids, looks, strict=True):
            if isinstance(look, BrokerUnavailable) and look.retriable:
                raise look
            end = _end(job_id, look)
            if end is not None:
                del self._going_on[job_id]
                found.append((job_id, end))
            elif not isinstance(look, Exception):
                self._going_on[job_id] = look[1]
                if (reported := from_wire(look[2])) is not None:
                    found.append((job_id, reported))
        return found

    def _messages(self, ticket: Ticket) -> Iterator[tuple[str, End | Reported]]:
        """Yields the ends and the progress that arrive as messages, until it is time to look again. A slow reader gets
        the newest progress of the messages that have arrived meanwhile."""
        look_again = min(clock.monotonic() + RECHECK, self._deadline)
        newest: dict[str, Reported] = {}
        while self._going_on:
            message = ticket.message(0.0 if newest else max(0.0, look_again - clock.monotonic()))
            if message is None and not newest:
                return
            topic, _, envelope = (message or b"").partition(b"\n")
            job_id = topic.decode()
            if job_id.startswith(OF_PROGRESS):
                if (reported := from_wire(envelope)) is not None:
                    newest[job_id.removeprefix(OF_PROGRESS)] = reported
                continue  # a later message may be newer
            reports, newest = newest, {}
            yield from reports.items()
            if job_id in self._going_on:
                yield job_id, Ended(self._going_on.pop(job_id), envelope)


def _ends_among(news: Iterable[tuple[str, End | Reported]]) -> Iterator[tuple[str, End]]:
    for job_id, new in news:
        if not isinstance(new, Reported):
            yield job_id, new


def _end(job_id: str, look: Look | Exception) -> End | None:
    if isinstance(look, Exception):
        return look
    try:
        return ended(job_id, look)
    except ResultExpired as error:
        return error


def _subscribed(app: App, ticket: Ticket, patience: Patience) -> bool:
    """Subscribe; False when the server refuses the subscription, and the caller has to poll."""
    while True:
        try:
            ticket.open(min(patience.left(), ANSWER_TIMEOUT))
            return True
        except Exception as error:
            if isinstance(error, ReplyError) and refuses_to_publish(error):
                report_refusal(app.namespace, error)
                return False
            pause = patience.pause_after(error)
        time.sleep(pause)


def _pauses() -> Iterator[float]:
    """The seconds between two looks of a caller that polls."""
    pause = FIRST_POLL
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_POLL)


def converse(app: App, talk: Talk[A]) -> A:
    """Run a conversation, step by step; raises BrokerUnavailable when Redis does not reply."""
    return app.blocking.converse(patient(talk, Patience(app.settings.enqueue_timeout, app.address)))


def each(app: App, finding: Finding[A]) -> Iterator[A]:
    """Run a conversation and yield each value as soon as it is found."""
    finds = Finds(finding)
    with closing(finding):
        while (found := converse(app, finds.next())) is not None:
            yield found
