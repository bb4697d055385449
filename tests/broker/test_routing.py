"""Each verb and each command names the key that routes it."""

from __future__ import annotations

from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verb import Step
from fennelq.broker.verbs.schedules import Seen
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.schedule import WireSchedule

MAIL, SHOP = queue_keys("shop", "mail"), AppKeys("shop")
LIFETIMES = Lifetimes(1, 1)
SEEN = Seen("report", b"", 1, "", False, b"")
A_SCHEDULE = WireSchedule(name="report", task="app:report", queue="mail", args=b"[[],{}]", every_ms=1000)

OF_THE_QUEUE: list[Step[Any]] = [
    verbs.jobs.cancel(MAIL, ["1"], LIFETIMES, "why"),
    verbs.jobs.enqueue(MAIL, []),
    verbs.jobs.watch(MAIL, "", ["1"], LIFETIMES),
    verbs.runs.fetch(MAIL, consumer="anna", free=1, lanes=["s"], lifetimes=LIFETIMES),
    verbs.runs.release(MAIL, []),
    verbs.runs.ring(MAIL, ["s"]),
    verbs.executors.stay_awake(MAIL, "anna"),
    verbs.executors.close_consumer(MAIL, "anna"),
    verbs.queues.promote(MAIL, 1),
    verbs.queues.stats(MAIL),
    verbs.queues.length(MAIL, "s"),
    verbs.dead.forget(MAIL, []),
    verbs.jobs.record(MAIL, "1"),
    verbs.jobs.history(MAIL, "1"),
    verbs.outbox.handing(MAIL, "0"),
    *verbs.queues.damage(MAIL),
]
OF_THE_APP: list[Step[Any]] = [
    verbs.schedules.look(SHOP, "service", "v1", again=False, longest_ms=1),
    verbs.schedules.unqueue(SHOP, SEEN, [], 1, verbs.schedules.job_of(A_SCHEDULE, 1)),
    verbs.outbox.handed(SHOP, ["mail:1"]),
    verbs.schedules.names(SHOP),
    verbs.queues.known_queues("shop"),
    verbs.executors.known_executors("shop"),
    verbs.executors.present(SHOP, "anna", b"{}", 1),
    verbs.executors.died(SHOP, "anna", "exited with status 1", 1),
    verbs.executors.absent(SHOP, ["anna"]),
]


@pytest.mark.parametrize("step", OF_THE_QUEUE)
def test_what_concerns_a_queue_goes_to_its_slot(step: Step[Any]) -> None:
    assert step.key is not None
    assert step.key.startswith("fq:{shop/mail}:")


@pytest.mark.parametrize("step", OF_THE_APP)
def test_what_concerns_an_app_goes_to_the_slot_of_the_app(step: Step[Any]) -> None:
    assert step.key is not None
    assert step.key.startswith("fq:{shop}:")


@pytest.mark.parametrize("step", [verbs.server.now(), verbs.server.server()])
def test_what_concerns_a_server_has_no_key(step: Step[Any]) -> None:
    assert step.key is None


def test_a_key_that_is_not_the_second_word_is_found() -> None:
    reading = verbs.queues.reading(MAIL, "s")
    assert (reading.words[0], reading.key) == ("XINFO", MAIL["s"])
