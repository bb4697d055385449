"""Programs replay and purge dead jobs: as operations that any process continues, or by their ids at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fennelq import App
from fennelq.manage.dead.search import MANY_CAUSES
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.api.kit import Program, problem_in
from tests.web.kit import by_name


async def dead(program: Program, app: App, *texts: str) -> list[str]:
    """Jobs that have died, with these arguments."""
    calls = [{"task": "shop:fail", "kwargs": {"text": text}} for text in texts]
    sent = (await program.post("/jobs:bulk", {"jobs": calls})).json()
    jobs = [one["id"] for one in sent["answers"]]
    async with running(app):
        for job in jobs:
            assert (await program.get(f"/jobs/{job}/result?wait=20")).json()["status"] == "DEAD"
    return jobs


async def begun(program: Program, path: str, body: dict[str, Any]) -> str:
    """The path of the operation that this begins."""
    answer = await program.post(path, body)
    assert answer.status_code == 202, answer.text
    location: str = answer.headers["Location"].removeprefix("/api/v1")
    assert answer.json()["id"] == location.rpartition("/")[2]
    return location


async def ended(program: Program, operation: str) -> dict[str, Any]:
    """The operation when it is over."""

    async def over() -> bool:
        return bool((await program.get(operation)).json()["state"] != "running")

    await aeventually(over, within=20)
    found: dict[str, Any] = (await program.get(operation)).json()
    return found


@pytest.mark.parametrize(
    "body",
    [
        {"queue": "orders"},
        {"task": "fail"},
        {"task": "shop:fail"},
        {"error": "RuntimeError"},
        {"until": "now"},
    ],
    ids=str,
)
async def test_dead_jobs_go_back_by_an_operation(program: Program, app: App, body: dict[str, Any]) -> None:
    jobs = await dead(program, app, "one", "two", "three")
    given = {"until": datetime.now(UTC).isoformat()} if body == {"until": "now"} else body
    operation = await begun(program, "/dead:replay", given)
    found = await ended(program, operation)
    assert (found["state"], found["act"], found["total"], found["done"]) == ("done", "replay", 3, 3)
    statuses = [(await program.get(f"/jobs/{job}")).json()["status"] for job in jobs]
    assert statuses == ["SENT"] * 3
    (entry,) = await app.audit.list(what="dlq replay")
    assert (entry.via, entry.done, entry.target) == ("http", 3, operation.rpartition("/")[2])


async def test_the_plan_of_a_replay_is_the_body_that_does_it(program: Program, app: App) -> None:
    jobs = await dead(program, app, "one", "two")
    (group,) = (await program.get("/dead/groups")).json()["groups"]
    plan = (await program.post("/dead:plan", {"fingerprint": group["fingerprint"]})).json()
    assert (plan["count"], plan["ready"]) == (2, 2)
    (late,) = await dead(program, app, "three")
    found = await ended(program, await begun(program, "/dead:replay", plan["plan"]))
    assert found["done"] == 2
    statuses = [(await program.get(f"/jobs/{job}")).json()["status"] for job in (*jobs, late)]
    assert statuses == ["SENT", "SENT", "DEAD"], "what died after the plan is left"


async def test_a_group_is_removed_by_an_operation(program: Program, app: App) -> None:
    jobs = await dead(program, app, "one", "two")
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    none = await ended(program, await begun(program, "/dead:purge", {"queue": "orders", "until": past}))
    assert (none["state"], none["done"]) == ("done", 0)
    (group,) = (await program.get("/dead/groups")).json()["groups"]
    operation = await begun(program, "/dead:purge", {"fingerprint": group["fingerprint"]})
    assert (await ended(program, operation))["done"] == 2
    for job in jobs:
        assert (await program.get(f"/jobs/{job}")).status_code == 404


async def test_jobs_that_are_named_go_back_before_the_answer(program: Program, app: App) -> None:
    one, two, three = await dead(program, app, "one", "two", "three")
    answer = await program.post("/dead:replay", {"ids": [one], "arguments": {"text": "new"}})
    assert (answer.status_code, answer.json()["replayed"]) == (200, 1)
    assert (await program.get(f"/jobs/{one}")).json()["arguments"] == [["new"], {}]
    answer = await program.post("/dead:purge", {"ids": [two]})
    assert (answer.status_code, answer.json()) == (200, {"removed": 1})
    statuses = [(await program.get(f"/jobs/{job}")).status_code for job in (one, two, three)]
    assert statuses == [200, 404, 200]
    assert [entry.what for entry in await app.audit.list()] == ["dlq purge", "dlq replay"]


async def test_new_arguments_that_do_not_fit_put_nothing_back(program: Program, app: App) -> None:
    (job,) = await dead(program, app, "one")
    wrong = await ended(
        program, await begun(program, "/dead:replay", {"task": "fail", "arguments": {"text": 5}})
    )
    assert (wrong["state"], wrong["done"]) == ("failed", 0)
    assert "text" in wrong["problem"]
    right = await begun(program, "/dead:replay", {"task": "fail", "arguments": {"text": "two"}})
    assert (await ended(program, right))["done"] == 1
    assert (await program.get(f"/jobs/{job}")).json()["arguments"] == [["two"], {}]


async def test_a_canary_that_dies_as_before_leaves_the_others_dead(program: Program, app: App) -> None:
    jobs = await dead(program, app, "one", "two", "three")
    operation = await begun(program, "/dead:replay", {"task": "fail", "canary": 1})
    async with running(app):
        found = await ended(program, operation)
    assert (found["state"], found["canary"], found["done"]) == ("failed", 1, 1)
    assert "died as before" in found["problem"]
    assert [(await program.get(f"/jobs/{job}")).json()["status"] for job in jobs] == ["DEAD"] * 3


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"fingerprint": "other"}, "/fingerprint"),
        ({"ids": ["orders:x"], "rate": 5}, "/rate"),
        ({"ids": ["orders:x"], "canary": 5}, "/canary"),
        ({"task": ""}, "/task"),
        ({"ids": []}, "/ids"),
    ],
    ids=str,
)
async def test_a_wrong_replay_points_at_the_mistake(
    program: Program, body: dict[str, Any], pointer: str
) -> None:
    answer = await program.post("/dead:replay", body)
    assert answer.status_code == 422
    assert problem_in(answer)["errors"][0]["pointer"] == pointer


async def test_the_jobs_without_a_group_of_their_own_are_not_moved_together(program: Program) -> None:
    for path in ("/dead:plan", "/dead:replay", "/dead:purge"):
        (fault,) = problem_in(await program.post(path, {"fingerprint": "other"}))["errors"]
        assert fault == {"pointer": "/fingerprint", "detail": MANY_CAUSES}, path


async def test_new_arguments_need_the_right_to_edit(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        for path in ("/dead:replay", "/dead:plan"):
            body = {"task": "fail", "arguments": {"text": "x"}}
            assert (await program.post(path, body, user="replay")).status_code == 403
    assert await app.operations.list() == []


async def test_an_operation_whose_process_is_gone_is_continued(
    program: Program, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await dead(program, app, "one", "two")
    plan = await app.operations.plan("replay", "state:dead task:fail")
    operation = await app.operations.begin(plan, who="ada@web-1")  # and then nothing: it was killed
    path = f"/operations/{operation.id}"
    async with Program(app) as early:
        assert (await early.get(path)).json()["state"] == "running"
    assert await app.audit.list() == [], "it has begun just now"
    monkeypatch.setattr("fennelq.web.adopting.SILENT", -1.0)
    async with Program(app, read_only=True) as looking:
        await looking.get(path)
        assert await app.audit.list() == [], "this process may change nothing"
    async with Program(app) as other:
        assert (await ended(other, path))["done"] == 2
        statuses = [(await other.get(f"/jobs/{job}")).json()["status"] for job in jobs]
    assert statuses == ["SENT"] * 2
