"""declare: schedules written by a version of fennelq that did not record services, and workers that still run it.

That version knows one set of declared schedules for the whole app, with the source `code`, and removes those which it
does not declare itself. Its script is kept as it was in `declare_before_services.lua`, with what it includes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.model.schedule import WireSchedule
from tests.broker.timetable import MINUTE, NEXT, OTHER, PATIENCE, SHOP, V1, V2, Timetable, a_schedule

pytestmark = pytest.mark.both_servers

SCRIPT = Path(__file__).with_name("declare_before_services.lua").read_text("utf-8")
DEFINITION = b'{"args":"[[],{}]","every_ms":60000,"name":"%s","queue":"mail","task":"app:report"}'


def written_before(timetable: Timetable, *names: str) -> None:
    """What that fennelq has written, word by word, when it declared these at NOW as its version `old`."""
    redis, keys = timetable.redis, timetable.keys
    redis.zadd(keys["cron:due"], dict.fromkeys(names, NEXT))
    redis.hset(keys["cron:meta"], mapping={"digest": "old", "heard": "1795000000000"})
    redis.zadd(keys["cron:versions"], {"old": 1795000000000})
    redis.sadd(keys["cron:names"], *names)
    for name in names:
        state: dict[Any, Any] = {
            "definition": DEFINITION % name.encode(),
            "source": "code",
            "next": "1795000020000",
        }
        redis.hset(keys.schedule(name), mapping=state)


class Before:
    """A worker with that fennelq."""

    def __init__(self, timetable: Timetable) -> None:
        self._timetable = timetable

    def declare(self, version: str, *schedules: WireSchedule) -> int:
        """1: done, 0: a later version holds."""
        timetable, now = self._timetable, self._timetable.clock.now()
        keys = [timetable.keys[f"cron:{name}"] for name in ("due", "meta", "versions", "names", "queued")]
        words: list[Any] = [timetable.keys.prefix, version, PATIENCE]
        for one in schedules:
            words += [one.name, one.to_wire(), one.next_after(now) or ""]
        stopped = f"local clock = {{'{now // 1000}', '{now % 1000 * 1000}'}}"
        script = SCRIPT.replace("local clock = redis.call('TIME')", stopped)
        return int(cast("Any", timetable.redis).eval(script, len(keys), *keys, *words))

    def look(self, version: str) -> None:
        """All that is of interest here: the version that declared last is heard."""
        meta, redis = self._timetable.keys["cron:meta"], self._timetable.redis
        if redis.hget(meta, "digest") == version.encode():
            redis.hset(meta, "heard", str(self._timetable.clock.now()))


@pytest.fixture
def before(timetable: Timetable) -> Before:
    return Before(timetable)


def test_the_literal_data_is_what_that_fennelq_writes(timetable: Timetable, before: Before) -> None:
    written_before(timetable, "kept", "vanished")
    literal = timetable.everything()
    timetable.redis.delete(*literal)
    assert before.declare("old", a_schedule("kept"), a_schedule("vanished")) == 1
    assert timetable.everything() == literal


# Taken over


def test_a_new_version_takes_over_what_it_declares_and_removes_what_has_vanished(
    timetable: Timetable,
) -> None:
    written_before(timetable, "kept", "vanished")
    timetable.schedule("pause", "kept")
    timetable.clock.stop_at(NEXT + 1)
    assert timetable.declare(V1, a_schedule("kept", args=b"[[7],{}]"), a_schedule("new")) == "done"
    assert timetable.names() == {"kept", "new"}
    assert timetable.removed == ["vanished"]
    assert timetable.definition("kept").args == b"[[7],{}]"
    assert timetable.state("kept") == {"source": f"code:{SHOP}", "next": str(NEXT), "paused": "1"}
    assert timetable.look(V1).version == V1


def test_the_same_version_takes_over_as_well(timetable: Timetable) -> None:
    written_before(timetable, "kept", "other")
    assert timetable.declare("old", a_schedule("kept"), a_schedule("other")) == "done"
    assert (timetable.names(), timetable.removed) == ({"kept", "other"}, [])
    assert timetable.due() == {"kept": NEXT, "other": NEXT}
    assert timetable.owned(SHOP) == {"kept": 1, "other": 1}
    assert timetable.look("old").version == "old"


def test_it_takes_its_own_set_over_whatever_task_one_of_them_has_now(timetable: Timetable) -> None:
    written_before(timetable, "a", "b")
    changed = a_schedule("a", task="app:renamed"), a_schedule("b")
    timetable.declare(V1, *changed)
    assert timetable.removed == []
    timetable.page(V1, changed[:1], "again")
    assert timetable.definition("a") == changed[0]
    assert timetable.do(verbs.schedules.denied, SHOP) == {}


def test_many_vanished_ones_are_removed_a_page_at_a_time(timetable: Timetable) -> None:
    written_before(timetable, "kept", *(f"s{n}" for n in range(500)))
    page, calls = timetable.page(V1, [a_schedule("kept")]), 1
    while page.state == "open":
        assert timetable.look(V1).version == ""
        page, calls = timetable.page(V1, [a_schedule("kept")], page.at), calls + 1
    assert calls > 2
    assert timetable.names() == {"kept"}
    assert len(timetable.removed) == 500


def test_of_many_only_the_vanished_one_is_removed_and_the_set_is_visited_once(timetable: Timetable) -> None:
    kept = [a_schedule(f"s{n}") for n in range(500)]
    written_before(timetable, "vanished", *(schedule.name for schedule in kept))
    at, states = 0, ["open"]
    while states[-1] == "open" and len(states) < 50:
        page = timetable.page(V1, kept, at)
        at, states = page.at, [*states, page.state]
    assert states[-1] == "done"
    assert len(states) > 8, "five pages are declared, and the rest visits the names"
    assert timetable.removed == ["vanished"]
    assert timetable.page(V1, kept[:1], "again", total=500).state == "done"


@pytest.mark.parametrize("schedules", [[], [a_schedule("ours")], [a_schedule("kept", task="app:other")]])
def test_a_service_to_which_the_set_does_not_belong_leaves_it_alone(
    timetable: Timetable, schedules: list[WireSchedule]
) -> None:
    written_before(timetable, "kept", "vanished")
    state = timetable.state("kept"), timetable.definition("kept")
    timetable.declare(V1, *schedules)
    assert timetable.names() == {"kept", "vanished"} | {schedule.name for schedule in schedules}
    assert (timetable.state("kept"), timetable.definition("kept")) == state
    assert timetable.meta()["digest"] == "old"
    assert timetable.do(verbs.schedules.denied, SHOP) == {
        s.name: "code" for s in schedules if s.name == "kept"
    }


def test_a_name_of_a_set_that_is_not_its_own_goes_over_when_its_workers_are_gone(
    timetable: Timetable,
) -> None:
    written_before(timetable, "kept", "theirs")
    ours = a_schedule("kept", task="app:other")
    timetable.declare(V1, ours)
    timetable.clock.pass_by(PATIENCE)
    assert timetable.page(V1, [ours], "again").state == "done"
    assert timetable.definition("kept") == ours
    assert timetable.names() == {"kept", "theirs"}


# Beside workers of that fennelq


def test_during_a_deploy_an_older_worker_that_restarts_changes_nothing(
    timetable: Timetable, before: Before
) -> None:
    before.declare("old", a_schedule("kept"), a_schedule("vanished"))
    timetable.declare(V1, a_schedule("kept", every_ms=1000), a_schedule("new"))
    for _ in range(5):
        timetable.clock.pass_by(PATIENCE // 2)
        timetable.look(V1)
        state = timetable.everything()
        assert before.declare("old", a_schedule("kept"), a_schedule("vanished")) == 0
        assert timetable.everything() == state


def test_nor_does_it_when_the_next_version_has_come(timetable: Timetable, before: Before) -> None:
    before.declare("old", a_schedule("kept"))
    timetable.declare(V1, a_schedule("kept"))
    timetable.declare(V2, a_schedule("kept", every_ms=1000))
    for _ in range(3):
        timetable.clock.pass_by(PATIENCE // 2)
        timetable.look(V2)
        assert before.declare("old", a_schedule("kept")) == 0
    assert timetable.definition("kept").every_ms == 1000


def test_after_a_rollback_the_older_worker_takes_back_what_it_declares(
    timetable: Timetable, before: Before
) -> None:
    before.declare("old", a_schedule("kept"), a_schedule("vanished"))
    timetable.declare(V1, a_schedule("kept", every_ms=1000), a_schedule("new"))
    timetable.clock.pass_by(PATIENCE)
    assert before.declare("old", a_schedule("kept"), a_schedule("vanished")) == 1
    assert timetable.names() == {"kept", "vanished", "new"}, "only a new fennelq could remove `new`"
    assert timetable.definition("kept") == a_schedule("kept")


def test_and_the_later_version_again_once_that_one_is_gone(timetable: Timetable, before: Before) -> None:
    ours = a_schedule("kept", every_ms=1000), a_schedule("new")
    before.declare("old", a_schedule("kept"), a_schedule("vanished"))
    timetable.declare(V1, *ours)
    timetable.clock.pass_by(PATIENCE)
    before.declare("old", a_schedule("kept"), a_schedule("vanished"))
    assert timetable.look(V1).version == ""
    assert timetable.declare(V1, *ours) == "done"
    assert timetable.definition("kept") == a_schedule("kept"), "they do not fight"
    assert timetable.do(verbs.schedules.denied, SHOP) == {"kept": "code"}
    assert timetable.look(V1).version == V1
    timetable.clock.pass_by(PATIENCE - 1)
    timetable.look(V1)
    timetable.page(V1, ours[:1], "again")
    assert timetable.definition("kept") == a_schedule("kept")
    timetable.clock.pass_by(1)
    page = timetable.page(V1, ours[:1], "again", total=2)
    while page.state == "open":
        page = timetable.page(V1, ours, page.at)
    assert timetable.names() == {"kept", "new"}
    assert timetable.removed == ["vanished"]
    assert timetable.definition("kept") == ours[0]
    assert before.declare("old", a_schedule("kept"), a_schedule("vanished")) == 0


def test_until_all_that_has_vanished_is_removed_executors_go_on_declaring(
    timetable: Timetable, before: Before
) -> None:
    """The executor that has taken the set over may end before it has removed everything."""
    kept, vanished = a_schedule("kept"), [a_schedule(f"s{n}") for n in range(500)]
    before.declare("old", kept, *vanished)
    timetable.declare(V1, kept)
    timetable.clock.pass_by(PATIENCE)
    before.declare("old", kept, *vanished)
    timetable.declare(V1, kept)
    assert timetable.look(V1).version == V1
    timetable.clock.pass_by(PATIENCE)
    page = timetable.page(V1, [kept], "again")
    while page.state == "open":
        assert timetable.look(V1).version == ""
        page = timetable.page(V1, [kept], page.at)
    assert timetable.look(V1).version == V1
    assert timetable.names() == {"kept"}


def test_an_older_worker_of_another_service_removes_nothing_of_a_new_one(
    timetable: Timetable, before: Before
) -> None:
    timetable.declare(V1, a_schedule("ours"))
    for version in ("theirs", "none"):
        schedules = [a_schedule("theirs", task="other:task")] if version == "theirs" else []
        assert before.declare(version, *schedules) == 1
        assert timetable.look(V1).version == ""
        assert timetable.declare(V1, a_schedule("ours")) == "done"
        assert timetable.look(V1).version == V1
        assert timetable.names() == {"ours", *(schedule.name for schedule in schedules)}
    assert timetable.state("ours")["source"] == f"code:{SHOP}"


def test_what_it_writes_over_comes_back(timetable: Timetable, before: Before) -> None:
    timetable.declare(V1, a_schedule("a", every_ms=1000))
    timetable.declare(V1, a_schedule("b"), service=OTHER)
    before.declare("unknown", a_schedule("a", every_ms=3 * MINUTE))
    assert timetable.look(V1).version == timetable.look(V1, service=OTHER).version == ""
    timetable.declare(V1, a_schedule("b"), service=OTHER)
    timetable.declare(V1, a_schedule("a", every_ms=1000))
    assert timetable.definition("a").every_ms == 1000
    assert before.declare("unknown", a_schedule("a", every_ms=3 * MINUTE)) == 0
    assert timetable.look(V1).version == V1
    assert timetable.look(V1, service=OTHER).version == ""
    timetable.declare(V1, a_schedule("b"), service=OTHER)
    assert timetable.look(V1, service=OTHER).version == V1
    assert timetable.names() == {"a", "b"}


def test_versions_remembered_for_older_workers_are_bounded(timetable: Timetable) -> None:
    for number in range(60):
        timetable.clock.pass_by(1)
        timetable.redis.hset(timetable.keys["cron:meta"], "digest", f"v{number - 1}")
        timetable.declare(f"v{number}", a_schedule())
    versions = cast("list[bytes]", timetable.redis.zrange(timetable.keys["cron:versions"], 0, -1))
    assert len(versions) == 50
    assert versions[-1] == b"v59"
