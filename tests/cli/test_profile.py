"""`fennelq profile`: its table, its files, and what it refuses."""

from __future__ import annotations

import os
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from fennelq.cli.exits import Exit
from fennelq.worker.executor import Executor
from tests.cli.shop import Answer, Shop
from tests.cli.terminal import Terminal
from tests.kit.waiting import eventually
from tests.kit.workers import running_aside

LONG = 30.0


class Hot:
    """An executor with a job that takes time until the test is over."""

    def __init__(self, shop: Shop, executor: Executor) -> None:
        self.shop, self.name, self.executor = shop, executor.name, executor

    def ran(self, *words: str) -> Answer:
        with capture_logs():
            return self.shop.run("profile", *words)


@pytest.fixture
def hot(shop: Shop) -> Iterator[Hot]:
    over = threading.Event()

    @shop.app.task(name="shop:burn")
    def burn() -> None:
        while not over.is_set():
            pass

    with capture_logs(), running_aside(shop.app) as executor:
        try:
            eventually(lambda: executor.state.listening and executor.state.connected, within=LONG)
            shop.ok("enqueue", "shop:burn")
            eventually(lambda: executor.slots.taken == 1, within=LONG)
            yield Hot(shop, executor)
        finally:
            over.set()


def test_a_profile_as_table_json_and_files(hot: Hot, tmp_path: Path) -> None:
    first = hot.ran("--seconds", "0.4").out.splitlines()[0].split("\t")
    assert first[0] == "shop:burn"
    assert first[1].endswith(" %")
    assert int(first[2]) > 0
    assert "burn (" in first[3]
    assert f"{Path(__file__).name}:" in first[3]
    short = hot.ran(hot.name[:-2], "--seconds", "0.3", "--task", "burn", "--json")
    assert short.code == Exit.OK
    document = short.json
    assert document["executor"] == hot.name
    assert [task["task"] for task in document["tasks"]] == ["shop:burn"]
    assert document["tasks"][0]["share"] == 1
    assert document["tasks"][0]["lines"][0]["line"] in range(40, 46)
    for name in ("p.svg", "p.speedscope.json", "p.txt"):
        answer = hot.ran("--seconds", "0.2", "-o", str(tmp_path / name))
        assert answer.code == Exit.OK
    assert ET.fromstring((tmp_path / "p.svg").read_text()).tag.endswith("svg")
    assert orjson.loads((tmp_path / "p.speedscope.json").read_text())["profiles"][0]["name"] == "all"
    stacks = (tmp_path / "p.txt").read_text().splitlines()
    assert any(line.startswith("shop:burn;") for line in stacks)


def test_on_a_terminal_a_bar_is_followed_by_the_table(hot: Hot) -> None:
    lines = Terminal("profile", "--seconds", "0.4", folder=hot.shop.folder, NO_COLOR="1").lines()
    head = next(number for number, line in enumerate(lines) if line.startswith("TASK"))
    steps = [
        part for line in lines[:head] for part in re.split(r"\r|\x1b\[[?\w]*?[a-zA-Z]", line) if part.strip()
    ]
    assert [step[:12] for step in steps] == ["Profiling  ["] * len(steps)
    assert "100%" in steps[-1]
    assert lines[head + 1].startswith("shop:burn ")


def test_in_a_pipe_the_executor_is_named_first(hot: Hot) -> None:
    assert hot.ran("--seconds", "0.2").err.startswith(f"Profiling {hot.name} …\n")


def test_a_task_that_did_not_run_is_named(hot: Hot) -> None:
    answer = hot.ran("--seconds", "0.2", "--task", "welcome")
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert f"{hot.name} ran no code of task 'welcome' within " in answer.err


def count() -> None: ...


def test_tasks_that_are_not_profiled_are_named(hot: Hot) -> None:
    for number in range(7):
        hot.executor.state.app.task(name=f"shop:apart_{number}", isolation="process")(count)
    answer = hot.ran("--seconds", "0.2")
    names = ", ".join(f"shop:apart_{number}" for number in range(5))
    assert f"Not profiled, because they run in processes of their own: {names} and 2 more.\n" in answer.err
    answer = hot.ran("--seconds", "0.2", "--task", "apart_3")
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert "task 'apart_3' runs in processes of its own" in answer.err


def test_without_an_executor(shop: Shop) -> None:
    answer = shop.run("profile")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert answer.err == "fennelq: no executor runs; start a worker with `fennelq worker`\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "profile.png"), "write a name that ends with .svg (a flame graph)"),
        (("-o", "no/such/folder/profile.svg"), "cannot be written"),
        (("--seconds", "0"), "a profile takes from 0.1 to 600 seconds"),
        (("--seconds", "1h"), "a profile takes from 0.1 to 600 seconds"),
    ],
)
def test_mistakes_are_found_before_an_executor_is_asked(
    shop: Shop, words: tuple[str, ...], sentence: str
) -> None:
    answer = shop.run("profile", *words)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert sentence in " ".join(answer.err.split())


def test_a_file_that_cannot_be_written_is_a_failure(hot: Hot) -> None:
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("this system has no /dev/full")
    link = hot.shop.folder / "full.svg"
    link.symlink_to("/dev/full")
    answer = hot.ran("--seconds", "0.2", "-o", str(link))
    assert answer.code == Exit.FAILED
    assert "full.svg' cannot be written: No space left on device" in answer.err
