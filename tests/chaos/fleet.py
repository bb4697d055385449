"""Real workers: supervisors with their executors, and what can be done to them."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psutil
import redis

from fennelq.broker.keys import GROUP, QUARANTINE, STREAMS, queue_keys
from tests.chaos import jobs
from tests.kit.ledger import Ledger
from tests.kit.processes import is_alive
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Process, Spawner
from tests.kit.waiting import eventually

LEASE = 2.0
CONCURRENCY = 32
_MODULES = frozenset(("fennelq.worker.processes.process", "fennelq.worker.process"))
"""What an executor is started with; the second by an earlier version."""


class Executor:
    """One process that runs jobs, found below its supervisor."""

    def __init__(self, process: psutil.Process, config: Mapping[str, Any]) -> None:
        self.process, self._config = process, config

    @property
    def name(self) -> str:
        """The consumer it reads as."""
        return str(self._config["name"])

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def in_quarantine(self) -> bool:
        return bool(self._config["lanes"] == [QUARANTINE])

    @property
    def running(self) -> bool:
        return is_alive(self.process)

    def signal(self, number: int) -> None:
        """Harmless when it has just died by itself."""
        with suppress(psutil.NoSuchProcess):
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP: alive, and silent."""
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.signal(signal.SIGCONT)


class Worker:
    """`fennelq worker`: a supervisor and its executors."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.process.text

    def executors(self, *, quarantine: bool = False) -> list[Executor]:
        """Those that live now."""
        found = [one for one in self._children() if one.running]
        return [one for one in found if quarantine or not one.in_quarantine]

    def _children(self) -> Iterator[Executor]:
        try:
            below = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return
        for child in below:
            with suppress(psutil.NoSuchProcess, ValueError, TypeError):
                words = child.cmdline()
                for module in _MODULES.intersection(words):
                    # An earlier version has no further words; in a later one, they have further settings.
                    yield Executor(child, json.loads(words[words.index(module) + 1]))


class Fleet:
    """The workers of a test, on one Redis. What is done to executors is counted in `budget`: so many jobs were in
    their hands, and may run again."""

    def __init__(
        self,
        spawner: Spawner,
        server: Server,
        ledger: Ledger | None = None,
        *,
        lease: float = LEASE,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._spawner, self.server, self.lease = spawner, server, lease
        self.environment = {
            "FENNELQ_LEASE": str(lease),
            "FENNELQ_SCHEDULE_INTERVAL": "0.1",
            "FENNELQ_LOG_FORMAT": "json",
            "FENNELQ_LOG_LEVEL": "warning",
            **(ledger.environment if ledger else {}),
            **(settings or {}),
        }
        self.workers: list[Worker] = []
        self._hired: list[Worker] = []
        self.budget = 0
        self.faults = 0
        self._stopped: list[Executor] = []

    # Starting and stopping

    def start(
        self,
        *words: str,
        processes: int = 1,
        concurrency: int = CONCURRENCY,
        url: str | None = None,
        app: str = f"{jobs.__name__}:app",
        settings: Mapping[str, str] | None = None,
        ready: bool = True,
        directory: Path = PROJECT,
    ) -> Worker:
        """One more worker, at work when this returns. `url` leads to the server another way; another version of
        fennelq in `directory` is the one that runs."""
        environment = {
            **self.environment,
            "PYTHONPATH": str(PROJECT),
            "FENNELQ_REDIS_URL": url or self.server.url,
            **(settings or {}),
        }
        process = self._spawner(
            "fennelq",
            *("worker", "-A", app, "-p", str(processes), "-c", str(concurrency), *words),
            environment=environment,
            directory=directory,
        )
        worker = Worker(process)
        self.workers.append(worker)
        self._hired.append(worker)
        if ready:
            eventually(lambda: self.at_work(worker, processes), within=30, what="the executors are at work")
        return worker

    def at_work(self, worker: Worker, processes: int = 1) -> bool:
        """Whether so many executors of a worker have published their facts."""
        names = self._published()
        assert worker.process.running, f"the worker has ended:\n{worker.process.tail()}"
        return len([one for one in worker.executors() if one.name in names]) >= processes

    def _published(self) -> set[str]:
        with self.server.client() as client:
            executors = cast("dict[bytes, bytes]", client.hgetall(f"fq:{{{jobs.NAME}}}:executors"))
        return {name.decode() for name in executors}

    def retire(self, worker: Worker, *, within: float = 40.0) -> int:
        """SIGTERM; answers the exit code."""
        worker.process.term()
        return self.see_off(worker, within=within)

    def see_off(self, worker: Worker, *, within: float = 40.0) -> int:
        """Waits until a worker has ended; answers the exit code."""
        code = worker.process.returncode(within)
        self.workers.remove(worker)
        return code

    def stop(self) -> None:
        """The end of the working day: all executors hand their jobs in, and stop."""
        self.let_go_on()
        for worker in self.workers:
            worker.process.term()
        codes = [self.see_off(worker) for worker in list(self.workers)]
        assert not any(codes), f"exit codes {codes}"

    @property
    def output(self) -> str:
        """What all processes have printed, those that have ended too."""
        return "".join(worker.log for worker in self._hired)

    # Faults

    def executors(self) -> list[Executor]:
        """All that live and do not stand still."""
        held = {one.pid for one in self._stopped}
        return [one for worker in self.workers for one in worker.executors() if one.pid not in held]

    def kill(self, victim: Executor) -> int:
        """`kill -9`; answers how many jobs were in its hands."""
        victim.stop()  # so that it can be counted
        held = self._charge(victim)
        victim.kill()
        return held

    def pause(self, victim: Executor) -> int:
        """SIGSTOP, until `let_go_on`."""
        victim.stop()
        self._stopped.append(victim)
        return self._charge(victim)

    def let_go_on(self, *whom: Executor) -> None:
        """SIGCONT to these, or to all that were paused."""
        for one in whom or list(self._stopped):
            one.cont()
            self._stopped.remove(one)

    def charge_all(self, workers: Iterable[Worker] | None = None) -> None:
        """Something is about to happen to all of these: what they hold may run again."""
        for worker in self.workers if workers is None else workers:
            for one in worker.executors(quarantine=True):
                self._charge(one)

    def any(self, dice: random.Random) -> Executor | None:
        """Some executor that is at work."""
        published = self._published()
        there = [one for one in self.executors() if one.name in published]
        return dice.choice(there) if there else None

    def in_flight(self, executor: str, queue: str = "default") -> int:
        """Jobs in the hands of an executor, by Redis."""
        with self.server.client() as client:
            return sum(_pending(client, queue, lane).get(executor, 0) for lane in STREAMS)

    def held_by(self, worker: Worker) -> int:
        """Jobs in the hands of the executors of a worker, by Redis."""
        return sum(self.in_flight(one.name) for one in worker.executors(quarantine=True))

    def _charge(self, victim: Executor) -> int:
        held = self.in_flight(victim.name)
        self.budget += held
        self.faults += 1
        return held


def _pending(client: redis.Redis, queue: str, lane: str) -> dict[str, int]:
    """Consumer → entries in its hands."""
    try:
        summary = cast("Any", client.xpending(queue_keys(jobs.NAME, queue)[lane], GROUP))
    except redis.ResponseError:  # there is no such group (yet)
        return {}
    return {one["name"].decode(): one["pending"] for one in summary["consumers"]}
