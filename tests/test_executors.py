"""The facts that executors report about themselves, and what commands conclude from them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fennelq.executors import Executors

NOW = 1_000_000


def reporting(**executors: dict[str, Any]) -> Executors:
    """Executors with these facts, heard a second ago."""
    heard = {"beat_ms": NOW - 1000, "interval": 1}
    return Executors({name: orjson.dumps(heard | facts) for name, facts in executors.items()}, NOW)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "works"),
        ({"beat_ms": NOW - 4999}, "works"),
        ({"beat_ms": NOW - 5000}, "silent"),
        ({"beat_ms": NOW - 8999, "interval": 3}, "works"),
        ({"beat_ms": NOW - 9000, "interval": 3}, "silent"),
        ({"died": "SIGKILL"}, "ended: SIGKILL"),
    ],
)
def test_an_executor_works_until_it_has_missed_three_beats_or_is_known_to_have_ended(
    facts: dict[str, Any], state: str
) -> None:
    executors = reporting(anna=facts)
    assert executors.state("anna") == state
    assert executors.is_gone("anna") is (state != "works")
    assert not executors.is_gone("unknown")


def test_without_a_living_executor_no_worker_runs() -> None:
    for executors in (reporting(), reporting(anna={"queues": ["mail"], "died": "SIGKILL"})):
        assert executors.unserved("mail") == "no worker runs; start one with `fennelq worker`"


def test_a_queue_is_served_by_those_that_name_it_and_by_those_that_serve_every_queue() -> None:
    executors = reporting(anna={"queues": ["mail"]}, berta={"queues": ["default"], "every_queue": True})
    assert executors.serving("mail") == ["anna", "berta"]
    assert executors.serving("new") == ["berta"]
    assert executors.unserved("new") is None


def test_executors_that_report_no_version_ignore_a_pause() -> None:
    executors = reporting(
        anna={"queues": ["mail"], "version": "0.1.0"},
        berta={"queues": ["mail"]},
        clara={"queues": ["mail"], "lanes": ["iso"]},
        dora={"every_queue": True},
        eve={"patterns": ["ma*"]},
        fay={"queues": ["default"]},
        gone={"queues": ["mail"], "died": "SIGKILL"},
    )
    assert executors.ignoring_pause("mail") == ("berta", "clara", "dora", "eve")


def test_an_unserved_queue_is_named_with_some_of_those_that_are_served() -> None:
    executors = reporting(anna={"queues": ["g", "f", "e"]}, berta={"queues": ["d", "c", "b"]})
    assert executors.unserved("mail", "s") == (
        "no worker serves queue 'mail' (the running ones serve: b, c, d, e, f, …); "
        "start one with `fennelq worker -q mail`, or without -q for every queue"
    )


def test_a_lane_that_no_executor_reads_is_named_by_its_priority() -> None:
    executors = reporting(anna={"queues": ["mail"], "lanes": ["s:high", "s"]})
    assert executors.unserved("mail", "s:high") is None
    assert executors.unserved("mail", "s:low") == (
        "no worker takes jobs of low priority from queue 'mail'; start one without --priority"
    )


def test_a_quarantine_executor_serves_nothing_else_and_the_others_see_to_quarantine() -> None:
    assert reporting(anna={"queues": ["mail"], "lanes": ["iso"]}).unserved("mail") is not None
    assert reporting(anna={"queues": ["mail"], "lanes": ["s"]}).unserved("mail", "iso") is None


def test_what_executors_cannot_run_is_reported_once_for_each_reason() -> None:
    old = [{"queue": "mail", "why": "unknown task 'a:b'"}, {"queue": "mail", "why": "unknown task 'a:a'"}]
    executors = reporting(
        anna={"queues": ["mail"], "too_old_for": old},
        berta={"queues": ["mail"], "too_old_for": old[:1]},
        clara={"queues": ["mail"]},
        dora={"queues": ["other"], "too_old_for": old},
    )
    assert executors.too_old_for("mail") == [
        "1 of 3 executors cannot run some of them: unknown task 'a:a'",
        "2 of 3 executors cannot run some of them: unknown task 'a:b'",
    ]
    assert executors.too_old_for("other") == []


@pytest.mark.parametrize(
    "raw", [b"rubbish", b"[1]", b'{"queues":7,"too_old_for":{"a":1},"lanes":"s","beat_ms":"x"}']
)
def test_facts_that_cannot_be_read_are_skipped(raw: bytes) -> None:
    executors = Executors({"anna": raw}, NOW)
    assert executors.state("anna") == "silent"
    living = Executors({"anna": b'{"queues":7,"too_old_for":{"a":1},"lanes":"s","beat_ms":1000000}'}, NOW)
    assert living.serving("mail") == []
    assert living.too_old_for("mail") == []
    assert executors.unserved("mail") == "no worker runs; start one with `fennelq worker`"
