"""Load, and faults at random moments, until every fault has happened and every job has ended."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

import redis

from fennelq import App
from fennelq.model.job import AnyJob
from tests.chaos import jobs, scale
from tests.chaos.account import Account, Sent, account, drained, left
from tests.chaos.fleet import CONCURRENCY, Fleet
from tests.chaos.load import Feeder, call, everyday, send
from tests.kit.audit import audit
from tests.kit.ledger import Ledger
from tests.kit.proxy import Proxy

QUARANTINE_FROM: Final = 3
HELD_AT_A_CUT: Final = 5
"""Jobs that a worker holds when it is cut off, so that some of them run on until others have taken them over."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What is going to happen, at which pace."""

    number: int
    """Jobs."""
    per_second: float = 400.0
    seconds: float = 8.0
    """The faults happen within so many."""
    kills: int = 0
    """kill -9 of an executor."""
    pauses: int = 0
    """SIGSTOP of an executor for two leases."""
    poison: int = 0
    """Jobs that kill their process."""
    server_kills: int = 0
    """kill -9 of Redis, which comes back half a second later: it needs an append-only file."""
    partitions: int = 0
    """Two and a half leases in which one of the workers cannot be heard; then everything it sent arrives."""
    workers: int = 2
    processes: int = 2


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """What it came to."""

    account: Account
    kills: int
    pauses: int
    stale: int
    """Jobs whose executor learned that they are no longer its own."""
    until_empty: float
    """Seconds from the last fault, or the last job, until nothing was left to be done."""

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.pauses} pauses: {self.account}; stale {self.stale}, "
            f"empty after {self.until_empty:.1f} s"
        )


class Storm:
    """One of them."""

    def __init__(self, weather: Weather, fleet: Fleet, ledger: Ledger, dice: random.Random) -> None:
        self._weather, self._fleet, self._ledger, self._dice = weather, fleet, ledger, dice
        self._to_come: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._kills = self._pauses = 0
        self._proxy: Proxy | None = None
        self._feeding: Callable[[], bool] = lambda: False

    def rage(self) -> Aftermath:
        """From the first job to the account. Every promise that always holds is checked."""
        weather, fleet, server = self._weather, self._fleet, self._fleet.server
        self._proxy = Proxy(server.url).start() if weather.partitions else None
        try:
            self._hire()
            poison = self._poison()
            feeder = self._feeder().start()
            self._feeding = lambda: feeder.busy
            self._schedule()
            self._happen(feeder)
            sent = {**feeder.finish(), **poison}
            until_empty = drained(server, within=scale.of(60, long=300))
            fleet.stop()
            return self._settle(sent, until_empty)
        finally:
            if self._proxy is not None:
                self._proxy.close()

    def _hire(self) -> None:
        for number in range(self._weather.workers):
            # Only the first is behind the proxy: a worker must be left to take over.
            url = self._proxy.url if self._proxy is not None and number == 0 else None
            self._fleet.start(processes=self._weather.processes, url=url)

    def _poison(self) -> Sent:
        """The first two deliveries of each are spent in ordinary executors, and take others with them."""
        number = self._weather.poison
        self._fleet.budget += number * (QUARANTINE_FROM - 1) * CONCURRENCY

        def described(app: App) -> list[AnyJob]:
            return [call(app, jobs.poison, jobs.DEATHS[i % len(jobs.DEATHS)]) for i in range(number)]

        return send(self._fleet.server.url, described) if number else {}

    def _feeder(self) -> Feeder:
        weather = self._weather
        seed = self._dice.randrange(10**6)
        return Feeder(
            self._fleet.server.url,
            weather.number,
            per_second=weather.per_second,
            seed=seed,
            mix=everyday,
            room=self._has_room,
        )

    def _has_room(self) -> bool:
        """Whether a second's load is not waiting already: on a machine that is too slow for the pace, the time until
        the queue is empty would measure the backlog. While Redis is away, the sending itself waits."""
        try:
            return left(self._fleet.server) < self._weather.per_second
        except redis.RedisError:
            return True

    # Faults

    def _schedule(self) -> None:
        weather = self._weather
        faults: list[Callable[[], None]] = [
            *[self._kill] * weather.kills,
            *[self._pause] * weather.pauses,
            *[self._kill_the_server] * weather.server_kills,
            *[self._cut_off] * weather.partitions,
        ]
        self._dice.shuffle(faults)
        gap = weather.seconds / max(1, len(faults))
        for place, fault in enumerate(faults):
            self._after((place + self._dice.random()) * gap, fault)

    def _after(self, seconds: float, fault: Callable[[], None]) -> None:
        heapq.heappush(self._to_come, (time.monotonic() + seconds, next(self._order), fault))

    def _happen(self, feeder: Feeder) -> None:
        while self._to_come or feeder.busy:
            if self._to_come and self._to_come[0][0] <= time.monotonic():
                heapq.heappop(self._to_come)[2]()
            else:
                time.sleep(0.01)

    def _kill(self) -> None:
        victim = self._fleet.any(self._dice)
        if victim is None:
            self._after(0.2, self._kill)
            return
        self._fleet.kill(victim)
        self._kills += 1

    def _pause(self) -> None:
        victim = self._fleet.any(self._dice)
        if victim is None or len(self._fleet.executors()) < 2:
            self._after(0.2, self._pause)
            return
        if not self._fleet.pause(victim) and self._feeding():
            # It has ended its jobs meanwhile: without any, it would have none to lose.
            self._fleet.let_go_on(victim)
            self._after(0.01, self._pause)
            return
        self._pauses += 1
        self._after(2 * self._fleet.lease, lambda: self._fleet.let_go_on(victim))

    def _kill_the_server(self) -> None:
        self._fleet.charge_all()
        self._fleet.server.kill()
        time.sleep(0.5)
        self._fleet.server.start()

    def _cut_off(self) -> None:
        assert self._proxy is not None
        if self._proxy.mode.value != "up":
            self._after(0.5, self._cut_off)
            return
        first = self._fleet.workers[0]
        if self._feeding() and self._fleet.held_by(first) < HELD_AT_A_CUT:
            self._after(0.01, self._cut_off)
            return
        self._fleet.charge_all([first])
        self._proxy.blackhole()
        self._after(2.5 * self._fleet.lease, self._proxy.up)

    # The end

    def _settle(self, sent: Sent, until_empty: float) -> Aftermath:
        fleet = self._fleet
        it = account(fleet.server, sent, self._ledger, budget=fleet.budget)
        after = Aftermath(
            account=it,
            kills=self._kills,
            pauses=self._pauses,
            stale=fleet.output.count('"lease_lost"'),
            until_empty=until_empty,
        )
        print(after)
        it.sound()
        audit(fleet.server)
        return after


def storm(weather: Weather, fleet: Fleet, ledger: Ledger, dice: random.Random) -> Aftermath:
    """Let it happen."""
    return Storm(weather, fleet, ledger, dice).rage()
