"""A recorder of the history, to be killed: `python -m tests.chaos.recorder REDIS HISTORY`."""

from __future__ import annotations

import asyncio
import sys

from fennelq import App, log
from fennelq.manage.history.recorder import Recorder
from fennelq.manage.history.url import open_store

_ABANDONED = 0.5
"""Seconds. The next recorder takes over soon."""


async def main(redis: str, history: str) -> None:
    log.setup(level="info")
    async with App("shop", redis_url=redis, history_url=history, default_queue="mail") as app:
        print("ready", flush=True)
        await Recorder(app, open_store(app), abandoned=_ABANDONED).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
