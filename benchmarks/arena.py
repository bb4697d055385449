"""Everything one sample needs, fresh: a server, a tally, a worker when asked for, clients when asked for."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.contestant import ONE_PROCESS, ROOT, Contestant, Crew, Fleet
from benchmarks.loops import LoopName
from benchmarks.server import Engine, Server
from benchmarks.tally import TALLY_VARIABLE, Tally
from benchmarks.worker import Worker

START_SECONDS = 30.0
DRAIN_SECONDS = 120.0
CLIENT_SECONDS = 300.0
WARM_JOBS = 50
POLL_SECONDS = 0.005
READY_SECONDS = 0.2
"""After the first job has come to the gate: time for the worker to finish its start."""
SETTLE_SECONDS = 0.05
"""After the last body has run: time for the last batch to be settled before CPU clocks are read."""


class SampleFailed(RuntimeError):
    """The contestant did not do what the row asked for."""


@dataclass(frozen=True)
class Drained:
    """What draining ``jobs`` jobs took, from the opening of the gate to the end of the last one."""

    jobs: int
    seconds: float
    worker_us: float
    server_us: float

    @property
    def jobs_per_s(self) -> float:
        return self.jobs / self.seconds


@dataclass(frozen=True)
class Reading:
    """The counters at one moment."""

    done: int
    worker_cpu: float
    server_cpu: float

    def since(self, before: Reading, seconds: float) -> Drained:
        jobs = self.done - before.done
        worker_us = (self.worker_cpu - before.worker_cpu) / jobs * 1e6
        return Drained(jobs, seconds, worker_us, (self.server_cpu - before.server_cpu) / jobs * 1e6)


class Arena:
    """A context manager; rows measure inside it and leave nothing behind."""

    def __init__(self, contestant: Contestant, engine: Engine, loop: LoopName) -> None:
        self.contestant = contestant
        self._engine: Engine = engine
        self._loop: LoopName = loop

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="bench-")
        self._home = Path(self._directory.name)
        self.tally = Tally(self._home / "tally")
        self.server = Server(self._engine, self._home).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.server.__exit__(kind, error, at)
        self._directory.cleanup()

    # -- clients

    def ask(self, action: str, **arguments: Any) -> dict[str, Any]:
        """Run one client action to its end and return its answer."""
        words = ["benchmarks.client", self.contestant.adapter, action, json.dumps(arguments)]
        return self._answer(action, *words, "--url", self.server.url)

    def metered(self, pairs: int, jobs: int) -> dict[str, list[float]]:
        """What so many drains with and without metrics took, in one process."""
        size = ["--pairs", str(pairs), "--jobs", str(jobs)]
        return self._answer("metered", "benchmarks.metered", self.server.url, *size)

    def _answer(self, action: str, *module: str) -> dict[str, Any]:
        """Run a module to its end and return the last line of its output."""
        environment = {**os.environ, **self._environment()}
        try:
            client = subprocess.run(
                [self.contestant.python, "-m", *module, "--loop", self._loop],
                check=False,
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=environment,
                timeout=CLIENT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise SampleFailed(f"client {action}: no answer within {CLIENT_SECONDS:g} s") from error
        if client.returncode:
            raise SampleFailed(f"client {action}: {client.stderr[-1500:]}")
        answer: dict[str, Any] = json.loads(client.stdout.splitlines()[-1])
        return answer

    def fill(
        self,
        jobs: int,
        task: str = "noop",
        lanes: Sequence[str] = ("normal",),
        argument: float | None = None,
        size: int = 0,
    ) -> None:
        """Queue jobs: numbered ones, all with ``argument``, or all with a string of ``size`` characters."""
        self.ask("fill", task=task, count=jobs, lanes=lanes, argument=argument, size=size)

    # -- workers

    def worker(self, crew: Crew = ONE_PROCESS, flags: Sequence[str] = ()) -> Worker:
        """A worker that has not been started yet; its jobs wait at the closed gate."""
        return self._worker([*self.contestant.command(crew, self.server.url, self._loop), *flags])

    def fleet(self, fleet: Fleet) -> Worker:
        """Many executors of fennelq that have not been started yet."""
        size = ["--executors", str(fleet.executors), "--processes", str(fleet.processes)]
        size += ["--slots", str(fleet.slots)]
        size += [] if fleet.watched else ["--unwatched"]
        return self._program("fleet", *size, "--queues", _in_turns(fleet.queues))

    def presences(self, executors: int, sleep_at: Sequence[str] = ()) -> Worker:
        """The presence of many executors of fennelq, without the executors, and perhaps their names at these queues."""
        sleep = ["--sleep", "--queues", _in_turns(sleep_at)] if sleep_at else []
        return self._program("presences", "--executors", str(executors), *sleep)

    def searcher(self, where: str) -> Worker:
        """A person who searches with fennelq, again and again."""
        return self._program("searcher", "--where", where)

    def _program(self, name: str, *arguments: str) -> Worker:
        return self._worker(["-m", f"benchmarks.{name}", "--loop", self._loop, *arguments])

    def _worker(self, arguments: Sequence[str]) -> Worker:
        self.tally.forget()
        environment = {**self._environment(), TALLY_VARIABLE: str(self.tally.path)}
        return Worker([self.contestant.python, *arguments], environment, ROOT, self._home / "worker.log")

    def drain(self, worker: Worker, jobs: int, processes: int = 1, to_the_end: bool = True) -> Drained:
        """Wait until every process holds a job at the gate, open it, measure until ``jobs`` more have ended.

        ``to_the_end``: nothing else is queued, so the settling of the last batch belongs to the measurement.
        """
        self.wait(worker, START_SECONDS, "a first job", lambda: self.tally.processes >= processes)
        time.sleep(READY_SECONDS)
        before, began_ns = self._read(worker), time.monotonic_ns()
        self.tally.open_gate()
        self.wait(worker, DRAIN_SECONDS, f"{jobs} jobs", lambda: self.tally.done - before.done >= jobs)
        ended_ns = self.tally.last_ns
        if to_the_end:
            time.sleep(SETTLE_SECONDS)
        return self._read(worker).since(before, (ended_ns - began_ns) / 1e9)

    def warm(self, worker: Worker) -> None:
        """Run a few jobs, so that the worker is up and knows its scripts. The gate stays open."""
        self.fill(WARM_JOBS)
        self.work_off(worker, WARM_JOBS)

    def work_off(self, worker: Worker, jobs: int) -> None:
        """Wait until the worker has run this many jobs, without measuring."""
        self.tally.open_gate()
        self.wait(worker, START_SECONDS, f"{jobs} jobs", lambda: self.tally.done >= jobs)

    def _read(self, worker: Worker) -> Reading:
        return Reading(self.tally.done, worker.cpu_seconds, self.server.cpu_seconds)

    def wait(self, worker: Worker, seconds: float, what: str, reached: Callable[[], bool]) -> None:
        """Wait until something is reached, while the worker runs."""
        deadline = time.monotonic() + seconds
        while not reached():
            if not worker.alive or time.monotonic() > deadline:
                state = "is still running" if worker.alive else "has ended"
                raise SampleFailed(f"{what}: {self.tally.done} done, the worker {state}: {worker.last_words}")
            time.sleep(POLL_SECONDS)

    def _environment(self) -> Mapping[str, str]:
        own = self.contestant.environment(self.server.url, self._loop)
        return {"BENCH_URL": self.server.url, **own}


def _in_turns(queues: Sequence[str]) -> str:
    """Queues that are read in equal turns, as without -q."""
    return ",".join(f"{queue}:1" for queue in queues)
