"""The schedules of an app for the tests of verbs: they run verbs on them and read their keys directly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import orjson

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.verb import Command, as_is
from fennelq.broker.verbs.schedules import Change, Claim, Declared, Look, Position, Seen
from fennelq.model.schedule import WireSchedule
from tests.broker.desk import APP, Bench, shown
from tests.kit.clock import ServerClock
from tests.kit.server import Server

NOW = 1_795_000_000_000
MINUTE = 60_000
NEXT = NOW + 20_000
"""The next whole minute."""
PATIENCE = 60_000
V1, V2 = "v1", "v2"
SHOP, OTHER = "shop.tasks:shop", "billing.tasks:shop"
"""Services."""


def a_schedule(name: str = "report", **given: Any) -> WireSchedule:
    """Every minute."""
    fields: dict[str, Any] = {"task": "app:report", "queue": "mail", "args": b"[[],{}]", "every_ms": MINUTE}
    return WireSchedule(name=name, **fields | given)


class Timetable(Bench[AppKeys]):
    """The schedules of the app `shop`. The clock of the server stands at `NOW`, until a test moves it."""

    def __init__(self, server: Server, clock: ServerClock) -> None:
        super().__init__(server, AppKeys(APP))
        self.clock = clock
        self.removed: list[str] = []
        clock.stop_at(NOW)

    # Verbs with the arguments that most tests give them

    def declare(self, version: str, *schedules: WireSchedule, service: str = SHOP) -> str:
        """Declare these, to the end; returns `done` or `held`. What it removes is in `removed`."""
        self.removed = []
        at = 0
        while (page := self.page(version, schedules, at, service=service)).state == "open":
            at = page.at
        return page.state

    def page(
        self,
        version: str,
        schedules: Sequence[WireSchedule],
        at: int | Literal["again"] = 0,
        *,
        service: str = SHOP,
        most: int = 100,
        total: int | None = None,
    ) -> Declared:
        """Declare one page of these, from `at` on."""
        now = self.clock.now()
        page = schedules if at == "again" else schedules[at : at + most]
        lines = [(one.name, one.to_wire(), one.next_after(now)) for one in page]
        total = len(schedules) if total is None else total
        declared = self.do(verbs.schedules.declare, service, version, PATIENCE, lines, at=at, total=total)
        self.removed += declared.removed
        return declared

    def schedule(
        self, what: Change, name: str = "report", value: bytes | str = "", next_ms: int | None = None
    ) -> int:
        return self.do(verbs.schedules.schedule, what, name, value, next_ms)

    def put(self, schedule: WireSchedule) -> int:
        due = schedule.next_after(self.clock.now())
        return self.schedule("put", schedule.name, schedule.to_wire(), due)

    def look(
        self,
        version: str = V1,
        *,
        service: str = SHOP,
        again: bool = True,
        longest_ms: int = 4000,
        limit: int = 100,
        after: Position | None = None,
    ) -> Look:
        return self.do(
            verbs.schedules.look,
            service,
            version,
            again=again,
            longest_ms=longest_ms,
            limit=limit,
            after=after,
        )

    def seen(self, name: str = "report") -> Seen:
        """The schedule, which is due."""
        (found,) = [seen for seen in self.look().due if seen.name == name]
        return found

    def tick(
        self,
        seen: Seen,
        *,
        runs: Sequence[int] = (),
        next_ms: int | None = None,
        skipped: int = 0,
        queued: list[int] | None = None,
        error: str = "",
        error_ms: int | None = None,
    ) -> bool:
        """Claim what is due: these runs start, and it is due again a minute after."""
        schedule = WireSchedule.from_wire(seen.definition)
        claim = Claim(
            seen=seen,
            next_ms=seen.next_ms + MINUTE if next_ms is None else next_ms or None,
            last_run_ms=runs[-1] if runs else None,
            skipped=skipped,
            queued=queued,
            last_error=error,
            last_error_ms=error_ms,
            jobs=[verbs.schedules.job_of(schedule, run) for run in runs],
        )
        return self.do(verbs.schedules.tick, claim)

    def unqueue(self, seen: Seen, error: str = "", error_ms: int | None = None) -> bool:
        """Start the first of the runs that wait."""
        first, *rest = verbs.schedules.runs_of(seen.queued)
        job = verbs.schedules.job_of(WireSchedule.from_wire(seen.definition), first)
        return self.do(verbs.schedules.unqueue, seen, rest, first, job, (error, error_ms))

    def hand_over(self) -> None:
        """Be a courier whose jobs arrive."""
        self.redis.delete(self.keys["out"])

    # What is there

    def state(self, name: str = "report") -> dict[str, str]:
        """What is known of a schedule, besides its definition."""
        reply = cast("dict[bytes, bytes]", self.redis.hgetall(self.keys.schedule(name)))
        return {shown(field): shown(value) for field, value in reply.items() if field != b"definition"}

    def definition(self, name: str = "report") -> WireSchedule:
        raw = cast("bytes", self.redis.hget(self.keys.schedule(name), "definition"))
        return WireSchedule.from_wire(raw)

    def due(self) -> dict[str, int]:
        """Schedule → when it is due."""
        reply = cast("Any", self.redis.zrange(self.keys["cron:due"], 0, -1, withscores=True))
        return {shown(name): int(score) for name, score in reply}

    def names(self) -> set[str]:
        return {shown(name) for name in cast("set[bytes]", self.redis.smembers(self.keys["cron:names"]))}

    def meta(self) -> dict[str, str]:
        reply = cast("dict[bytes, bytes]", self.redis.hgetall(self.keys["cron:meta"]))
        return {shown(field): shown(value) for field, value in reply.items()}

    def out(self) -> dict[str, dict[str, Any]]:
        """Job id → the job that is to be handed over."""
        reply = cast("dict[bytes, bytes]", self.redis.hgetall(self.keys["out"]))
        return {shown(job): orjson.loads(line) for job, line in reply.items()}

    def queued(self, name: str = "report") -> list[int] | None:
        raw = cast("bytes | None", self.redis.hget(self.keys["cron:queued"], name))
        return None if raw is None else verbs.schedules.runs_of(raw)

    def owned(self, service: str) -> dict[str, int]:
        """Schedule of this service → the round it was declared in last."""
        reply = cast("Any", self.redis.zrange(self.keys.schedules_of(service), 0, -1, withscores=True))
        return {shown(name): int(score) for name, score in reply}

    def schedules(self) -> dict[str, Any]:
        """All that is in Redis of the schedules themselves."""
        found = self.everything()
        prefixes = tuple(self.keys[name] for name in ("cron:s:", "cron:due", "cron:names", "cron:queued"))
        return {name: content for name, content in found.items() if name.startswith(prefixes)}

    def everything(self) -> dict[str, Any]:
        """All that is in Redis: equal before and after means that nothing was written."""
        reads: dict[bytes, Any] = {
            b"hash": self.redis.hgetall,
            b"set": self.redis.smembers,
            b"zset": partial(self.redis.zrange, start=0, end=-1, withscores=True),
        }
        names = cast("list[bytes]", self.redis.keys("fq:*"))
        return {shown(name): reads[cast("bytes", self.redis.type(name))](name) for name in names}

    def heard(self) -> _Ear:
        """`with timetable.heard() as messages`: what executors are notified of meanwhile."""
        return _Ear(self)


class _Ear:
    def __init__(self, timetable: Timetable) -> None:
        self._timetable = timetable
        self.messages: list[str] = []

    def __enter__(self) -> list[str]:
        self._pubsub: Any = cast("Any", self._timetable.redis).pubsub()
        self._pubsub.subscribe(self._timetable.keys["wake"])
        assert self._pubsub.get_message(timeout=30) is not None
        return self.messages

    def __exit__(self, *_: object) -> None:
        # What was published before this reply has arrived.
        self._timetable.broker.ask(Command(["PUBLISH", self._timetable.keys["wake"], "the end"], as_is))
        while (message := self._pubsub.get_message(timeout=30))["data"] != b"the end":
            self.messages.append(shown(message["data"]))
        self._pubsub.close()
