"""Applies a filter such as `header:tenant=acme "no card"` to dead jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fennelq import clock
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Talk, ask, pause
from fennelq.broker.verbs.dead import DeadJob
from fennelq.broker.verbs.search import Criteria, find
from fennelq.errors import FennelqError, InvalidFilter
from fennelq.manage.large_records import PAUSES, sure
from fennelq.model.query import Query, State, Term, moment_text, parse

_OF_QUEUES: Final = frozenset({"state", "queue", "id", "since", "until"})
"""The words that say in which queues to look, and where. The script looks for the others."""


class Where(NamedTuple):
    """A filter of dead jobs."""

    query: Query

    @classmethod
    def of(cls, text: str, now_ms: int) -> Where | None:
        """The filter that a text describes at this moment; None when every dead job meets it. Raises InvalidFilter."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidFilter(f"a filter is a text such as 'task:welcome since:2h', not {text!r:.100}")
        query = parse(text, clock.from_ms(now_ms).astimezone())
        others = sorted(state for state in query.values("state") if state != State.DEAD)
        if others or State.DEAD not in query.states:
            unable = f"state:{others[0]}" if others else f"-state:{State.DEAD}"
            raise InvalidFilter(
                f"{unable} selects no dead job: leave it out, or see `fennelq job list --where`"
            )
        return cls(query) if query else None

    def has_queue(self, queue: str) -> bool:
        """Whether it lets jobs of this queue match."""
        wanted, excluded = self.query.values("queue"), self.query.values("queue", excluded=True)
        return (not wanted or queue in wanted) and queue not in excluded

    def met(self, keys: QueueKeys, page: Sequence[DeadJob]) -> Talk[list[DeadJob]]:
        """Those of these jobs that have what the filter asks for besides its queues and times.

        It looks at all jobs that died between the first and the last of these. After each step, it pauses four times as
        long as the step took."""
        terms = [term for term in self.query.terms if term.word not in _OF_QUEUES]
        if not (terms and page):
            return list(page)
        died = [dead.died_ms for dead in page]
        times = (Term("since", moment_text(min(died))), Term("until", moment_text(max(died))))
        criteria, found, cursor = Criteria(Query.of((*terms, *times))), set[str](), ""
        while True:
            began = clock.monotonic()
            step = yield from ask(find(keys, ["dlq"], criteria, cursor))
            if step.problem:
                raise FennelqError(f"queue {keys.queue!r} cannot be searched: {step.problem}")
            hits, _ = yield from sure(keys, step, criteria)
            found.update(hit.mark for hit in hits)
            yield from pause((clock.monotonic() - began) * PAUSES)
            if step.done:
                return [dead for dead in page if dead.entry in found]
            cursor = step.cursor
