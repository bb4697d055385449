"""Stacks of this process: which call of the user is to blame, and what fits into an answer."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import orjson
import pytest

from fennelq import App
from fennelq.model.job import Delivery
from fennelq.worker import stacks
from fennelq.worker.running.held import Held, HeldJobs
from fennelq.worker.sampling import Samples
from fennelq.worker.stacks import users_place
from fennelq.worker.threads.profiler import packed


def library(name: str) -> Callable[[Callable[[], Any]], Any]:
    """A function of a module of this name, which calls another function."""
    module: dict[str, Any] = {"__name__": name}
    code = compile(
        "def call(function):\n    return function()\n", f"/lib/{name.replace('.', '/')}.py", "exec"
    )
    exec(code, module)
    return module["call"]  # type: ignore[no-any-return]


def here() -> FrameType:
    return sys._getframe()


def calls_library() -> FrameType:
    return library("http.client")(lambda: library("vendor.pool")(sys._getframe))  # type: ignore[no-any-return]


def test_the_innermost_call_in_the_package_of_the_task_is_to_blame() -> None:
    frame = library("tests_of_another")(calls_library)
    assert users_place(frame, "tests").endswith(" in <lambda>")
    assert users_place(frame, "vendor").startswith("/lib/vendor/pool.py:2 in call")


@pytest.mark.parametrize("package", [None, "not.on.the.stack"])
def test_without_a_task_it_is_the_first_package_that_is_neither_ours_nor_of_the_standard_library(
    package: str | None,
) -> None:
    places: list[str] = []

    def look() -> None:
        places.append(users_place(here(), package))

    call = library("shop.tasks")
    thread = threading.Thread(target=call, args=(lambda: library("vendor.pool")(look),))
    thread.start()
    thread.join()
    assert places == ["/lib/shop/tasks.py:2 in call"]


def test_a_thread_that_has_ended_has_no_place() -> None:
    assert users_place(None, "tests") == "unknown"


def run_of(number: int, **more: Any) -> Held:
    held = Held(Delivery("mail", "s", f"{number}-1", str(number), "shop:f", b"", b"", 0, 1, 1, 1))
    held.task, held.begun = more.get("task"), 10.0
    return held


async def test_stacks_of_jobs_come_before_the_others_and_the_loop_before_all() -> None:
    over = asyncio.Event()
    tasks = [asyncio.create_task(over.wait(), name=f"other-{n}") for n in range(3)]
    job: Any = asyncio.create_task(over.wait(), name="job")
    await asyncio.sleep(0)
    jobs = HeldJobs()
    held = run_of(7, task=job)
    jobs.by_token[held.delivery.token] = held
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    found = await asyncio.to_thread(stacks.read, jobs, loop, thread, 12.5)
    first, second, *rest = found.stacks
    assert (first.kind, second.kind, second.name) == ("loop", "task", "job")
    assert (second.job, second.seconds) == ("shop:f (mail:7)", 2.5)
    assert {"other-0", "other-1", "other-2"} <= {one.name for one in rest}
    assert all(one.job is None for one in rest)
    over.set()
    await asyncio.gather(job, *tasks)


async def test_the_loop_serves_the_job_that_blocks_it() -> None:
    jobs, loop, thread = HeldJobs(), asyncio.get_running_loop(), threading.get_ident()
    held = run_of(7, task=asyncio.current_task())
    jobs.by_token[held.delivery.token] = held
    found: list[stacks.Stacks] = []
    reading = threading.Thread(target=lambda: found.append(stacks.read(jobs, loop, thread, 11.0)))
    reading.start()
    reading.join()  # blocks the loop
    assert (found[0].stacks[0].kind, found[0].stacks[0].job) == ("loop", "shop:f (mail:7)")


@pytest.mark.parametrize("depth", [10, 900])
async def test_a_deep_stack_keeps_its_innermost_calls(depth: int) -> None:
    over, begun = threading.Event(), threading.Event()

    def deep(n: int) -> None:
        if n:
            return deep(n - 1)
        begun.set()
        over.wait()
        return None

    thread = threading.Thread(target=deep, args=(depth,), name="deep")
    thread.start()
    begun.wait()
    found = stacks.read(HeldJobs(), None, None, 0.0)
    over.set()
    thread.join()
    (frames,) = [one.frames for one in found.stacks if one.name == "deep"]
    assert frames[-1].endswith(" in wait")
    assert len(frames) <= stacks.MOST_FRAMES + 1
    assert frames[0].endswith(" outer calls") == (depth > 50)


def test_the_name_of_a_file_that_utf8_cannot_write_spoils_no_answer() -> None:
    module: dict[str, Any] = {"__name__": "shop"}
    exec(compile("def call(function):\n    return function()\n", "/shop/caf\udce9.py", "exec"), module)
    samples = Samples(App("shop"), HeldJobs(), None, None)
    let_go, called = threading.Event(), threading.Event()

    def work() -> None:
        while not let_go.is_set():
            called.set()

    thread = threading.Thread(target=module["call"], args=(work,), name="caf\udce9")
    thread.start()
    try:
        called.wait(10)
        while not samples.counted():
            samples.take()
        found = stacks.read(HeldJobs(), None, None, 0.0)
    finally:
        let_go.set()
        thread.join()
    answer = orjson.dumps([stack._asdict() for stack in found.stacks]).decode()
    profile = orjson.dumps(packed(samples.counted(), 0)).decode()
    for text in (answer, profile):
        assert r"/shop/caf\\udce9.py" in text or r"shop/caf\\udce9.py" in text
