"""Executors, or only their promoters, each a process of its own and without a supervisor."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.manage.schedules import ScheduleInfo
from fennelq.model.job import JobInfo
from tests.chaos import clockwork, jobs
from tests.kit.ledger import Ledger, Row
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually

KEYS: Final = AppKeys(jobs.NAME)
LEASE: Final = 2.0


class Crew:
    """Executors without a supervisor: one that dies stays dead."""

    def __init__(self, spawn: Spawner, server: Server, ledger: Ledger) -> None:
        self._spawn, self.server, self.ledger = spawn, server, ledger
        self.broker = BlockingBroker(address_of(server.url))
        self.environment = {
            **ledger.environment,
            "FENNELQ_REDIS_URL": server.url,
            "FENNELQ_LEASE": str(LEASE),
            "FENNELQ_LOG_LEVEL": "warning",
        }
        self.members: list[Process] = []

    def close(self) -> None:
        self.broker.close()

    # Who is there

    def joins(self, *words: str, settings: Mapping[str, str] | None = None) -> Process:
        """One more, who begins to work in a moment."""
        environment = {**self.environment, **(settings or {})}
        member = self._spawn(clockwork.__name__, *(words or ("executor",)), environment=environment)
        self.members.append(member)
        return member

    def at_work(self) -> None:
        """Returns when all executors are at work."""
        for member in self.members:
            member.wait_for("at work", within=30)

    def dies(self, member: Process) -> None:
        member.kill()
        self.members.remove(member)

    def goes_home(self) -> None:
        """All executors end in an orderly way."""
        for member in self.members:
            member.term()
        for member in self.members:
            assert member.returncode(30) in (0, -15)
        self.members.clear()

    # What is to be done, and what was

    def now(self) -> int:
        return self.broker.ask(verbs.server.now())

    def add(self, name: str, **when: Any) -> ScheduleInfo:
        """A schedule made at run time."""

        async def inside() -> ScheduleInfo:
            async with clockwork.app_of(redis_url=self.server.url) as app:
                return await app.schedules.add(app.describe("clockwork:beat"), name=name, **when)

        return asyncio.run(inside())

    def ticks_of(self, rows: Iterable[Row], name: str) -> list[int]:
        prefix = f"default:cron.{name}."
        return [int(row.job_id.removeprefix(prefix)) for row in rows if row.job_id.startswith(prefix)]

    def starts(self, name: str) -> Counter[int]:
        """Tick → how often its job was started."""
        return Counter(self.ticks_of((row for row in self.ledger.read() if row.kind == "start"), name))

    def all_ended(self, name: str, *, within: float = 30.0) -> Counter[int]:
        """Waits until nothing of a schedule is due, on its way or running; answers its starts."""
        keys = queue_keys(jobs.NAME, "default")

        def idle() -> bool:
            left = [
                self.broker.ask(verbs.queues.length(keys, where)) for where in ("s", "sched", "retry", "iso")
            ]
            with self.server.client() as client:
                return not any(left) and not client.exists(KEYS["out"])

        eventually(idle, within=within, every=0.05)
        return self.starts(name)

    def record(self, name: str, tick: int) -> JobInfo | None:
        keys = queue_keys(jobs.NAME, "default")
        return self.broker.ask(verbs.jobs.record(keys, f"cron.{name}.{tick}"))
