"""The state of an executor of which a test makes a single part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from fennelq import App
from fennelq.broker.broker import Broker
from fennelq.broker.keys import AppKeys, QueueKeys
from fennelq.broker.verbs.runs import Settled
from fennelq.model.routing import Routing
from fennelq.worker.outage import Outage
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.processes.signals import Signal, SignalPipe
from fennelq.worker.running.held import Answer, HeldJobs
from fennelq.worker.state import State
from fennelq.worker.threads.lease import Lease
from tests.kit.apps import LocalApp
from tests.kit.server import Server

F = TypeVar("F")
NOWHERE = "redis://127.0.0.1:1/0"


def state_of(
    broker: Broker,
    *queues: QueueKeys,
    app: App | None = None,
    config: ExecutorConfig | None = None,
    **settings: Any,
) -> State:
    """Of the executor `anna` of the app `shop`, which serves these queues through this broker."""
    app = app or LocalApp("shop", redis_url=NOWHERE, **settings)
    state = State(app, config or ExecutorConfig(name="anna"))
    state.broker, state.outage = broker, Outage(broker.address)
    state.serve(Routing(dict.fromkeys((keys.queue for keys in queues), 1)))
    return state


def published(state: State, kind: type[F]) -> list[F]:
    """The facts of a kind that are published from now on."""
    facts: list[F] = []
    state.bus.subscribe(kind, facts.append)
    return facts


def is_heard(server: Server, executor: str, text: str) -> bool:
    """Publish a text on the channel of an executor of the app `shop`; returns whether one connection has received
    it."""
    with server.client() as client:
        channel = AppKeys("shop").questions(executor)
        return bool(cast("Any", client.execute_command("SPUBLISH", channel, text)) == 1)


class NotedSignals(SignalPipe):
    """Keeps what is sent to the supervisor."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Signal] = []

    def send(self, *signals: Signal) -> None:
        self.sent += signals


class Answered(HeldJobs):
    """Calls a function with the answer to each outcome."""

    def __init__(self, note: Callable[[Settled, Answer], None]) -> None:
        super().__init__()
        self._note = note

    def settled(self, settled: Settled, answer: Answer) -> bool:
        self._note(settled, answer)
        return answer is not Answer.LOST


class Beating(Lease):
    """A lease that was renewed as a test decides: it is steady, and the last beat was answered at this moment."""

    is_steady = True

    def __init__(self, server_ms: int, ago_ms: int = 0) -> None:
        super().__init__(60.0, 1.0)
        self.server_ms, self.ago_ms = server_ms, ago_ms

    @property
    def steady(self) -> bool:
        return self.is_steady

    def beaten(self) -> tuple[int, int]:
        return self.server_ms, self.ago_ms
