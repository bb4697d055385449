"""Makes recurring jobs: claims each tick once, whoever else tries.

Every executor has a ticker and none leads: a tick is claimed by a script, on the server's clock.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from fennelq import clock, log
from fennelq.broker.batch import pages
from fennelq.broker.broker import Broker
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verbs import inspect, lifecycle
from fennelq.broker.verbs import schedule as verbs
from fennelq.broker.verbs.schedule import Claim, Look, Seen
from fennelq.model.job import AnyJob, JobInfo, split_id
from fennelq.model.schedule import Schedule
from fennelq.schedules import failure_told
from fennelq.service import Complaints

_logger = log.get("fennelq.ticker")

_LONGEST = 5.0
_STUCK_FOR = 1.0
_UNFINISHED_FOR = 0.25
_DECLARE_AGAIN = 10.0
_PATIENCE_MS = 60_000
_MOST_QUEUED = 1000


class Ticker:
    """Looks for due schedules, and declares those of the code."""

    name = "ticker"
    punctual = True

    def __init__(
        self,
        app: str,
        broker: Broker,
        declared: Callable[[], Mapping[str, Schedule]],
        hand: Callable[[], None],
        longest: Callable[[], float],
    ) -> None:
        """`hand` is called when there is something to be handed over. `longest` says how long it may sleep: it is woken
        when a schedule changes, if messages arrive."""
        self._keys, self._broker, self._hand, self._longest = AppKeys(app), broker, hand, longest
        self._declared, self._version = declared, ""
        self._declare_at, self._again, self._refused = 0.0, False, False
        self._read = lru_cache(maxsize=256)(Schedule.from_wire)
        self._complaints = Complaints("recurring jobs")
        self.woken = asyncio.Event()

    async def tick(self) -> float:
        """Claim what is due; answers when to look again."""
        self._version = self._version or _version_of(self._declared().values())
        longest = min(self._longest(), _LONGEST)
        verb = verbs.look(self._keys, self._version, again=self._again, longest_ms=round(longest * 1000))
        look = await self._broker.run(verb)
        self._again = True
        if self._may_declare(look):
            await self._declare(look.now_ms)
            return 0.0
        claims = [self._unless_stuck(seen, self._claim(seen, look)) for seen in look.due]
        starts = [self._unless_stuck(seen, self._start_queued(seen)) for seen in look.waiting]
        if look.turn and look.handing:
            self._hand()
        moved = any(await asyncio.gather(*claims, *starts))
        return 0.0 if moved else _pause(look, longest)

    # Declaring

    def _may_declare(self, look: Look) -> bool:
        """Nobody declares (any more), or another version of the code does, and may have gone by now."""
        if look.version == self._version:
            return False
        return not look.version or clock.monotonic() >= self._declare_at

    async def _declare(self, now_ms: int) -> None:
        schedules = [(s.name, s.to_wire(), s.next_after(now_ms)) for s in self._declared().values()]
        if not await self._broker.run(verbs.declare(self._keys, self._version, _PATIENCE_MS, schedules)):
            self._say_refused(len(schedules))
        self._declare_at = clock.monotonic() + _DECLARE_AGAIN

    def _say_refused(self, schedules: int) -> None:
        if not self._refused:
            _logger.info("schedules_of_a_later_version_hold", declared_here=schedules)
        self._refused = True

    # Claiming

    async def _unless_stuck(self, seen: Seen, work: Awaitable[bool]) -> bool:
        """One schedule that cannot be read, or whose queue cannot be reached, is left to others and holds up none."""
        try:
            return await work
        except Exception as error:
            self._complaints.about(error, schedule=seen.name)
            return False

    async def _claim(self, seen: Seen, look: Look) -> bool:
        """Claim the due ticks of a schedule; True, as nothing of it is due any more, whoever was first."""
        schedule = self._read(seen.definition)
        before = await self._job(seen.last_job)
        claim = decide(schedule, seen, look, busy=_goes_on(seen, before), before=before)
        if await self._broker.run(verbs.tick(self._keys, claim)):
            self._made(seen, claim.jobs)
        return True

    async def _start_queued(self, seen: Seen) -> bool:
        """Start the next of the runs that wait for the one before them, if that has ended."""
        if _goes_on(seen, await self._job(seen.last_job)):
            return False
        schedule = self._read(seen.definition)
        due, *rest = verbs.runs_of(seen.queued)
        job = verbs.job_of(schedule, due)
        if not await self._broker.run(verbs.unqueue(self._keys, seen, rest, due, job)):
            return False
        self._made(seen, [job])
        return True

    def _made(self, seen: Seen, jobs: Sequence[AnyJob]) -> None:
        if jobs:
            self._hand()
        for job in jobs:
            _logger.info("tick", schedule=seen.name, job_id=job.id, task=job.task)

    async def _job(self, job_id: str) -> JobInfo | None:
        if not job_id:
            return None
        queue, key = split_id(job_id)
        return await self._broker.ask(inspect.record(queue_keys(self._keys.app, queue), key))


def decide(schedule: Schedule, seen: Seen, look: Look, *, busy: bool, before: JobInfo | None) -> Claim:
    """What becomes of the ticks that are due: which run, which are left out, which wait. Pure."""
    missed, following = schedule.last_ticks(seen.next_ms, look.awake_ms)
    late, following = schedule.first_ticks(following, look.now_ms)
    waiting = verbs.runs_of(seen.queued)
    start, queue = _overlapping(schedule, schedule.caught_up(missed) + late, busy=busy, waiting=waiting)
    jobs = _that_fit([verbs.job_of(schedule, tick) for tick in start])
    ticks = missed + late
    if len(jobs) < len(start):
        # The rest stays due, and is claimed next.
        following = start[len(jobs)]
        ticks = [tick for tick in ticks if tick < following]
    error, error_ms = failure_told(before)
    return Claim(
        seen=seen,
        next_ms=following,
        last_run_ms=start[len(jobs) - 1] if jobs else None,
        skipped=len(ticks) - len(jobs) - (len(queue) - len(waiting)),
        queued=queue if len(queue) > len(waiting) else None,
        last_error=error,
        last_error_ms=error_ms,
        jobs=jobs,
    )


def _overlapping(
    schedule: Schedule, runs: list[int], *, busy: bool, waiting: list[int]
) -> tuple[list[int], list[int]]:
    """Which of the runs start now, and all that wait then."""
    if schedule.overlap == "allow":
        return runs, waiting
    if schedule.overlap == "skip":
        return ([] if busy else runs[:1]), waiting
    now = 0 if busy or waiting else 1
    return runs[:now], (waiting + runs[now:])[: max(_MOST_QUEUED, len(waiting))]


def _that_fit(jobs: list[AnyJob]) -> list[AnyJob]:
    """As many of the jobs as one script may write."""
    fit = pages(jobs, lambda job: job.size, lifecycle.MOST_JOBS, lifecycle.MOST_BYTES)
    return fit[0] if fit else []


def _goes_on(seen: Seen, before: JobInfo | None) -> bool:
    """Whether the last job has not ended yet. Whether it is on its way was asked first: what arrives in the meantime is
    found in its queue."""
    return seen.last_job_on_its_way or (before is not None and not before.status.ended)


def _pause(look: Look, longest: float) -> float:
    waits = [longest]
    if look.wait_ms >= 0:
        waits.append(look.wait_ms / 1000)
    if look.due:
        waits.append(_STUCK_FOR)
    if look.queued or look.handing:
        waits.append(_UNFINISHED_FOR)
    return min(waits)


def _version_of(declared: Iterable[Schedule]) -> str:
    """A version of the code is what it declares."""
    return hashlib.sha1(b"\n".join(sorted(schedule.to_wire() for schedule in declared))).hexdigest()
