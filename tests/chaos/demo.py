"""`make chaos DEMO=1`: workers are killed before your eyes, and at the end the jobs are counted."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fennelq import App
from fennelq.model.job import AnyJob
from tests.chaos import jobs
from tests.chaos.account import Account, account, drained, left
from tests.chaos.fleet import Fleet
from tests.chaos.load import Feeder, call
from tests.kit.audit import audit
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Spawner

JOBS: Final = 3_000
PER_SECOND: Final = 250
SEED: Final = 7

INTRODUCTION: Final = f"""
Two workers with two executors each, on a Redis of their own with an append-only file; the lease is 2 seconds.
{JOBS} jobs are sent while executors are killed (kill -9) and frozen (SIGSTOP), and Redis itself is killed as well.
"""
CONCLUSION: Final = """
"Run twice" is what at-least-once means: these were held by an executor that was killed or frozen, and no executor can
know how far they had come. Each of them has one outcome all the same.
"""


class Stage:
    """Where it happens, and what the reader sees of it."""

    def __init__(self, fleet: Fleet, ledger: Ledger, feeder: Feeder) -> None:
        self._fleet, self._ledger, self._feeder = fleet, ledger, feeder
        self._began = time.monotonic()
        self._dice = random.Random(SEED)
        self._bold, self._plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")

    def play(self) -> None:
        scenes: list[Callable[[], None]] = [self._kill] * 6 + [self._freeze, self._kill_redis]
        self._dice.shuffle(scenes)
        for scene in scenes:
            self._watch(1.2)
            scene()
        while self._feeder.busy:
            self._watch(0.5)

    def _watch(self, seconds: float) -> None:
        """Let it go on for a while, with a line that shows how far it has come."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            done = len(self._ledger.ends())
            if sys.stdout.isatty():
                print(f"\r{self._clock}  {len(self._feeder.sent):5} sent {done:6} ended", end="", flush=True)
            time.sleep(0.2)

    def _print(self, what: str, whom: str) -> None:
        line = f"{self._clock}  {self._bold}{what:9}{self._plain} {whom}"
        print(f"\r{line}" if sys.stdout.isatty() else line, flush=True)

    @property
    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"

    def _kill(self) -> None:
        if (victim := self._fleet.any(self._dice)) is not None:
            held = self._fleet.kill(victim)
            self._print("kill -9", f"executor {victim.pid}, with {held} jobs in its hands")

    def _freeze(self) -> None:
        victim = self._fleet.any(self._dice)
        if victim is None:
            return
        held = self._fleet.pause(victim)
        self._print("SIGSTOP", f"executor {victim.pid}, with {held} jobs in its hands")
        self._watch(2 * self._fleet.lease)
        self._fleet.let_go_on(victim)
        self._print("SIGCONT", f"executor {victim.pid} goes on with its {held} jobs; others have done them")

    def _kill_redis(self) -> None:
        self._fleet.charge_all()
        held = sum(self._fleet.in_flight(one.name) for one in self._fleet.executors())
        self._print("kill -9", f"Redis, with {held} jobs in the hands of all executors")
        self._fleet.server.kill()
        self._watch(0.5)
        self._fleet.server.start()
        self._print("start", "Redis")


def leisurely(app: App, dice: random.Random) -> AnyJob:
    """A job that takes long enough to be caught in the middle."""
    return call(app, jobs.work, dice.uniform(100, 600))


def show(it: Account) -> None:
    print()
    for name, figure in it.lines():
        print(f"  {name:16} {figure}")
    print(CONCLUSION)


def main() -> int:
    print(INTRODUCTION)
    with tempfile.TemporaryDirectory() as folder, Server(aof=True) as server:
        ledger, spawner = Ledger(Path(folder) / "ledger"), Spawner(Path(folder))
        try:
            fleet = Fleet(spawner, server, ledger)
            fleet.start(processes=2)
            fleet.start(processes=2)
            feeder = Feeder(server.url, JOBS, per_second=PER_SECOND, seed=SEED, mix=leisurely).start()
            Stage(fleet, ledger, feeder).play()
            sent = feeder.finish()
            print(f"{'':10}the last job is sent; {left(server)} are left")
            print(f"{'':10}nothing is left to be done {drained(server, within=60):.1f} s later")
            fleet.stop()
            it = account(server, sent, ledger, budget=fleet.budget)
            show(it)
            it.sound()
            audit(server)
        finally:
            spawner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
