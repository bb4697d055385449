"""Makes the jobs of schedules: each tick is claimed once, however many executors try.

Every executor has a ticker, and none is a leader: a script claims the tick, by the server's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.dispatch import first_page
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verbs.schedules import Claim, Look, Position, Seen
from fennelq.middleware import Senders
from fennelq.model.events import JobSent
from fennelq.model.failure import last_failure
from fennelq.model.job import JobInfo, split_id
from fennelq.model.schedule import WireSchedule
from fennelq.model.wire import AnyWireJob
from fennelq.worker.bus import HandOverWaits, SchedulesChanged
from fennelq.worker.duties.declaring import Declaration
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.state import State

_logger = log.get("fennelq.ticker")

_LONGEST = 5.0
_STUCK_FOR = 1.0
_PER_STUCK_PAGE = 0.25
_NAMED_AGAIN = 60.0
_MOST_NAMED = 20
_UNFINISHED_FOR = 0.25
_MOST_QUEUED = 1000


class Ticker(Service):
    """Looks for due schedules, and declares the schedules of the code.

    A tick() claims one page of due schedules and declares one page, so that neither work delays the other.
    """

    name = "ticker"
    punctual = True

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._keys, self._broker = AppKeys(state.namespace), state.broker
        self._again = False
        self.read: Callable[[bytes], WireSchedule] = lru_cache(maxsize=256)(WireSchedule.from_wire)
        """Reads a definition; raises ValueError when only a later version can read it."""
        self._declaration = Declaration(state)
        self._stuck = Stuck()
        self._log = LogThrottle("declaring schedules", state.outage)
        self._lost: frozenset[Seen] = frozenset()
        state.bus.subscribe(SchedulesChanged, lambda _: self.woken.set())

    async def tick(self) -> float:
        """Claim due schedules; returns the seconds until the next look."""
        longest = min(self._state.longest_sleep, _LONGEST)
        look = await self._look(longest)
        self._lost &= frozenset(look.due)
        declared = await self._declare(look)
        if look.turn and self._is_handing(look):
            self._state.bus.publish(HandOverWaits())
        claims = [self._unless_stuck(seen, partial(self._claim, look=look)) for seen in look.due]
        starts = [self._unless_stuck(seen, self._start_queued) for seen in look.waiting]
        claimed, started = await asyncio.gather(asyncio.gather(*claims), asyncio.gather(*starts))
        goes_on = self._stuck.pass_over(look, moved=any(claimed))
        if declared or goes_on or any(claimed) or any(started):
            return 0.0
        return min(_pause(look, longest, handing=self._is_handing(look)), self._stuck.pause)

    async def _look(self, longest: float) -> Look:
        code, after = self._declaration, self._stuck.begin()
        verb = verbs.schedules.look(
            self._keys,
            code.service,
            code.version,
            again=self._again,
            longest_ms=round(longest * 1000),
            after=after,
        )
        look = await self._broker.run(verb)
        self._again = True
        return look

    def _is_handing(self, look: Look) -> bool:
        """Whether the outbox of the app has jobs for a courier. Entries that the courier of this executor has left
        there do not count: otherwise they would wake it four times a second, for as long as they exist."""
        return look.handing not in (0, self._state.left_in_outbox)

    async def _declare(self, look: Look) -> bool:
        """Declare a page. An error is only logged, so that due schedules still run."""
        try:
            goes_on = await self._declaration.go_on(look)
        except Exception as error:
            self._log.warn(error)
            return False
        self._log.over()
        return goes_on

    # Claiming

    async def _unless_stuck(self, seen: Seen, work: Callable[[Seen], Awaitable[bool]]) -> bool:
        """Do the work for one schedule. After an error (it cannot be read, its queue cannot be reached), leave this
        schedule to other executors, and go on with the others."""
        try:
            return await work(seen)
        except Exception as error:
            self._stuck.add(seen.name, error)
            return False

    async def _claim(self, seen: Seen, look: Look) -> bool:
        """Claim the due ticks of a schedule. True also when another executor was first: then look again."""
        schedule = self.read(seen.definition)
        before = await self._job(seen.last_job)
        busy, senders = _goes_on(seen, before), self._state.app.middleware.senders
        claim = decide(schedule, seen, look, busy=busy, before=before, senders=senders)
        if await self._broker.run(verbs.schedules.tick(self._keys, claim)):
            self._made(seen, claim.jobs)
        elif seen in self._lost:
            raise ValueError("the claim is refused, though nothing of the schedule has changed")
        else:
            self._lost |= {seen}
        return True

    async def _start_queued(self, seen: Seen) -> bool:
        """Start the next of the waiting runs, if the run before it has ended."""
        before = await self._job(seen.last_job)
        if _goes_on(seen, before):
            return False
        schedule = self.read(seen.definition)
        due, *rest = verbs.schedules.runs_of(seen.queued)
        (job,) = as_sent(self._state.app.middleware.senders, [verbs.schedules.job_of(schedule, due)])
        if not await self._broker.run(
            verbs.schedules.unqueue(self._keys, seen, rest, due, job, last_failure(before))
        ):
            return False
        self._made(seen, [job])
        return True

    def _made(self, seen: Seen, jobs: Sequence[AnyWireJob]) -> None:
        if jobs:
            self._state.bus.publish(HandOverWaits())
        for job in jobs:
            _logger.info("tick", schedule=seen.name, job_id=job.id, task=job.task)
            if self._state.app.subscribers.to_sent:
                self._state.app.subscribers.tell(JobSent(id=job.id, task=job.task, queue=job.queue))

    async def _job(self, job_id: str) -> JobInfo | None:
        if not job_id:
            return None
        queue, key = split_id(job_id)
        return await self._broker.ask(verbs.jobs.record(queue_keys(self._keys.app, queue), key))


def decide(
    schedule: WireSchedule,
    seen: Seen,
    look: Look,
    *,
    busy: bool,
    before: JobInfo | None,
    senders: Senders | None = None,
) -> Claim:
    """Decide which of the due ticks run, which are left out, and which wait. A pure function, if the senders are."""
    missed, following = schedule.last_ticks(seen.next_ms, look.awake_ms)
    late, following = schedule.first_ticks(following, look.now_ms)
    waiting = verbs.schedules.runs_of(seen.queued)
    start, queue = _overlapping(schedule, schedule.caught_up(missed) + late, busy=busy, waiting=waiting)
    jobs = _that_fit([verbs.schedules.job_of(schedule, tick) for tick in start])
    if senders is not None:
        jobs = _that_fit(as_sent(senders, jobs))
    ticks = missed + late
    if len(jobs) < len(start):
        # The other ticks stay due, and the next look claims them.
        following = start[len(jobs)]
        ticks = [tick for tick in ticks if tick < following]
    error, error_ms = last_failure(before)
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
    schedule: WireSchedule, runs: list[int], *, busy: bool, waiting: list[int]
) -> tuple[list[int], list[int]]:
    """The runs that start now, and all runs that wait afterwards."""
    if schedule.overlap == "allow":
        return runs, waiting
    if schedule.overlap == "skip":
        return ([] if busy else runs[:1]), waiting
    now = 0 if busy or waiting else 1
    return runs[:now], (waiting + runs[now:])[: max(_MOST_QUEUED, len(waiting))]


def as_sent(senders: Senders | None, jobs: list[AnyWireJob]) -> list[AnyWireJob]:
    """The jobs that the senders return. Every error of a sender is an Exception here, which leaves the schedule to
    other executors for a while: a SystemExit would end this one."""
    if senders is None:
        return jobs
    try:
        return senders.through_all(jobs)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"a sender raised {type(error).__name__}") from error


def _that_fit(jobs: list[AnyWireJob]) -> list[AnyWireJob]:
    """The first jobs, as many as one script may write."""
    return first_page(jobs, lambda job: job.size)


def _goes_on(seen: Seen, before: JobInfo | None) -> bool:
    """Whether the last job has not ended yet. The outbox (`seen`) is read first and the record second, so a job that
    the courier moves in between is still found."""
    return seen.last_job_on_its_way or (before is not None and not before.status.ended)


def _pause(look: Look, longest: float, *, handing: bool) -> float:
    waits = [longest]
    if look.wait_ms >= 0:
        waits.append(look.wait_ms / 1000)
    if look.queued or handing:
        waits.append(_UNFINISHED_FOR)
    return min(waits)


class Stuck:
    """The due schedules that this executor cannot claim: a later version has written them, or they are broken.

    They stay due, for executors that can claim them. To find other due schedules, this executor reads past the pages
    that contain only such schedules, and remembers its position. From time to time it starts again at the first page;
    the more pages it skipped, the later.
    """

    def __init__(self) -> None:
        self._after: Position | None = None
        self._pages, self._passing, self._next_pass = 0, False, 0.0
        self._why: dict[str, str] = {}
        self._named: dict[str, float] = {}

    def begin(self) -> Position | None:
        """The position at which the next look begins."""
        if not self._passing and clock.monotonic() >= self._next_pass:
            self._after, self._pages, self._passing = None, 0, True
            self._why.clear()
        return self._after

    def add(self, name: str, error: Exception) -> None:
        """Record that this schedule could not be claimed."""
        self._why[name] = f"{type(error).__name__}: {error}"[:500]

    def pass_over(self, look: Look, *, moved: bool) -> bool:
        """Finish the page of this look; True when the next look should follow at once."""
        if moved:
            # The claimed schedules are not on this page any more, or are due again: look at the same page again.
            return True
        if look.due and look.last is not None:
            self._after, self._pages = look.last, self._pages + 1
        if look.more:
            return True
        if self._passing:
            self._passing = False
            self._next_pass = clock.monotonic() + max(0, self._pages - 1) * _PER_STUCK_PAGE
        self._name_them()
        return False

    @property
    def pause(self) -> float:
        """The longest time to sleep."""
        return _STUCK_FOR if self._why else _LONGEST

    def _name_them(self) -> None:
        """Log the names, all of a pass in one line, and each name at most once a minute."""
        now = clock.monotonic()
        self._named = {
            name: at for name, at in self._named.items() if name in self._why and at + _NAMED_AGAIN > now
        }
        new = sorted(self._why.keys() - self._named.keys())
        if new:
            self._named |= dict.fromkeys(new, now)
            _logger.warning(
                "schedules_stuck", schedules=new[:_MOST_NAMED], number=len(new), error=self._why[new[0]]
            )
