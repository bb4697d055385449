"""A client of whichever version is imported, by the public API only: `python -m tests.chaos.sender URL NUMBER`."""

from __future__ import annotations

import asyncio
import sys

from tests.chaos import jobs


async def main(url: str, number: int) -> None:
    """Sends so many short jobs and prints their ids."""
    async with jobs.app_of(redis_url=url) as app:
        work = jobs.task_of(app, jobs.work)
        for handle in await app.enqueue([work.job(1) for _ in range(number)]):
            print(handle.id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
