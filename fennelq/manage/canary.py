"""The canary of an operation: some dead jobs go back first, and their ends decide about the others.

The operation records which jobs these are before they go back. A process that continues the operation puts the same
jobs back, if they are still dead, and waits for their ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues, pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask_all, pause
from fennelq.broker.verbs.dead import DeadJob
from fennelq.broker.verbs.search import Criteria, Hit
from fennelq.manage.dead.replaying import Sent, note_ends, why_stopped
from fennelq.manage.dead.search import still_dead
from fennelq.manage.dead.selecting import Kinds
from fennelq.manage.finding import Search
from fennelq.model.job import Status
from fennelq.model.query import Query, Term

if TYPE_CHECKING:
    from fennelq.app import App

CANARY_TIMEOUT: Final = 60.0
_FIRST_LOOK: Final = 0.1
_BETWEEN_LOOKS: Final = 1.0

Phase = Literal["", "chosen", "sent", "passed"]
Send = Callable[[QueueKeys, list[Hit]], Talk[int]]
"""Puts jobs back."""


class Canary:
    """The jobs of an operation that go back first. Its state changes from step to step."""

    def __init__(self, app: App, criteria: Criteria, number: int, timeout: float, state: str = "") -> None:
        """`state` is what `to_text` has returned, in this process or an earlier one."""
        self._app, self._criteria = app, criteria
        self._number, self._timeout = number, timeout
        self._phase, self._jobs = _read(state)
        self.stopped = ""
        """Why the other jobs have to stay dead; empty while nothing speaks against it."""

    def to_text(self) -> str:
        """How far it is, for a later process."""
        # The messages of the deaths are long, and decide about nothing.
        jobs = [[*dead._replace(message="")] for dead in self._jobs]
        return orjson.dumps([self._phase, jobs], default=str).decode()

    def steps(self, most: Callable[[], int], send: Send) -> Finding[int]:
        """Yields the number of jobs that each step has put back. After each step, record what `to_text` returns, before
        the next step begins."""
        if self._phase == "passed":
            return
        if not self._phase:
            self._jobs, self._phase = (yield from self._choose()), "chosen"
            yield Found(0)
        if self._phase == "chosen":
            yield from self._send(most, send)
        yield from self._wait()
        yield Found(0)

    def _choose(self) -> Talk[list[DeadJob]]:
        found, steps = list[DeadJob](), Finds(Search(self._app, self._criteria, most=self._number).pages())
        while len(found) < self._number and (page := (yield from steps.next())) is not None:
            hits = page.hits[: self._number - len(found)]
            entries = yield from ask_all(verbs.dead.dead_entry(page.keys, hit.mark) for hit in hits)
            found += [dead for dead in entries if dead is not None]
        return found

    def _send(self, most: Callable[[], int], send: Send) -> Finding[int]:
        for queue, some in by_queues(self._jobs, lambda dead: dead.queue).items():
            left = some
            while left:
                page, left = left[: most()], left[most() :]
                hits = [Hit(dead.key, dead.entry) for dead in page]
                yield from send(queue_keys(self._app.namespace, queue), hits)
                yield Found(0)
        # Counted once, together with the phase, and by what has become of them: an earlier process may have put some of
        # them back, and could not report that any more.
        back = yield from self._sent()
        infos = yield from ask_all(verbs.jobs.outline(one.keys, one.dead.key) for one in back)
        self._phase = "sent"
        yield Found(sum(info is not None and info.status is not Status.UNKNOWN for info in infos))

    def _wait(self) -> Finding[int]:
        """Look at the jobs until all have ended, or the time is over."""
        sent = yield from self._sent()
        deadline, between = clock.monotonic() + self._timeout, _FIRST_LOOK
        while going_on := [one for one in sent if not one.ended]:
            infos = yield from ask_all(verbs.jobs.outline(one.keys, one.dead.key) for one in going_on)
            yield from note_ends(zip(going_on, infos, strict=True))
            left = deadline - clock.monotonic()
            if left <= 0:
                break
            yield Found(0)
            yield from pause(min(between, left))
            between = min(between * 2, _BETWEEN_LOOKS)
        again = list[DeadJob]()
        for died in (one.died for one in sent if one.died):
            again += [died] if (yield from self._is_as_before(died)) else []
        late = [one for one in sent if not one.ended]
        self.stopped = why_stopped(sent, again, late, self._timeout)
        # Others are chosen when a person wants the operation to go on after all.
        self._phase, self._jobs = "" if self.stopped else "passed", []

    def _sent(self) -> Talk[list[Sent]]:
        """The jobs that are back. One whose key another job holds is still dead, and decides about nothing."""
        sent = list[Sent]()
        for queue, some in by_queues(self._jobs, lambda dead: dead.queue).items():
            keys = queue_keys(self._app.namespace, queue)
            for page in pages(some):
                unmoved = yield from still_dead(keys, page)
                sent += [
                    Sent(keys, dead) for dead in page if dead.entry not in {one.entry for one in unmoved}
                ]
        return sent

    def _is_as_before(self, died: DeadJob) -> Talk[bool]:
        """Whether this death is of a kind that is among the jobs of the operation."""
        kinds, query = Kinds(), self._criteria.query
        kinds.add(self._jobs)
        if kinds.has(died) or died.fingerprint in query.values("fp"):
            return True
        if query.values("fp") or died.fingerprint in query.values("fp", excluded=True):
            return False
        alike = Query.of([*query.terms, Term("fp", died.fingerprint)])
        steps = Finds(Search(self._app, self._criteria._replace(query=alike), most=1).pages())
        while (page := (yield from steps.next())) is not None:
            if page.hits:
                return True
        return False


def _read(text: str) -> tuple[Phase, list[DeadJob]]:
    """The recorded state; the beginning for a text that is none."""
    try:
        found: Any = orjson.loads(text)
        phase, jobs = found
        known: dict[str, Phase] = {"chosen": "chosen", "sent": "sent", "passed": "passed"}
        return known.get(str(phase), ""), [DeadJob(*map(str, job)) for job in jobs]
    except (ValueError, TypeError):
        return "", []
