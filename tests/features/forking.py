"""A program that forks, for the test that the synchronous side survives it: `python -m tests.features.forking URL`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from fennelq import Task
from tests.kit.apps import LocalApp

CHILDREN = 3


def main(url: str) -> None:
    app = LocalApp("shop", redis_url=url)

    @app.task(name="shop:double")
    async def double(n: int) -> int:
        raise NotImplementedError

    print("before", double.sync.delay(1).get(timeout=30), flush=True)
    children = [fork(partial(answer, double, n)) for n in range(CHILDREN)]
    for pid in children:
        os.waitpid(pid, 0)
    print("after", double.sync.delay(100).get(timeout=30), flush=True)


def answer(double: Task[[int], int], n: int) -> None:
    # In one write: the children share a pipe, and their lines must not mix.
    os.write(1, f"child {double.sync.delay(n).get(timeout=30)}\n".encode())


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        sys.stdout.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
