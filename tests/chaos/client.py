"""A client that can be made to die in the middle of what it does: `python -m tests.chaos.client REDIS_URL DO [JOB …]`.

It sends, cancels, replays, purges or watches, one job after another, by the public API.
"""

from __future__ import annotations

import asyncio
import sys

from fennelq import App
from tests.chaos import jobs
from tests.chaos.load import call

COUNT = 20


async def send(app: App, ids: list[str]) -> None:
    """Jobs with ids of its own: said again by the next client, they are the same jobs."""
    for key in ids:
        await app.client.send(call(app, jobs.work, 1, job_id=key, queue="sent"))


async def cancel(app: App, ids: list[str]) -> None:
    for job in ids:
        await app.result(job).cancel()


async def replay(app: App, _: list[str]) -> None:
    await app.dlq.replay()


async def purge(app: App, _: list[str]) -> None:
    await app.queues.purge("purged")


async def watch(app: App, ids: list[str]) -> None:
    await asyncio.gather(*(app.result(job).get(timeout=30) for job in ids))


DOINGS = {function.__name__: function for function in (send, cancel, replay, purge, watch)}


async def main(url: str, doing: str, ids: list[str]) -> None:
    async with jobs.app_of(redis_url=url) as app:
        await DOINGS[doing](app, ids)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
