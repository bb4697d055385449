"""absent: executors that have ended are not counted any more."""

from __future__ import annotations

import pytest

from tests.broker.fleet import Fleet
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_their_facts_are_deleted(fleet: Fleet) -> None:
    for executor in ("anna", "berta", "clara"):
        fleet.present(executor)
    assert fleet.absent("anna", "berta") == 2
    assert fleet.facts().keys() == fleet.alive().keys() == {"clara"}


def test_they_are_not_living_any_more(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.absent("anna")
    assert fleet.present("berta").living == 1


def test_it_returns_how_many_were_known(fleet: Fleet) -> None:
    fleet.present("anna")
    assert fleet.absent("anna", "unknown") == 1
    assert fleet.absent("anna", "unknown") == 0
    assert fleet.absent() == 0


def test_the_last_one_leaves_nothing(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.absent("anna")
    assert fleet.redis.keys("fq:*") == []


def test_when_the_watcher_ends_the_next_one_watches(fleet: Fleet) -> None:
    assert fleet.present("anna").watcher
    assert not fleet.present("berta").watcher
    fleet.absent("clara")
    assert not fleet.present("berta").watcher
    fleet.absent("anna")
    assert fleet.present("berta").watcher


def test_others_still_learn_how_they_ended(fleet: Fleet) -> None:
    fleet.died("anna")
    fleet.absent("anna")
    assert fleet.present("berta").deaths == {"anna": "killed by SIGKILL"}


def test_over_maxmemory_their_facts_are_deleted(fleet: Fleet, server: Server) -> None:
    fleet.present("anna")
    with server.configured(maxmemory="1"):
        assert fleet.absent("anna") == 1
    assert fleet.facts() == {}
