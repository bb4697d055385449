"""Lists, replays and removes dead jobs."""

from __future__ import annotations

from collections import Counter
from typing import Literal, Unpack

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all, together
from fennelq.broker.verb import MOST_JOBS
from fennelq.manage.choices import check_choice
from fennelq.manage.dead_letter import DeadLetter, Group, ReplayReport, detailed, letter_of
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation, Scan
from fennelq.manage.pace import Pace
from fennelq.manage.queues import OnProgress, queues_of
from fennelq.manage.search import (
    Filters,
    Keys,
    Page,
    Search,
    Wanted,
    dlq_entry,
    keys_in_queues,
)
from fennelq.model.checks import valid_name
from fennelq.model.job import split_id

Order = Literal["newest", "oldest"]


# Defined here, because inside the class `list` is a method.
Letters = list[DeadLetter]
Groups = list[Group]
Names = list[str]


class DeadLetterTalks(Family):
    """The operations on dead jobs."""

    _attribute, _item = "dlq", "letter"

    @Operation
    def list(
        self, *, limit: int | None = 100, order: Order = "newest", **filters: Unpack[Filters]
    ) -> Talk[Letters]:
        """The dead jobs that match the filters, of all queues together; `limit=None` returns all."""
        check_choice("order", order, Order)
        newest = order == "newest"
        found: Letters = []
        for search in (yield from self._searches(filters)):
            found += map(letter_of, (yield from search.first(limit, newest)))
        found.sort(key=lambda letter: letter.died_at, reverse=newest)
        return found[:limit]

    @Scan
    def scan(self, **filters: Unpack[Filters]) -> Finding[DeadLetter]:
        """Yields every dead job that matches the filters, queue by queue, the oldest first, read a page at a time."""
        return self._scan(filters)

    @Operation
    def get(self, job_id: str) -> Talk[DeadLetter | None]:
        """Everything about a dead job; None when it is not dead. Raises InvalidJobId when the text is not a job id."""
        queue, key = split_id(job_id)
        keys = queue_keys(self._app.namespace, queue)
        info = yield from ask(verbs.jobs.record(keys, key))
        entry = dlq_entry(info)
        dead = (yield from ask(verbs.dead.dead_entry(keys, entry))) if entry else None
        return detailed(dead, info) if dead and info else None

    @Operation
    def count(self, **filters: Unpack[Filters]) -> Talk[int]:
        """The number of dead jobs that match the filters."""
        searches = yield from self._searches(filters)
        return sum((yield from together(search.count() for search in searches)))

    @Operation
    def groups(self, **filters: Unpack[Filters]) -> Talk[Groups]:
        """The numbers of dead jobs by task and error type, the largest first."""
        kinds, letters = Counter[tuple[str, str]](), Finds(self._scan(filters))
        while (letter := (yield from letters.next())) is not None:
            kinds[letter.task, letter.error_type] += 1
        return [Group(task, error, jobs) for (task, error), jobs in kinds.most_common()]

    @Operation
    def replay(
        self,
        *,
        limit: int | None = None,
        rate: float | None = None,
        progress: OnProgress | None = None,
        **filters: Unpack[Filters],
    ) -> Talk[ReplayReport]:
        """Put dead jobs back, each as the same job with all its retries again, the oldest first.

        It does not replay jobs that die while it runs. When it is interrupted and run again, it creates no
        duplicates: a job is either still dead or back in its queue. `rate` limits the jobs per second.
        """
        report, pace = ReplayReport(), Pace(rate)
        work = Finds(self._work(filters, limit, pace.most))
        while (found := (yield from work.next())) is not None:
            search, page = found
            yield from pace.wait_for(len(page))
            report += yield from search.replay(page)
            if progress:
                progress(report.total)
        return report

    @Operation
    def purge(
        self, *, limit: int | None = None, progress: OnProgress | None = None, **filters: Unpack[Filters]
    ) -> Talk[int]:
        """Remove dead jobs for good, with their records and results, the oldest first; returns how many."""
        removed = done = 0
        work = Finds(self._work(filters, limit, MOST_JOBS))
        while (found := (yield from work.next())) is not None:
            search, page = found
            removed += yield from search.forget(page)
            done += len(page)
            if progress:
                progress(done)
        return removed

    def _scan(self, filters: Filters) -> Finding[DeadLetter]:
        for search in (yield from self._searches(filters)):
            read = Finds(search.pages())
            while (page := (yield from read.next())) is not None:
                for dead in page:
                    yield Found(letter_of(dead))

    def _work(self, filters: Filters, limit: int | None, most: int) -> Finding[tuple[Search, Page]]:
        """The jobs that match the filters, in pages of at most `most`, and at most `limit` in all."""
        done = 0
        for search in (yield from self._searches(filters)):
            read = Finds(search.pages())
            while (found := (yield from read.next())) is not None:
                page = found if limit is None else found[: limit - done]
                for part in pages(page, most):
                    yield Found((search, part))
                done += len(page)
                if done == limit:
                    return

    def _searches(self, filters: Filters) -> Talk[Searches]:
        """One search per queue. Its end is the newest job that is dead now: it does not find jobs that die later."""
        wanted = Wanted.of(filters, (yield from ask(verbs.server.now())))
        ids = keys_in_queues(filters["ids"]) if "ids" in filters else None
        queues = yield from self._queues(filters, ids)
        keys = [queue_keys(self._app.namespace, queue) for queue in queues]
        newest = yield from ask_all(verbs.dead.dead(of, "", 1, newest_first=True) for of in keys)
        return [
            Search(of, wanted.until_entry(last[0].entry), None if ids is None else ids[of.queue])
            for of, last in zip(keys, newest, strict=True)
            if last
        ]

    def _queues(self, filters: Filters, ids: dict[str, Keys] | None) -> Talk[Names]:
        wanted = filters.get("queue")
        if wanted is not None:
            names = [valid_name("queue", name) for name in ([wanted] if isinstance(wanted, str) else wanted)]
            return [name for name in names if ids is None or name in ids]
        return sorted((yield from queues_of(self._app)) if ids is None else ids)


class DeadLetters(DeadLetterTalks, Awaiting):
    """The dead-letter queues of an app, one per queue. All operations work in pages, whatever the number of dead
    jobs."""


class BlockingDeadLetters(DeadLetterTalks, Blocking):
    """The dead-letter queues of an app, for code without an event loop: `app.sync.dlq`."""


Searches = list[Search]
