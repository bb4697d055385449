"""present: an executor publishes that it is alive, and learns of the others."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.executors import FORGOTTEN_AFTER_MS, Present
from tests.broker.desk import APP
from tests.broker.fleet import HOUR, NOW, RECENT, Fleet
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_the_facts_are_kept_with_the_time_of_the_server(fleet: Fleet) -> None:
    fleet.present("anna", b'{"host":"web-1","held":["mail:1"]}')
    assert fleet.facts() == {"anna": {"host": "web-1", "held": ["mail:1"], "beat_ms": NOW}}
    assert fleet.alive() == {"anna": NOW}


def test_later_facts_replace_the_earlier_ones(fleet: Fleet) -> None:
    fleet.present("anna", b'{"host":"web-1","slots":1}')
    fleet.clock.pass_by(1000)
    fleet.present("anna", b'{"host":"web-1"}')
    assert fleet.facts() == {"anna": {"host": "web-1", "beat_ms": NOW + 1000}}
    assert fleet.alive() == {"anna": NOW + 1000}


def test_it_returns_the_time_the_living_the_queues_and_the_deaths(fleet: Fleet) -> None:
    fleet.broker.ask(verbs.queues.note_queues(APP, ["mail", "post", "video"]))
    fleet.present("anna")
    fleet.died("clara", "killed by SIGKILL")
    assert fleet.present("berta") == Present(NOW, 2, 3, {"clara": "killed by SIGKILL"})


def test_the_first_executor_is_the_only_one(fleet: Fleet) -> None:
    assert fleet.present("anna") == Present(NOW, 1, 0, {})


def test_an_executor_counts_as_living_for_so_long_and_no_longer(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.clock.pass_by(RECENT)
    assert fleet.present("berta").living == 2
    fleet.clock.pass_by(1)
    assert fleet.present("berta").living == 1
    assert fleet.alive().keys() == fleet.facts().keys() == {"anna", "berta"}


def test_each_caller_has_its_own_idea_of_how_long_that_is(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.clock.pass_by(RECENT + 1)
    assert fleet.present("berta", recent_ms=2 * RECENT).living == 2


def test_facts_are_deleted_after_an_hour(fleet: Fleet) -> None:
    assert FORGOTTEN_AFTER_MS == HOUR
    fleet.present("anna")
    fleet.clock.pass_by(HOUR - 1)
    fleet.present("berta")
    assert fleet.facts().keys() == {"anna", "berta"}
    fleet.clock.pass_by(1)
    fleet.present("berta")
    assert fleet.facts().keys() == fleet.alive().keys() == {"berta"}


def test_the_facts_of_many_are_deleted_in_pages(fleet: Fleet) -> None:
    for number in range(250):
        fleet.present(f"e{number}")
    fleet.clock.pass_by(HOUR)
    left = list[int]()
    for _ in range(3):
        fleet.present("anna")
        left.append(len(fleet.alive()))
    assert left == [151, 51, 1]
    assert fleet.facts().keys() == {"anna"}


def test_an_executor_reads_no_facts_of_others(fleet: Fleet) -> None:
    """The reply does not grow with the fleet."""
    for number in range(50):
        fleet.present(f"e{number}")
    assert fleet.present("anna") == Present(NOW, 51, 0, {})


def test_an_executor_that_was_taken_for_dead_is_alive_again(fleet: Fleet) -> None:
    fleet.died("anna")
    assert fleet.present("anna") == Present(NOW, 1, 0, {"anna": "killed by SIGKILL"})
    assert fleet.facts() == {"anna": {"host": "web-1", "beat_ms": NOW}}


def test_over_maxmemory_executors_are_present(fleet: Fleet, server: Server) -> None:
    with server.configured(maxmemory="1"):
        assert fleet.present("anna").living == 1
