"""died: how the process of an executor has ended, as its supervisor saw it."""

from __future__ import annotations

import pytest

from tests.broker.desk import about
from tests.broker.fleet import HOUR, NOW, RECENT, Fleet
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_its_facts_say_how_it_ended_and_when(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.clock.pass_by(500)
    assert fleet.died("anna", "exited with status 1") == NOW + 500
    assert fleet.facts() == {"anna": {"died": "exited with status 1", "beat_ms": NOW + 500}}


def test_others_learn_how_it_ended(fleet: Fleet) -> None:
    fleet.died("anna", 'said "é" and exited')
    fleet.died("berta", "killed by SIGKILL")
    deaths = {"anna": 'said "é" and exited', "berta": "killed by SIGKILL"}
    assert fleet.deaths() == fleet.present("clara").deaths == deaths


def test_the_last_death_of_a_name_counts(fleet: Fleet) -> None:
    fleet.died("anna", "exited with status 1")
    fleet.died("anna", "killed by SIGKILL")
    assert fleet.deaths() == {"anna": "killed by SIGKILL"}


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


def test_deaths_expire_an_hour_after_the_last(fleet: Fleet) -> None:
    fleet.died("anna")
    fleet.redis.pexpire(fleet.keys["deaths"], 1000)
    fleet.died("berta")
    assert fleet.redis.pttl(fleet.keys["deaths"]) == about(HOUR)


def test_a_list_of_a_thousand_deaths_is_begun_anew(fleet: Fleet) -> None:
    for number in range(1000):
        fleet.died(f"e{number}")
    assert len(fleet.deaths()) == 1000
    fleet.died("anna", "exited with status 1")
    assert fleet.deaths() == {"anna": "exited with status 1"}
    assert fleet.redis.pttl(fleet.keys["deaths"]) == about(HOUR)


def test_over_maxmemory_a_death_is_recorded(fleet: Fleet, server: Server) -> None:
    with server.configured(maxmemory="1"):
        fleet.died("anna")
    assert fleet.deaths() == {"anna": "killed by SIGKILL"}
