"""A module that runs in a copy of the forker cannot tell it from a new interpreter."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.kit import about, spawn
from tests.kit.forker import can_start
from tests.kit.spawn import PROJECT, Process, run_module

ABOUT = about.__name__
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere each process has an interpreter of its own"
)
SURROUNDINGS = {"PYTHONPATH": str(PROJECT), "TZ": "Asia/Tokyo", "GREETING": "hällo\n"}


def never(*_: object) -> bool:
    return False


@linux
def test_a_copy_sees_what_a_new_interpreter_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_start(ABOUT, {**os.environ, **SURROUNDINGS}, tmp_path)
    words = ("a", "--b", "c d")
    copied = run_module(ABOUT, *words, environment=SURROUNDINGS, directory=tmp_path)
    monkeypatch.setattr(spawn, "can_start", never)
    executed = run_module(ABOUT, *words, environment=SURROUNDINGS, directory=tmp_path)
    assert json.loads(copied.out)["leads its session"]
    assert seen(copied.out) == seen(executed.out)
    assert (copied.code, copied.err) == (executed.code, executed.err) == (3, "an error\n")


@linux
def test_a_process_with_an_output_sees_the_same_in_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    for number in range(2):
        with Process.module(ABOUT, output=tmp_path / f"{number}", environment=SURROUNDINGS) as process:
            assert process.returncode() == 3
        texts.append(process.text)
        monkeypatch.setattr(spawn, "can_start", never)
    assert [text.partition("\n")[2] for text in texts] == ["an error\n"] * 2
    copied, executed = (seen(text.splitlines()[0]) for text in texts)
    assert copied == executed


def seen(text: str) -> Mapping[str, object]:
    """What does not differ from process to process."""
    facts: dict[str, object] = json.loads(text)
    path = cast("list[str]", facts.pop("path"))
    assert facts.pop("parent") == os.getpid(), "the test process can wait for it"
    assert path[0] == facts["folder"]
    del facts["leads its session"]
    return facts


@linux
def test_its_end_is_seen_by_the_test_process(tmp_path: Path) -> None:
    with Process.module("tests.docs.prompt", output=tmp_path / "log") as process:
        assert process.returncode() == 0  # its stdin has ended
    with Process.module(
        "fennelq", "worker", "-A", "tests.worker.shop:app", output=tmp_path / "log"
    ) as process:
        process.stop()
        assert process.running
        process.cont()
        process.kill()
        assert (process.running, process.returncode()) == (False, -signal.SIGKILL)


@linux
@pytest.mark.parametrize(
    ("module", "environment"),
    [
        ("pytest", {}),
        (ABOUT, {"PYTHONPATH": "/elsewhere"}),
        (ABOUT, {"PYTHONHASHSEED": "1"}),
        (ABOUT, {"LC_ALL": "C"}),
    ],
)
def test_what_depends_on_the_start_of_an_interpreter_gets_one(
    tmp_path: Path, module: str, environment: Mapping[str, str]
) -> None:
    usual = {**os.environ, "PYTHONPATH": str(PROJECT)}
    assert can_start(ABOUT, usual, tmp_path)
    assert not can_start(module, {**usual, **environment}, tmp_path)


@linux
def test_in_the_folder_of_another_version_its_own_interpreter_runs(tmp_path: Path) -> None:
    (tmp_path / "fennelq").mkdir()
    assert not can_start("fennelq", dict(os.environ), tmp_path)
    assert can_start("fennelq", dict(os.environ), PROJECT)
