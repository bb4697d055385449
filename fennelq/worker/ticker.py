"""Makes recurring jobs: claims each tick once, whoever else tries.

Every executor has a ticker and none leads: a tick is claimed by a script, on the server's clock.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import orjson

from fennelq import clock, log
from fennelq.broker.broker import Broker
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verbs import inspect
from fennelq.broker.verbs import schedule as verbs
from fennelq.broker.verbs.schedule import Claim, Due, Look
from fennelq.model.job import JobInfo, split_id
from fennelq.model.schedule import Schedule

_logger = log.get("fennelq.ticker")

LOOK_EVERY = 1.0
_ASLEEP_AFTER_MS = 2 * round(LOOK_EVERY * 1000) + 500
"""Nobody has looked for so long: what came due meanwhile was missed, and is not merely late."""
_DECLARE_EVERY = 20.0
_PATIENCE_MS = 60_000
_MOST_QUEUED = 1000


class Ticker:
    """Looks for due schedules, and declares those of the code."""

    name = "ticker"

    def __init__(
        self,
        app: str,
        broker: Broker,
        declared: Callable[[], Mapping[str, Schedule]],
        hand: Callable[[], None],
    ) -> None:
        self._keys, self._broker, self._declared, self._hand = AppKeys(app), broker, declared, hand
        self._declare_at = 0.0
        self.woken = asyncio.Event()

    async def tick(self) -> float:
        """Claim what is due; answers when to look again."""
        if clock.monotonic() >= self._declare_at:
            await self._declare()
        look = await self._broker.run(verbs.look(self._keys))
        for due in look.due:
            await self._claim(due, look)
        if look.queued:
            await self._start_queued()
        if look.handing or look.due or look.queued:
            self._hand()
        return self._pause(look)

    def _pause(self, look: Look) -> float:
        if look.due:
            return 0.0
        waits = [LOOK_EVERY]
        if look.wait_ms >= 0:
            waits.append(look.wait_ms / 1000)
        if look.queued:
            waits.append(LOOK_EVERY / 4)
        return min(waits)

    # Declaring

    async def _declare(self) -> None:
        now = await self._broker.ask(verbs.server_now())
        schedules = [(s.name, s.to_wire(), s.next_after(now)) for s in self._declared().values()]
        digest = hashlib.sha1(b"\n".join(raw for _, raw, _ in sorted(schedules))).hexdigest()
        if not await self._broker.run(verbs.declare(self._keys, digest, _PATIENCE_MS, schedules)):
            _logger.info("schedules_of_a_later_version", declared=len(schedules))
        self._declare_at = clock.monotonic() + _DECLARE_EVERY

    # Claiming

    async def _claim(self, due: Due, look: Look) -> None:
        try:
            schedule = Schedule.from_wire(due.definition)
        except ValueError as error:
            _logger.error("schedule_unreadable", schedule=due.name, error=str(error))
            await self._broker.run(verbs.tick(self._keys, _nothing(due, str(error))))
            return
        before = await self._job(due.last_job)
        busy = due.last_job_on_its_way or (before is not None and not before.status.ended)
        claim = decide(schedule, due, look, busy=busy, waiting=await self._waiting(schedule), before=before)
        if await self._broker.run(verbs.tick(self._keys, claim)):
            for job in claim.jobs:
                _logger.info("tick", schedule=due.name, job_id=job.id, task=job.task)

    async def _job(self, job_id: str) -> JobInfo | None:
        if not job_id:
            return None
        queue, key = split_id(job_id)
        return await self._broker.ask(inspect.record(queue_keys(self._keys.app, queue), key))

    async def _waiting(self, schedule: Schedule) -> list[int]:
        if schedule.overlap != "queue":
            return []
        return _dues((await self._broker.ask(verbs.queued(self._keys))).get(schedule.name))

    # Runs that wait for the one before them

    async def _start_queued(self) -> None:
        for name, raw in (await self._broker.ask(verbs.queued(self._keys))).items():
            state = await self._broker.ask(verbs.state(self._keys, name))
            before = await self._job(state.get("last_job", b"").decode())
            if state and (before is None or before.status.ended):
                schedule = Schedule.from_wire(state["definition"])
                first, *rest = _dues(raw)
                job = verbs.job_of(schedule, schedule.job_key(first), schedule.put_off(first))
                await self._broker.run(verbs.unqueue(self._keys, name, raw, rest, first, job))


def decide(
    schedule: Schedule, due: Due, look: Look, *, busy: bool, waiting: Sequence[int], before: JobInfo | None
) -> Claim:
    """What becomes of the ticks that are due: which run, which are left out, which wait. Pure."""
    ticks, following = schedule.ticks(due.next_ms, look.now_ms)
    asleep = look.now_ms - look.seen_ms > _ASLEEP_AFTER_MS
    missed = [tick for tick in ticks if asleep and tick > look.seen_ms]
    runs = [tick for tick in ticks if tick not in set(missed)] + schedule.caught_up(missed)
    start, queue = _overlapping(schedule, runs, busy=busy, waiting=waiting)
    error = before.error.message if before is not None and before.error is not None else ""
    return Claim(
        due=due,
        next_ms=following,
        last_run_ms=start[-1] if start else None,
        skipped=len(ticks) - len(start) - (len(queue) - len(waiting)),
        queued=queue if len(queue) > len(waiting) else None,
        last_error=error[:500],
        jobs=[verbs.job_of(schedule, schedule.job_key(tick), schedule.put_off(tick)) for tick in start],
    )


def _overlapping(
    schedule: Schedule, runs: list[int], *, busy: bool, waiting: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Which of the runs start now, and all that wait then."""
    if schedule.overlap == "allow":
        return runs, list(waiting)
    if schedule.overlap == "skip":
        return ([] if busy else runs[:1]), list(waiting)
    if busy or waiting:
        return [], [*waiting, *runs][:_MOST_QUEUED]
    return runs[:1], runs[1:]


def _nothing(due: Due, error: str) -> Claim:
    """A schedule that cannot be read has no next time, until somebody mends it."""
    return Claim(due, None, None, 0, None, error[:500], [])


def _dues(raw: bytes | None) -> list[int]:
    return [int(due) for due in _list(raw)]


def _list(raw: bytes | None) -> Iterable[int]:
    return orjson.loads(raw) if raw else ()
