"""The presence of many executors: ``python -m benchmarks.presences --executors 10000``.

Each is the real duty, with a state of its own: it publishes the facts of its executor at the real rate, learns how many
others there are, and looks for queues that no worker serves. There is nothing else of the executor, except with
`--sleep` its name and its bell at each queue. Ten of them share a connection, because a server accepts 10,000 by
default.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
from collections.abc import Sequence

from benchmarks.jobs import app
from benchmarks.loops import run
from fennelq.broker.broker import Broker
from fennelq.broker.dispatch import pages
from fennelq.broker.verb import Command
from fennelq.worker.duties.presence import Presence
from fennelq.worker.duties.service import tend
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.state import State, executor_name

_AT_A_CONNECTION = 10
_START_BEATS = 4
"""Beats over which they start: the start is not what is measured."""


async def serve(executors: int, queues: str, *, sleep: bool) -> None:
    """Be present as so many executors of these queues, until SIGTERM."""
    brokers = [Broker(app.address) for _ in range(0, executors, _AT_A_CONNECTION)]
    states = [_state(brokers[number // _AT_A_CONNECTION], number, queues) for number in range(executors)]
    if sleep:
        for broker, some in zip(brokers, pages(states, _AT_A_CONNECTION), strict=True):
            await _sleep(broker, some)
    async with asyncio.TaskGroup() as duties:
        for state in states:
            duties.create_task(_present(state))


def _state(broker: Broker, number: int, queues: str) -> State:
    # A name as long as a real one. Within a process, its random part would not be unique among thousands.
    name = f"{executor_name()[:-6]}{number:06x}"
    state = State(app, ExecutorConfig(name=name, queues=queues))
    state.broker = broker
    state.serve(state.routing_among(()))
    return state


async def _sleep(broker: Broker, states: Sequence[State]) -> None:
    """Be among those that a new job wakes. One whose bell has no subscriber would be dropped."""
    link = await broker.listen(["PING"], lambda message: None)
    for state in states:
        for keys in state.queues:
            link.post(["SSUBSCRIBE", keys.bell(state.name)])
    names = [state.name for state in states]
    for keys in states[0].queues:
        await broker.ask(Command(["SADD", keys["idle"], *names], int))


async def _present(state: State) -> None:
    await asyncio.sleep(random.uniform(0, _START_BEATS * app.settings.beat))
    await tend(Presence(state), outage=state.outage)


def main() -> None:
    parser = argparse.ArgumentParser(description="The presence of many executors.")
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--queues", default="default")
    parser.add_argument(
        "--sleep", action="store_true", help="at these queues as well, without ever waking up"
    )
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    wanted = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run(serve(wanted.executors, wanted.queues, sleep=wanted.sleep), wanted.loop)


if __name__ == "__main__":
    main()
