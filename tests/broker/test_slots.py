"""On a server of a cluster, a script may touch only keys of one slot. All slots of this one are on one server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.verbs.dead import Change
from fennelq.broker.verbs.jobs import ASKED
from fennelq.broker.verbs.search import Criteria, find, line_place, places_of
from fennelq.model.query import LIVE, parse
from tests.broker.desk import APP, DEAD, LIFETIMES, Bench, Desk, a_job, some_jobs
from tests.kit.server import Kind, Server, available
from tests.kit.waiting import eventually


@pytest.fixture(scope="module", params=available())
def clustered(request: pytest.FixtureRequest) -> Iterator[Server]:
    kind: Kind = request.param
    with Server(kind, config={"cluster-enabled": "yes"}) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        redis: Any = client
        eventually(lambda: "cluster_state:ok" in str(redis.execute_command("CLUSTER", "INFO")))
        yield server


def test_a_script_that_reads_or_operates_touches_keys_of_one_slot(clustered: Server) -> None:
    desk = Desk(clustered)
    limited = a_job("limited", gates="c1:app:welcome/1")
    runs = desk.executing(*some_jobs(3), limited)
    desk.enqueue(a_job("in line", gates="c1:app:welcome/1"), a_job("later", delay_ms=600_000), a_job("ready"))
    desk.finish(runs[:3], DEAD)
    entries = [entry for entry, _ in desk.entries("dlq")]
    survey = desk.do(verbs.survey.survey)
    assert (survey.dead, survey.scheduled, survey.in_lines, survey.damage) == (3, 1, 1, "")
    assert [run.key for run in desk.do(verbs.survey.running).runs] == ["limited"]
    places = [*places_of(LIVE), line_place("c1:app:welcome/1")]
    criteria = Criteria(parse('task:welcome -"no card" -header:a=b -fp:0000beef -on:web', datetime.now(UTC)))
    step = desk.do(find, places, criteria)
    assert (step.problem, step.done, step.looked >= 6) == ("", len(places), True)
    assert desk.do(verbs.dead.groups).is_complete
    assert desk.do(verbs.dead.replayable, entries) == [1, 1, 1]
    assert desk.do(verbs.dead.replay, entries[:1], {entries[0]: Change(b"[[43],{}]")}) == [1]
    assert desk.do(verbs.dead.forget, entries[1:2]) == 1
    assert desk.do(verbs.dead.index, 10).jobs == 0
    assert desk.do(verbs.jobs.run_now, ["later"]) == [1]
    assert desk.do(verbs.jobs.cancel, ["limited"], LIFETIMES) == [ASKED]
    desk.close()


def test_the_record_of_an_operation_is_in_the_slot_of_the_app(clustered: Server) -> None:
    bench = Bench(clustered, AppKeys(APP))
    bench.do(verbs.operations.op_begin, "a1", {"act": "cancel"})
    assert bench.do(verbs.operations.op_perform, "a1", "me", "claim").word == "yours"
    assert bench.do(verbs.operations.op_stop, "a1") == "running"
    assert bench.do(verbs.operations.newest, 10) == ["a1"]
    bench.close()
