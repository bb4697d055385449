"""present: an executor publishes that it is alive, and learns of the others."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.verbs.executors import FORGOTTEN_AFTER_MS, Present
from tests.broker.desk import APP, about
from tests.broker.fleet import HOUR, NOW, RECENT, Fleet
from tests.kit.server import Server
from tests.kit.waiting import eventually

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


def test_it_returns_the_time_the_living_the_queues_the_watcher_and_the_deaths(fleet: Fleet) -> None:
    fleet.broker.ask(verbs.queues.note_queues(APP, ["mail", "post", "video"]))
    fleet.present("anna")
    fleet.died("clara", "killed by SIGKILL")
    assert fleet.present("berta") == Present(NOW, 2, 3, watcher=False, deaths={"clara": "killed by SIGKILL"})


def test_the_first_executor_is_the_only_one(fleet: Fleet) -> None:
    assert fleet.present("anna") == Present(NOW, 1, 0, watcher=True, deaths={})


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


@pytest.mark.parametrize(("ahead_ms", "living"), [(RECENT, 2), (RECENT + 1, 1), (HOUR, 1)])
def test_an_executor_of_the_time_before_the_clock_was_set_back_does_not_count_as_living(
    fleet: Fleet, ahead_ms: int, living: int
) -> None:
    fleet.clock.pass_by(ahead_ms)
    fleet.present("anna")
    fleet.clock.pass_by(-ahead_ms)
    assert fleet.present("berta").living == living
    assert fleet.alive() == {"anna": NOW + ahead_ms, "berta": NOW}


def test_the_watcher_deletes_facts_after_an_hour(fleet: Fleet) -> None:
    assert FORGOTTEN_AFTER_MS == HOUR
    assert fleet.present("berta").watcher
    fleet.present("anna")
    fleet.clock.pass_by(HOUR - 1)
    fleet.present("berta")
    assert fleet.facts().keys() == {"anna", "berta"}
    fleet.clock.pass_by(1)
    fleet.present("berta")
    assert fleet.facts().keys() == fleet.alive().keys() == {"berta"}


def test_other_executors_delete_no_facts(fleet: Fleet) -> None:
    fleet.present("anna")
    fleet.clock.pass_by(HOUR)
    assert not fleet.present("berta").watcher
    assert fleet.facts().keys() == fleet.alive().keys() == {"anna", "berta"}


def test_the_facts_of_many_are_deleted_in_pages(fleet: Fleet) -> None:
    assert fleet.present("anna").watcher
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
    assert fleet.present("anna") == Present(NOW, 51, 0, watcher=False, deaths={})


def test_an_executor_that_was_taken_for_dead_is_alive_again(fleet: Fleet) -> None:
    fleet.died("anna")
    assert fleet.present("anna") == Present(NOW, 1, 0, watcher=True, deaths={"anna": "killed by SIGKILL"})
    assert fleet.facts() == {"anna": {"host": "web-1", "beat_ms": NOW}}


# The watcher


def watchers(fleet: Fleet, *executors: str) -> list[str]:
    return [executor for executor in executors if fleet.present(executor).watcher]


def test_of_many_executors_one_is_the_watcher_and_stays_it(fleet: Fleet) -> None:
    names = [f"e{number}" for number in range(10)]
    assert [watchers(fleet, *names), watchers(fleet, *reversed(names))] == [["e0"], ["e0"]]
    assert fleet.redis.get(fleet.keys["watcher"]) == b"e0"


def test_the_watcher_renews_its_place_and_others_do_not(fleet: Fleet) -> None:
    fleet.present("anna")
    assert fleet.redis.pttl(fleet.keys["watcher"]) == about(RECENT)
    fleet.redis.pexpire(fleet.keys["watcher"], HOUR)
    assert watchers(fleet, "berta") == []
    assert fleet.redis.pttl(fleet.keys["watcher"]) == about(HOUR)
    assert watchers(fleet, "anna") == ["anna"]
    assert fleet.redis.pttl(fleet.keys["watcher"]) == about(RECENT)


def test_when_the_watcher_has_been_absent_another_one_takes_its_place(fleet: Fleet) -> None:
    assert fleet.present("anna", recent_ms=1).watcher
    eventually(lambda: fleet.present("berta").watcher)
    assert watchers(fleet, "anna", "berta", "clara") == ["berta"]


def test_each_app_has_a_watcher(fleet: Fleet) -> None:
    other = AppKeys("other")
    fleet.present("anna")
    (found,) = fleet.broker.send_all([verbs.executors.present(other, "berta", b"{}", RECENT)])
    assert found.watcher
    assert fleet.redis.get(other["watcher"]) == b"berta"
    assert watchers(fleet, "anna", "berta") == ["anna"]


def test_over_maxmemory_executors_are_present(fleet: Fleet, server: Server) -> None:
    with server.configured(maxmemory="1"):
        assert fleet.present("anna") == Present(NOW, 1, 0, watcher=True, deaths={})
