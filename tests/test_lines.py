"""Lines: whatever the facts are, a line can be shown; and what is repeated is shown seldom."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakSet

import pytest

from fennelq.lines import Seldom, for_machines, for_people

EVENT = {"event": "it_happened", "level": "info"}


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("do not look")


def on_console(**facts: Any) -> str:
    """The line without its time and its columns."""
    text = for_people(colors=False)({**EVENT, **facts})
    return text.partition("it_happened")[2].strip()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moments = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moments[-1])
    return moments


# For machines


def test_a_json_line_begins_with_when_how_bad_and_what() -> None:
    line = json.loads(for_machines({"job_id": "mail:7", **EVENT}))
    assert list(line) == ["timestamp", "level", "event", "job_id"]
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line == {"level": "info", "event": "it_happened", "job_id": "mail:7"}


def test_values_that_json_has_no_form_for_are_shown_in_some_form() -> None:
    endless: list[Any] = []
    endless.append(endless)
    moment = datetime(2026, 5, 18, 9, 31, 44, 105981, UTC)
    assert json.loads(for_machines({**EVENT, "at": moment}))["at"] == "2026-05-18T09:31:44.105981Z"
    line = json.loads(for_machines({**EVENT, "a": endless, "b": {(1, 2): 3}, "c": Shy(), "d": 4}))
    assert (line["a"], line["b"], line["d"]) == ("[[...]]", "{(1, 2): 3}", 4)
    assert line["c"] == "<Shy, whose repr() raises RuntimeError>"


# For people


def test_values_of_any_kind_are_shown_on_a_console() -> None:
    assert on_console(a=Shy()) == "a='<Shy, whose repr() raises RuntimeError>'"
    assert on_console(n=5, none=None, listed=["\x1b"]) == r"""listed="['\\x1b']" n=5 none=None"""


def test_a_message_of_several_lines_becomes_one_and_a_traceback_stays_below() -> None:
    shown = on_console(message="first\n  second\n", traceback="Traceback\n  File x\nError: first\n")
    assert shown == "message='first second'\nTraceback\n  File x\nError: first"


def test_a_moment_is_shown_by_the_clock_with_its_date_if_it_is_not_today() -> None:
    later = datetime.now().astimezone() + timedelta(days=3)
    now = datetime.now(UTC)
    assert on_console(at=now) == f"at={now.astimezone():%H:%M:%S}"
    assert on_console(at=later.astimezone(UTC)) == f"at='{later:%Y-%m-%d %H:%M:%S}'"


# Seldom


def test_the_same_thing_is_let_through_once_a_minute(clock: list[float]) -> None:
    seldom = Seldom()
    assert [seldom("a"), seldom("a"), seldom("b")] == [True, False, True]
    clock.append(1059.9)
    assert not seldom("a")
    clock.append(1060.0)
    assert [seldom("a"), seldom("a")] == [True, False]


def test_what_was_let_through_longest_ago_is_forgotten_first(clock: list[float]) -> None:
    seldom = Seldom(most=3)
    for thing in "abc":
        assert seldom(thing)
    clock.append(1060.0)
    assert seldom("a")
    assert seldom("d")
    assert not seldom("a")
    kept = WeakSet[Thing]()

    def let_through() -> None:
        thing = Thing()
        kept.add(thing)
        assert seldom(thing)

    for _ in range(1000):
        let_through()
    gc.collect()
    assert len(kept) == 3


class Thing:
    """Its equals are itself only."""
