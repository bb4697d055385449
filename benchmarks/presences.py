"""The presence of many executors: ``python -m benchmarks.presences --executors 10000``.

Each is the real duty, with a state of its own: it publishes the facts of its executor at the real rate, learns how many
others there are, and looks for queues that no worker serves. There is nothing else of the executor. Ten of them share a
connection, because a server accepts 10,000 by default.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource

from benchmarks.jobs import app
from benchmarks.loops import run
from fennelq.broker.broker import Broker
from fennelq.worker.duties.presence import Presence
from fennelq.worker.duties.service import tend
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.state import State, executor_name

_AT_A_CONNECTION = 10
_START_BEATS = 4
"""Beats over which they start: the start is not what is measured."""


async def serve(executors: int) -> None:
    """Be present as so many executors, until SIGTERM."""
    brokers = [Broker(app.address) for _ in range(0, executors, _AT_A_CONNECTION)]
    async with asyncio.TaskGroup() as duties:
        for number in range(executors):
            duties.create_task(_present(brokers[number % len(brokers)], number))


async def _present(broker: Broker, number: int) -> None:
    await asyncio.sleep(random.uniform(0, _START_BEATS * app.settings.beat))
    # A name as long as a real one. Within a process, its random part would not be unique among thousands.
    name = f"{executor_name()[:-6]}{number:06x}"
    state = State(app, ExecutorConfig(name=name, queues="default"))
    state.broker = broker
    state.serve(state.routing_among(()))
    await tend(Presence(state), outage=state.outage)


def main() -> None:
    parser = argparse.ArgumentParser(description="The presence of many executors.")
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    wanted = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run(serve(wanted.executors), wanted.loop)


if __name__ == "__main__":
    main()
