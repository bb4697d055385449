"""Programs send jobs: one, one of a task, many; an Idempotency-Key makes one job of any number of calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from fennelq import App
from tests.kit.server import Server
from tests.kit.workers import running
from tests.web.api.kit import JSON, Program, problem_in, reports
from tests.web.kit import by_name

WELCOME = {"task": "shop:welcome", "kwargs": {"user_id": 42}}


async def waiting(app: App, queue: str = "mail") -> int:
    return (await app.queues.info(queue)).waiting


async def test_a_job_is_sent_and_its_address_is_returned(program: Program, app: App) -> None:
    answer = await program.post("/jobs", WELCOME)
    assert answer.status_code == 201
    sent = answer.json()
    assert sent == {"id": sent["id"], "deduplicated": False}
    assert answer.headers["Location"] == f"/api/v1/jobs/{sent['id']}"
    info = await app.jobs.info(sent["id"])
    assert info is not None
    assert (info.task, info.queue, json.loads(info.arguments)) == (
        "shop:welcome",
        "mail",
        [[], {"user_id": 42}],
    )


async def test_a_sent_job_runs_and_its_result_is_returned(program: Program, app: App) -> None:
    sent = (
        await program.post("/jobs", {"task": "shop:welcome", "args": [7], "kwargs": {"greeting": "hi"}})
    ).json()
    path = f"/jobs/{sent['id']}/result"
    answer = await program.get(path)
    assert (answer.status_code, answer.json()) == (202, {"id": sent["id"], "status": "SENT"})
    async with running(app):
        answer = await program.get(f"{path}?wait=20")
    assert (answer.status_code, answer.json()) == (
        200,
        {"id": sent["id"], "status": "SUCCESS", "result": "hi 7"},
    )


async def test_a_call_of_a_task_has_the_arguments_as_its_body(program: Program, app: App) -> None:
    body = {"lines": [{"item": "tea", "count": 2}], "day": "2026-05-01", "card": "4111"}
    answer = await program.post("/jobs/shop:order?priority=high&delay=60", body)
    assert answer.status_code == 201
    info = await app.jobs.info(answer.json()["id"])
    assert info is not None
    assert (info.priority, info.status) == ("high", "SCHEDULED")
    assert json.loads(info.arguments) == [
        [],
        {"lines": [{"item": "tea", "count": 2}], "day": "2026-05-01", "card": "4111"},
    ]


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        ({"kwargs": {}}, "/task", "Field required"),
        ({"task": 5}, "/task", "string"),
        ({"task": "shop:welcome", "kwargs": {"user_id": "x"}}, "/kwargs/user_id", "integer"),
        ({"task": "shop:welcome", "args": ["x"]}, "/args/0", "integer"),
        (
            {"task": "shop:welcome", "kwargs": {"user_id": 1, "nosuch": 2}},
            "/kwargs/nosuch",
            "no such parameter",
        ),
        ({"task": "shop:welcome"}, "/kwargs", "user_id"),
        (
            {"task": "shop:welcome", "args": [1], "options": {"retires": 3}},
            "/options/retires",
            "not permitted",
        ),
        ({"task": "shop:welcome", "args": [1], "options": {"retries": "3"}}, "/options/retries", "integer"),
        (
            {"task": "shop:welcome", "args": [1], "options": {"priority": "urgent"}},
            "/options/priority",
            "high",
        ),
        (
            {"task": "shop:welcome", "args": [1], "options": {"queue": "nosuch"}},
            "/options/queue",
            "does not exist",
        ),
        ({"task": "shop:welcome", "args": [1], "options": {"queue": "a{b}"}}, "/options/queue", "not valid"),
        ({"task": "shop:welcome", "args": [1], "options": {"at": "tomorrow"}}, "/options/at", "datetime"),
        ({"task": "shop:welcom", "args": [1]}, "/task", "did you mean 'shop:welcome'"),
        ({"task": "shop:welcome", "args": [1], "more": 1}, "/more", "not permitted"),
    ],
    ids=str,
)
async def test_a_wrong_call_is_refused_with_the_place_of_the_mistake(
    program: Program, app: App, body: dict[str, Any], pointer: str, says: str
) -> None:
    answer = await program.post("/jobs", body)
    assert answer.status_code == 422, answer.text
    (fault, *_) = problem_in(answer)["errors"]
    assert fault["pointer"] == pointer
    assert says in fault["detail"]
    assert await waiting(app) == 0


async def test_a_wrong_argument_of_a_task_points_at_the_parameter(program: Program) -> None:
    answer = await program.post(
        "/jobs/shop:order", {"lines": [{"item": "tea", "count": "x"}], "day": "2026-05-01"}
    )
    (fault,) = problem_in(answer)["errors"]
    assert fault["pointer"] == "/lines"
    assert "[0]['count']" in fault["detail"]
    assert (await program.post("/jobs/shop:nosuch", {})).status_code == 404


async def test_a_user_sends_the_tasks_of_its_pattern_only(app: App) -> None:
    async with Program(app, auth=reports) as program:
        assert (await program.post("/jobs", {"task": "reports:daily"})).status_code == 201
        answer = await program.post("/jobs", WELCOME)
        assert answer.status_code == 403
        assert "send:shop:welcome" in problem_in(answer)["detail"]
        assert (await program.post("/jobs/shop:welcome", {"user_id": 1})).status_code == 403
        bulk = (await program.post("/jobs:bulk", {"jobs": [WELCOME, {"task": "reports:daily"}]})).json()
        assert [one["status"] for one in bulk["answers"]] == [403, 201]
    assert await waiting(app) == 0


async def test_the_same_key_a_hundred_times_at_once_makes_one_job(program: Program, app: App) -> None:
    answers = await asyncio.gather(
        *(program.post("/jobs", WELCOME, Idempotency_Key='"order-42"') for _ in range(100))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 99 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await waiting(app) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"task": "shop:welcome", "kwargs": {"user_id": 43}},
        {"task": "shop:welcome", "kwargs": {"user_id": 42}, "options": {"priority": "high"}},
    ],
    ids=str,
)
async def test_the_same_key_with_another_call_is_refused(
    program: Program, app: App, other: dict[str, Any]
) -> None:
    first = (await program.post("/jobs", WELCOME, Idempotency_Key="order-42")).json()
    answer = await program.post("/jobs", other, Idempotency_Key="order-42")
    assert answer.status_code == 422
    assert problem_in(answer)["type"] == "urn:fennelq:idempotency-key-reused"
    assert problem_in(answer)["job"] == first["id"]
    assert await waiting(app) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"task": "reports:daily"},
        {"task": "shop:welcome", "kwargs": {"user_id": 42}, "options": {"queue": "orders"}},
    ],
    ids=["a task of another queue", "another queue"],
)
async def test_the_same_key_for_another_queue_is_refused(
    program: Program, app: App, other: dict[str, Any]
) -> None:
    first = (await program.post("/jobs", WELCOME, Idempotency_Key="order-42")).json()
    answer = await program.post("/jobs", other, Idempotency_Key="order-42")
    assert answer.status_code == 422, answer.text
    assert problem_in(answer)["type"] == "urn:fennelq:idempotency-key-reused"
    assert problem_in(answer)["job"] == first["id"]
    assert [await waiting(app, queue) for queue in ("mail", "orders", "reports")] == [1, 0, 0]
    again = await program.post("/jobs", WELCOME, Idempotency_Key="order-42")
    assert (again.status_code, again.json()["id"]) == (200, first["id"])


async def test_of_calls_for_different_queues_with_one_key_at_once_one_makes_a_job(
    program: Program, app: App
) -> None:
    calls = [{**WELCOME, "options": {"queue": queue}} for queue in ("mail", "orders", "reports")]
    answers = await asyncio.gather(
        *(program.post("/jobs", call, Idempotency_Key="order-42") for call in calls * 10)
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201] + [422] * 20
    assert sum([await waiting(app, queue) for queue in ("mail", "orders", "reports")]) == 1


async def test_a_key_is_kept_for_other_queues_until_a_day_after_its_job_is_due(
    program: Program, server: Server
) -> None:
    later = (datetime.now(UTC) + timedelta(days=7)).isoformat()
    for number, when in enumerate(({"delay": 7 * 86400}, {"at": later}, {})):
        body = {**WELCOME, "options": when}
        assert (await program.post("/jobs", body, Idempotency_Key=f"k{number}")).status_code == 201
    with server.client() as client:
        keys = cast("Iterator[bytes]", client.scan_iter("*}:request:*"))
        kept = sorted(client.ttl(key) for key in keys)
    assert [round(seconds / 3600) for seconds in kept] == [24, 24 * 8, 24 * 8]


async def test_the_order_of_the_members_does_not_make_another_call(program: Program) -> None:
    one = {"task": "shop:welcome", "kwargs": {"user_id": 42, "greeting": "hi"}}
    two = {"kwargs": {"greeting": "hi", "user_id": 42}, "task": "shop:welcome"}
    first = await program.post("/jobs", one, Idempotency_Key="k")
    again = await program.post("/jobs", two, Idempotency_Key="k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"id": first.json()["id"], "deduplicated": True}


async def test_two_users_may_have_the_same_key(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        one = await program.post("/jobs", WELCOME, user="see+send", Idempotency_Key="k")
        two = await program.post("/jobs", WELCOME, user="all", Idempotency_Key="k")
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json()["id"] != two.json()["id"]


@pytest.mark.parametrize("key", ["", '""', '"half', "two words", "x" * 256, '"\x80"'])
async def test_a_key_that_cannot_be_read_is_refused(program: Program, key: str) -> None:
    answer = await program.http.post(
        "/api/v1/jobs", json=WELCOME, headers={b"Idempotency-Key": key.encode("latin-1")}
    )
    assert answer.status_code == 400
    assert "Idempotency-Key" in problem_in(answer)["detail"]


async def test_an_id_that_was_returned_with_an_unknown_outcome_repeats_the_call(
    program: Program, app: App
) -> None:
    first = (await program.post("/jobs", WELCOME)).json()["id"]
    queue, _, key = first.partition(":")
    again = await program.post("/jobs", {**WELCOME, "options": {"queue": queue, "job_id": key}})
    assert (again.status_code, again.json()) == (200, {"id": first, "deduplicated": True})
    assert await waiting(app) == 1


async def test_many_jobs_get_an_answer_each_in_their_order(program: Program, app: App) -> None:
    calls = [
        WELCOME,
        {"task": "shop:nosuch"},
        {"task": "shop:welcome", "kwargs": {"user_id": "x"}},
        5,
        WELCOME,
    ]
    answer = await program.post("/jobs:bulk", {"jobs": calls})
    assert answer.status_code == 200
    found = answer.json()
    assert [one["status"] for one in found["answers"]] == [201, 422, 422, 422, 201]
    assert found["created"] == 2
    assert found["answers"][2]["problem"]["errors"][0]["pointer"] == "/kwargs/user_id"
    assert await waiting(app) == 2


async def test_many_jobs_may_be_lines_and_a_broken_line_fails_alone(program: Program, app: App) -> None:
    lines = "\n".join([json.dumps(WELCOME), "{", json.dumps(WELCOME), ""])
    answer = await program.http.post(
        "/api/v1/jobs:bulk", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert [one["status"] for one in answer.json()["answers"]] == [201, 400, 201]
    assert await waiting(app) == 2


async def test_many_jobs_with_a_key_are_made_once(program: Program, app: App) -> None:
    body = {"jobs": [WELCOME] * 5}
    first = (await program.post("/jobs:bulk", body, Idempotency_Key="batch-7")).json()
    again = (await program.post("/jobs:bulk", body, Idempotency_Key="batch-7")).json()
    assert [one["id"] for one in first["answers"]] == [one["id"] for one in again["answers"]]
    assert (first["created"], again["created"], await waiting(app)) == (5, 0, 5)


async def test_a_repeat_of_many_jobs_with_changes_refuses_those_that_changed(
    program: Program, app: App
) -> None:
    calls = [WELCOME] * 4
    first = (await program.post("/jobs:bulk", {"jobs": calls}, Idempotency_Key="batch-7")).json()
    changed = [
        WELCOME,
        {**WELCOME, "kwargs": {"user_id": 43}},
        {**WELCOME, "options": {"priority": "high"}},
        {"task": "reports:daily"},
    ]
    again = (await program.post("/jobs:bulk", {"jobs": changed}, Idempotency_Key="batch-7")).json()
    assert [one["status"] for one in again["answers"]] == [200, 422, 422, 422]
    for one, before in zip(again["answers"][1:], first["answers"][1:], strict=True):
        assert one["problem"]["type"] == "urn:fennelq:idempotency-key-reused"
        assert one["problem"]["job"] == before["id"]
    assert (await waiting(app), await waiting(app, "reports")) == (4, 0)


async def test_too_many_jobs_are_refused_together(program: Program, app: App) -> None:
    answer = await program.post("/jobs:bulk", {"jobs": [{"task": "reports:daily"}] * 10_001})
    assert answer.status_code == 422
    assert "10,000 at a time" in problem_in(answer)["errors"][0]["detail"]
    assert await waiting(app, "reports") == 0


async def test_a_body_that_is_no_json_is_refused_as_such(program: Program) -> None:
    answer = await program.http.post("/api/v1/jobs", content=b"task=shop", headers=JSON)
    assert answer.status_code == 400
    assert problem_in(answer)["type"] == "urn:fennelq:malformed"
    answer = await program.http.post(
        "/api/v1/jobs",
        content=b"task=shop",
        headers={"Content-Type": "text/plain", "Origin": "http://localhost"},
    )
    assert answer.status_code == 415


async def test_an_app_without_its_code_sends_by_name(redis_url: str) -> None:
    async with App("codeless", redis_url=redis_url) as app, Program(app) as program:
        answer = await program.post("/jobs", {"task": "billing:charge", "args": [[1, 2, 10**30]]})
        assert answer.status_code == 201
        info = await app.jobs.info(answer.json()["id"])
        assert info is not None
        assert (info.queue, json.loads(info.arguments)) == ("default", [[[1, 2, 10**30]], {}])
