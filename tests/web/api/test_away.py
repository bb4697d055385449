"""Redis does not answer, or is cut off between a call and its reply: 503, and a repeat makes one job."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fennelq import App, HistoryUnavailable
from fennelq.web.http.problems import problem_of
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.web.api.kit import Program, declare, problem_in

WELCOME: dict[str, Any] = {"task": "shop:welcome", "kwargs": {"user_id": 42}}
PATHS = (
    "/jobs/mail:nosuch",
    "/jobs/mail:nosuch/result?wait=30",
    "/queues",
    "/queues/mail",
    "/schedules",
    "/running",
    "/jobs?q=task:x",
    "/audit",
    "/dead/groups",
)

pytestmark = pytest.mark.usefixtures("impatient")


async def test_every_answer_is_503_while_redis_is_away_and_comes_back_by_itself(
    program: Program, app: App, server: Server
) -> None:
    await aeventually(lambda: works(program))
    server.pause()
    try:
        began = time.monotonic()
        answers = await asyncio.gather(
            program.post("/jobs", WELCOME), program.post("/jobs/shop:welcome", {"user_id": 1})
        )
        assert time.monotonic() - began < 15, (
            "far above the second of the guide: this only tells it from a hang"
        )
        for answer in answers:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            problem = problem_in(answer)
            assert problem["type"] == "urn:fennelq:redis-unavailable"
            assert [one["queue"] for one in problem["repeat_with"]] == ["mail"]
    finally:
        server.resume()
    await aeventually(lambda: works(program))


async def works(program: Program) -> bool:
    return (await program.get("/queues/mail")).status_code == 200


async def test_without_redis_from_the_beginning_every_question_is_503(redis_url: str) -> None:
    nowhere = LocalApp("shop", redis_url="redis://127.0.0.1:1/0", enqueue_timeout=0.5)
    declare(nowhere)
    async with Program(nowhere) as program, nowhere:
        answers = await asyncio.gather(*map(program.get, PATHS), program.post("/jobs", WELCOME))
        for path, answer in zip((*PATHS, "POST"), answers, strict=True):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), (path, answer.text)
            problem_in(answer)
        bulk = await program.post("/jobs:bulk", {"jobs": [WELCOME]})
        assert (bulk.status_code, bulk.headers["Retry-After"]) == (503, "1")
        assert "nothing was done" in problem_in(bulk)["detail"]


async def test_a_call_whose_reply_was_lost_is_repeated_with_its_key_and_makes_one_job(server: Server) -> None:
    with Proxy(server.url) as proxy:
        app = LocalApp("shop", redis_url=proxy.url)
        declare(app)
        async with Program(app) as program, app:
            await app.queues.names()
            await program.post("/jobs", {"task": "reports:daily"})
            proxy.half()
            lost = await program.post("/jobs", WELCOME, Idempotency_Key="order-42")
            without = await program.post("/jobs", {"task": "shop:welcome", "args": [7]})
            assert (lost.status_code, without.status_code) == (503, 503)
            proxy.up()
            await aeventually(lambda: is_sent(program, WELCOME, Idempotency_Key="order-42"))
            (named,) = problem_in(without)["repeat_with"]
            body = {"task": "shop:welcome", "args": [7], "options": named}
            await aeventually(lambda: is_sent(program, body))
            assert (await app.queues.info("mail")).waiting == 2


async def is_sent(program: Program, body: dict[str, Any], **headers: str) -> bool:
    return (await program.post("/jobs", body, **headers)).status_code in (200, 201)


async def test_a_refusal_of_redis_does_not_name_its_address(app: App, server: Server) -> None:
    async with Program(app) as program:
        assert (await program.post("/jobs", WELCOME)).status_code == 201
        with server.client() as client:
            client.acl_setuser("default", enabled=True, commands=["-evalsha", "-eval"])
            try:
                answer = await program.post("/jobs", WELCOME)
                many = await program.post("/jobs:bulk", {"jobs": [WELCOME]})
            finally:
                client.acl_setuser("default", enabled=True, categories=["+@all"])
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    assert problem_in(answer)["type"] == "urn:fennelq:redis-refuses"
    assert "evalsha" in answer.text.lower()
    assert [one["status"] for one in many.json()["answers"]] == [503]
    for text in (answer.text, many.text):
        assert "redis://" not in text
        assert "127.0.0.1" not in text


def test_a_history_that_cannot_be_read_is_503_with_what_to_do() -> None:
    """No path reads it so far; one that will must not answer that the request was in conflict with something."""
    problem = problem_of(
        HistoryUnavailable("the history in x cannot be used: the disk is full"), changing=False
    )
    assert (problem.response.status_code, problem.response.headers["Retry-After"]) == (503, "10")
    assert problem.document == {
        "type": "urn:fennelq:history-unavailable",
        "title": "The history cannot be read",
        "status": 503,
        "detail": "the history in x cannot be used: the disk is full",
    }
