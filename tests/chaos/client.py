"""A client that can be made to die in the middle of what it does: `python -m tests.chaos.client URL QUEUE DOING`.

It does it by the public API, to jobs whose ids it knows: done again by the next client, it is the same.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.resources import files
from typing import Final

from fennelq import App
from fennelq.broker.scripts import script
from fennelq.manage.queues.queues import Queues
from tests.chaos import jobs
from tests.chaos.load import call
from tests.kit.server import Server

COUNT: Final = 20


def ids(queue: str) -> list[str]:
    """The jobs of a queue that is tested with clients."""
    return [f"{queue}:c{number}" for number in range(COUNT)]


async def send(app: App, queue: str) -> None:
    for job in ids(queue):
        await app.enqueue([call(app, jobs.work, 1, queue=queue, job_id=job.partition(":")[2])])


async def cancel(app: App, queue: str) -> None:
    for job in ids(queue):
        await app.result(job).cancel()


async def watch(app: App, queue: str) -> None:
    waiting = [app.result(job).get(timeout=0.5) for job in ids(queue)]
    await asyncio.gather(*waiting, return_exceptions=True)


async def replay(app: App, queue: str) -> None:
    await app.dlq.replay(queue=queue)


async def forget(app: App, queue: str) -> None:
    await app.dlq.purge(queue=queue)


async def purge(app: App, queue: str) -> None:
    await Queues(app).purge(queue)


def teach(server: Server) -> None:
    """Redis learns all scripts. One that it does not know is sent twice, and a process that is to die at a script would
    die at the wrong one of the two."""
    with server.client() as admin:
        for path in (files("fennelq.broker") / "lua").iterdir():
            if path.name.endswith(".lua"):
                admin.script_load(script(path.name.removesuffix(".lua")).source)


DOINGS: Final = {doing.__name__: doing for doing in (send, cancel, watch, replay, forget, purge)}


async def main(url: str, queue: str, doing: str) -> None:
    async with jobs.app_of(redis_url=url) as app:
        await DOINGS[doing](app, queue)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
