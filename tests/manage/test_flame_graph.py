"""A profile as flame graph, as speedscope document and as collapsed stacks, with hostile texts."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import orjson
import pytest

from fennelq.manage.executors.flame_graph import amount, svg
from fennelq.manage.executors.profile import ExecutorProfile, ProfiledCall
from fennelq.manage.executors.profile_files import collapsed, speedscope
from tests.cli.test_hostile import EVIL, LONG, unsafe

SVG = "{http://www.w3.org/2000/svg}"
REPORT: dict[str, Any] = {
    "version": "0.1.0",
    "seconds": 10,
    "samples": 100,
    "idle": 25,
    "tasks": ["shop:charge", "shop:mail", "event loop, no job"],
    "parts": [2],
    "places": [
        ["charge", "shop.py", 7],
        ["total", "shop.py", 20],
        ["send", "mail.py", 3],
        ["poll", "x.py", 1],
    ],
    "stacks": [[0, 10, 1, [0, 1]], [0, 20, 0, [0]], [1, 5, 0, [2]], [2, 60, 0, [3]]],
    "left_out": 3,
    "jobs": {"mail:7": 30},
}
HOSTILE: dict[str, Any] = {
    "seconds": 1,
    "tasks": [EVIL, LONG, "</title><script>alert(1)</script>"],
    "places": [[EVIL, LONG, 7], [LONG, EVIL, 8], ["a;b 7", "]]>&\"'", 1], ["\ud800", "\x00", 2]],
    "stacks": [[0, 50, 1, [0, 1]], [1, 50, 0, [1, 2]], [2, 50, 1, [2, 3]]],
}


def profile(report: dict[str, Any]) -> ExecutorProfile:
    return ExecutorProfile.of("web.1", report)


def test_tasks_come_first_and_then_the_other_parts() -> None:
    found = profile(REPORT)
    assert [(task.task, task.value, round(task.share, 3)) for task in found.tasks] == [
        ("shop:charge", 30, 0.316),
        ("shop:mail", 5, 0.053),
        ("event loop, no job", 60, 0.632),
    ]
    assert found.tasks[0].lines == [
        (ProfiledCall("charge", "shop.py", 7), 20),
        (ProfiledCall("total", "shop.py", 20), 10),
    ]
    assert found.of_task("charge").total == found.of_task("shop:charge").total == 30


def test_a_flame_graph_has_a_box_for_each_function_as_wide_as_its_share() -> None:
    boxes = {
        str(box.findtext(f"{SVG}title")): box.find(f"{SVG}rect")
        for box in ET.fromstring(svg(profile(REPORT))).iter(f"{SVG}g")
    }
    assert {
        title: (float(rect.attrib["width"]), float(rect.attrib["y"]))
        for title, rect in boxes.items()
        if rect is not None
    } == {
        "shop:charge: 30 samples, 31.6 %": (378.4, 48),
        "charge (shop.py): 30 samples, 31.6 %, line 7 (100 %)": (378.4, 66),
        "total (shop.py): 10 samples, 10.5 %, line 20 (100 %)": (125.8, 84),
        "shop:mail: 5 samples, 5.3 %": (62.7, 48),
        "send (mail.py): 5 samples, 5.3 %, line 3 (100 %)": (62.7, 66),
        "event loop, no job: 60 samples, 63.2 %": (757.4, 48),
        "poll (x.py): 60 samples, 63.2 %, line 1 (100 %)": (757.4, 66),
    }


def test_a_document_for_speedscope_has_all_stacks_and_those_of_each_task() -> None:
    document = orjson.loads(speedscope(profile(REPORT)))
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    whole, *tasks = document["profiles"]
    named = [[frames[index] for index in sample] for sample in whole["samples"]]
    assert named == [
        ["event loop, no job", "poll"],
        ["shop:charge", "charge"],
        ["shop:charge", "charge", "total"],
        ["shop:mail", "send"],
    ]
    assert whole["weights"] == [0.6, 0.2, 0.1, 0.05]
    assert (whole["unit"], whole["endValue"]) == ("seconds", 0.95)
    assert [one["name"] for one in tasks] == ["shop:charge", "shop:mail", "event loop, no job"]
    assert tasks[0]["weights"] == [0.2, 0.1]
    of_memory = orjson.loads(speedscope(profile({**REPORT, "memory": True})))["profiles"][0]
    assert (of_memory["unit"], of_memory["weights"]) == ("bytes", [60, 20, 10, 5])


def test_collapsed_stacks() -> None:
    assert collapsed(profile(REPORT)) == (
        "event loop, no job;poll (x.py:1) 60\n"
        "shop:charge;charge (shop.py:7) 20\n"
        "shop:charge;charge (shop.py:7);total (shop.py:20) 10\n"
        "shop:mail;send (mail.py:3) 5\n"
    )


def test_hostile_texts_are_escaped_and_cut() -> None:
    found = profile(HOSTILE)
    drawn, document, lines = svg(found), speedscope(found), collapsed(found)
    ET.fromstring(drawn)
    assert "<script" not in drawn
    assert unsafe(drawn) == unsafe(lines) == unsafe(document) == set()
    assert len(drawn) < 50_000
    assert len(document) + len(lines) < 100_000
    for line in lines.splitlines():
        stack, _, value = line.rpartition(" ")
        assert len(stack.split(";")) == 3
        assert value == "50"
    orjson.loads(document)


UNREADABLE: list[dict[str, Any]] = [
    {},
    {"stacks": 7, "tasks": 7, "places": {}, "jobs": [], "samples": "x", "seconds": None},
    {
        "stacks": [None, [], [0, 1], [True, 1, 0, []], [0, -1, 0, []], [9, 1, 9, [9, "x", -1]]],
        "tasks": [],
    },
    {"stacks": [[0, 0, 0, []]], "tasks": [None], "places": [[]]},
]


@pytest.mark.parametrize("report", UNREADABLE)
def test_what_cannot_be_read_is_left_out(report: dict[str, Any]) -> None:
    found = profile(report)
    assert found.total in (0, 1)
    ET.fromstring(svg(found))
    orjson.loads(speedscope(found))


def test_amounts() -> None:
    assert [amount(n, memory=False) for n in (1, 2000)] == ["1 sample", "2,000 samples"]
    assert [amount(n, memory=True) for n in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
