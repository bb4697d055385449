"""replayable: which dead jobs a replay could put back; it writes nothing."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from tests.broker.desk import Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_each_entry_has_its_own_answer(desk: Desk) -> None:
    first, second, taken = desk.dead(*some_jobs(2), a_job("3", idempotency="app:welcome:42"))
    desk.redis.hdel(desk.keys.record("2"), "a")
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    desk.enqueue(a_job("4", idempotency="app:welcome:42"))
    before = desk.everything()
    entries = [first, "1-1", taken, second]
    assert desk.do(verbs.dead.replayable, entries) == [1, 0, -1, -2]
    assert desk.everything() == before
    desk.redis.hset(desk.keys.record("2"), "a", "[42]")
    desk.do(verbs.dead.forget, [taken])


def test_the_answers_are_those_of_the_replay(desk: Desk) -> None:
    entries = desk.dead(*some_jobs(3))
    desk.redis.delete(desk.keys.record("2"), desk.keys.result("2"))
    assert desk.do(verbs.dead.replayable, entries) == [1, -2, 1]
    assert desk.do(verbs.dead.replay, entries) == [1, 0, 1]
    assert desk.do(verbs.dead.replayable, entries) == [0, -2, 0]
    desk.do(verbs.dead.forget, entries)


def test_it_may_be_asked_over_maxmemory(desk: Desk, server: Server) -> None:
    entries = desk.dead()
    with server.configured(maxmemory="1"):
        assert desk.do(verbs.dead.replayable, entries) == [1]
