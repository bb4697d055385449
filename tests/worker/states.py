"""The state of an executor of which a test makes a single part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fennelq import App
from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verbs.runs import Settled
from fennelq.model.routing import Routing
from fennelq.worker.outage import Outage
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Answer, HeldJobs
from fennelq.worker.state import State
from fennelq.worker.threads.lease import Lease
from tests.kit.apps import LocalApp

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


class Answered(HeldJobs):
    """Calls a function with the answer to each outcome."""

    def __init__(self, note: Callable[[Settled, Answer], None]) -> None:
        super().__init__()
        self._note = note

    def settled(self, settled: Settled, answer: Answer) -> None:
        self._note(settled, answer)


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
