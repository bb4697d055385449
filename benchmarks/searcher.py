"""A person who searches, again and again: ``python -m benchmarks.searcher --where 'state:waiting "user-x@"'``."""

from __future__ import annotations

import argparse

from benchmarks.jobs import app
from benchmarks.loops import run


async def search(where: str) -> None:
    """Search until SIGTERM, each time to the end."""
    async with app:
        while True:
            await app.jobs.count(where)


def main() -> None:
    parser = argparse.ArgumentParser(description="A person who searches, again and again.")
    parser.add_argument("--where", required=True)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    wanted = parser.parse_args()
    run(search(wanted.where), wanted.loop)


if __name__ == "__main__":
    main()
