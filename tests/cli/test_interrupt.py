"""Ctrl-C in long work reports its progress; nothing is half done, and no traceback is shown."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.steps import Steps
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.kit.server import Server
from tests.kit.spawn import PROJECT
from tests.kit.waiting import eventually


@pytest.fixture
def ctrl_c() -> None:
    """A suite that runs in the background ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def three_steps(steps: Steps) -> None:
    """Work during which Ctrl-C is pressed once, before the second step ends."""
    steps(1)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.01)
    steps(2)
    raise AssertionError("the third step began")


def test_a_step_that_has_begun_is_ended_and_counted(ctrl_c: None) -> None:
    async def run() -> None:
        steps = Steps(1200, "dead job")
        await steps.run(three_steps(steps))

    with pytest.raises(Interrupted) as caught:
        asyncio.run(run())
    assert str(caught.value) == "Interrupted after 2 of 1,200 dead jobs; run it again to go on."


def test_a_step_that_does_not_end_is_cancelled_by_a_second_ctrl_c(ctrl_c: None) -> None:
    async def work(steps: Steps) -> None:
        steps(1)
        loop = asyncio.get_running_loop()
        for _ in range(2):
            loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    async def run() -> None:
        steps = Steps(3)
        await steps.run(work(steps))

    with pytest.raises(Interrupted) as caught:
        asyncio.run(run())
    assert str(caught.value) == "Interrupted after at least 1 of 3 jobs; run it again to go on."


def test_work_that_is_done_when_ctrl_c_comes_has_succeeded(ctrl_c: None) -> None:
    async def work(steps: Steps) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.01)
        steps(2)
        return "done"

    async def run() -> str:
        steps = Steps(2)
        return await steps.run(work(steps))

    assert asyncio.run(run()) == "done"


def test_the_bar_of_work_that_is_resumed_shows_what_is_left() -> None:
    shown: list[int] = []
    steps = Steps(10, done=4).shown_by(shown.append)
    steps(6)
    steps(10)
    assert shown == [2, 4]


def test_replay_reports_its_progress_and_goes_on_when_run_again(shop: Shop) -> None:
    shop.kill(3)
    terminal = Terminal("dlq", "replay", "--yes", "--rate", "0.001", folder=shop.folder)
    eventually(lambda: len(shop.ok("dlq", "list").rows) == 2, what="the first job is replayed")
    terminal.type("\x03")
    assert terminal.code() == 130
    sentence = "Interrupted after at least 1 of 3 dead jobs; run it again to go on."
    assert terminal.text.splitlines()[-1] == sentence
    assert "Traceback" not in terminal.text
    assert [row[1:] for row in shop.ok("queue", "list").rows] == [["1", "0", "0", "0", "2"], ["0"] * 5]
    assert shop.ok("dlq", "replay").out == "2 dead jobs replayed\n"


def test_wait_reports_that_the_job_goes_on(shop: Shop, server: Server) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    terminal = Terminal("job", "wait", job, folder=shop.folder)
    with server.client() as client:
        eventually(lambda: bool(client.pubsub_channels()), what="it waits for the end of the job")
    terminal.type("\x03")
    assert terminal.code() == Exit.INTERRUPTED
    sentence = f"Interrupted: job {job} goes on; `fennelq job wait {job}` waits again."
    assert terminal.text.splitlines()[-1] == sentence
    assert "Traceback" not in terminal.text
    assert shop.ok("job", "show", job, "--json").json["status"] == "SENT"


@pytest.mark.parametrize(
    "words", [["dlq", "list"], ["dlq", "export"], ["queue", "list"], ["--help"]], ids=" ".join
)
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(shop: Shop, words: list[str]) -> None:
    shop.kill(2)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fennelq", *words],
            cwd=shop.folder,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (Exit.FAILED, "")
