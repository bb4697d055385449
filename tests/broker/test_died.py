"""died: how the process of an executor has ended, as its supervisor saw it."""

from __future__ import annotations

import pytest

from tests.broker.desk import about
from tests.broker.fleet import HOUR, NOW, RECENT, Fleet
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

TOLD = 300_000


def test_its_facts_say_how_it_ended_and_when(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.clock.pass_by(500)
    assert fleet.died("anna", "exited with status 1") == NOW + 500
    assert fleet.facts() == {"anna": {"died": "exited with status 1", "beat_ms": NOW + 500}}


def test_others_learn_how_it_ended(fleet: Fleet) -> None:
    fleet.died("anna", 'said "é" and exited')
    fleet.died("berta", "killed by SIGKILL")
    assert fleet.present("clara").deaths == {"anna": 'said "é" and exited', "berta": "killed by SIGKILL"}


def test_a_death_is_kept_with_its_time(fleet: Fleet) -> None:
    fleet.died("anna", "exited with status 1")
    fleet.clock.pass_by(5)
    fleet.died("berta", "")
    assert fleet.deaths() == {"anna": f"{NOW} exited with status 1", "berta": f"{NOW + 5} "}
    assert fleet.present("clara").deaths == {"anna": "exited with status 1", "berta": ""}


def test_the_last_death_of_a_name_counts(fleet: Fleet) -> None:
    fleet.died("anna", "exited with status 1")
    fleet.died("anna", "killed by SIGKILL")
    assert fleet.deaths() == {"anna": f"{NOW} killed by SIGKILL"}


def test_it_does_not_count_as_living_any_more(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.present("berta")
    fleet.died("anna")
    assert fleet.present("berta").living == 1
    assert fleet.alive() == {"anna": NOW - RECENT - 1, "berta": NOW}


def test_its_facts_are_deleted_about_an_hour_later(fleet: Fleet) -> None:
    fleet.died("anna")
    fleet.clock.pass_by(HOUR - RECENT - 2)
    fleet.present("berta")
    assert fleet.facts().keys() == {"anna", "berta"}
    fleet.clock.pass_by(1)
    fleet.present("berta")
    assert fleet.facts().keys() == fleet.alive().keys() == {"berta"}


@pytest.mark.parametrize(("recent_ms", "told_ms"), [(RECENT, TOLD), (TOLD, 2 * TOLD)])
def test_deaths_expire_when_none_is_told_any_more(fleet: Fleet, recent_ms: int, told_ms: int) -> None:
    fleet.died("anna", recent_ms=recent_ms)
    fleet.redis.pexpire(fleet.keys["deaths"], 1000)
    fleet.died("berta", recent_ms=recent_ms)
    assert fleet.redis.pttl(fleet.keys["deaths"]) == about(told_ms)


@pytest.mark.parametrize(("recent_ms", "told_ms"), [(RECENT, TOLD), (TOLD, 2 * TOLD)])
def test_a_later_death_drops_those_that_are_told_no_more(fleet: Fleet, recent_ms: int, told_ms: int) -> None:
    fleet.died("anna", "exited with status 1", recent_ms)
    fleet.clock.pass_by(told_ms)
    fleet.died("berta", "exited with status 2", recent_ms)
    assert fleet.present("dora").deaths == {"anna": "exited with status 1", "berta": "exited with status 2"}
    fleet.clock.pass_by(1)
    fleet.died("clara", "exited with status 3", recent_ms)
    assert fleet.deaths() == {
        "berta": f"{NOW + told_ms} exited with status 2",
        "clara": f"{NOW + told_ms + 1} exited with status 3",
    }


def test_of_many_deaths_the_latest_fifty_are_told(fleet: Fleet) -> None:
    for number in range(120):
        fleet.died(f"e{number}", f"exited with status {number}")
        fleet.clock.pass_by(1)
    assert fleet.deaths() == {
        f"e{number}": f"{NOW + number} exited with status {number}" for number in range(70, 120)
    }


def test_of_many_deaths_at_the_same_time_the_last_one_is_told(fleet: Fleet) -> None:
    for number in range(60):
        fleet.died(f"e{number}")
        assert f"e{number}" in fleet.deaths()
        assert len(fleet.deaths()) == min(number + 1, 50)


def test_deaths_from_before_the_clock_was_set_back_are_dropped(fleet: Fleet) -> None:
    fleet.clock.pass_by(HOUR)
    for number in range(60):
        fleet.died(f"e{number}")
    fleet.clock.pass_by(-HOUR)
    fleet.died("anna")
    assert fleet.deaths() == {"anna": f"{NOW} killed by SIGKILL"}


@pytest.mark.parametrize("value", ["killed by SIGKILL", "", "soon killed by SIGKILL"])
def test_a_death_without_a_time_is_dropped(fleet: Fleet, value: str) -> None:
    fleet.redis.hset(fleet.keys["deaths"], "anna", value)
    fleet.died("berta")
    assert fleet.deaths() == {"berta": f"{NOW} killed by SIGKILL"}


def test_over_maxmemory_a_death_is_recorded(fleet: Fleet, server: Server) -> None:
    with server.configured(maxmemory="1"):
        fleet.died("anna")
    assert fleet.deaths() == {"anna": f"{NOW} killed by SIGKILL"}
