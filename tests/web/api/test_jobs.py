"""Programs follow jobs, wait for their ends, and cancel them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fennelq import App
from fennelq.web import places
from fennelq.web.http.results import LONGEST
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.api.kit import Program, problem_in, reports
from tests.web.kit import by_name, serving

WELCOME = {"task": "shop:welcome", "kwargs": {"user_id": 42}}


async def sent(program: Program, task: str = "shop:welcome", **kwargs: Any) -> str:
    answer = await program.post("/jobs", {"task": task, "kwargs": kwargs})
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


async def test_everything_known_about_a_job_has_its_story(program: Program) -> None:
    job = await sent(program, user_id=42)
    found = (await program.get(f"/jobs/{job}")).json()
    assert (found["id"], found["status"], found["task"], found["queue"]) == (
        job,
        "SENT",
        "shop:welcome",
        "mail",
    )
    assert found["arguments"] == [[], {"user_id": 42}]
    assert found["story"]["sentence"]


async def test_arguments_are_for_users_who_may_see_them(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        job = (await program.post("/jobs", WELCOME, user="all")).json()["id"]
        found = (await program.get(f"/jobs/{job}", user="see")).json()
        assert "arguments" not in found
        assert "headers" not in found
        assert "arguments" in (await program.get(f"/jobs/{job}", user="see+see_arguments")).json()
        assert (await program.get(f"/jobs/{job}/result", user="see")).status_code == 403


async def test_a_secret_argument_is_not_shown(program: Program) -> None:
    job = await sent(program, "shop:order", lines=[], day="2026-05-01", card="4111-1111")
    assert "4111" not in (await program.get(f"/jobs/{job}")).text


async def test_a_job_that_died_has_its_status_and_error_as_result(program: Program, app: App) -> None:
    job = await sent(program, "shop:fail", text="no money")
    async with running(app):
        answer = await program.get(f"/jobs/{job}/result?wait=20")
    assert answer.status_code == 200
    assert answer.json() == {
        "id": job,
        "status": "DEAD",
        "error": {"type": "RuntimeError", "message": "no money", "tries": 1},
    }


async def test_a_wait_that_is_over_returns_the_status(program: Program) -> None:
    job = await sent(program, user_id=1)
    answer = await program.get(f"/jobs/{job}/result?wait=0.05")
    assert (answer.status_code, answer.json()["status"]) == (202, "SENT")


@pytest.mark.parametrize("wait", ["61", "-1", "x", "nan", "inf", "1e400", ""])
async def test_a_wait_has_a_bound(program: Program, wait: str) -> None:
    answer = await program.get(f"/jobs/mail:nosuch/result?wait={wait}")
    assert answer.status_code == 422
    assert problem_in(answer)["errors"][0]["pointer"] == "?/wait"
    assert LONGEST == 60


async def test_an_unknown_job_and_an_expired_result_differ(program: Program, app: App) -> None:
    for path in ("/jobs/mail:nosuch", "/jobs/mail:nosuch/result", "/jobs/mail:nosuch/events"):
        assert (await program.get(path)).status_code == 404, path
    answer = await program.post("/jobs", {**WELCOME, "options": {"result_ttl": 0}})
    job = answer.json()["id"]
    async with running(app):
        await aeventually(lambda: ended(program, job))
    gone = await program.get(f"/jobs/{job}/result")
    assert gone.status_code == 410
    assert problem_in(gone)["type"] == "urn:fennelq:result-expired"


async def ended(program: Program, job: str) -> bool:
    return bool((await program.get(f"/jobs/{job}")).json()["status"] == "SUCCESS")


async def test_a_text_that_is_no_job_id_is_refused(program: Program) -> None:
    assert (await program.get("/jobs/nosuch")).status_code == 405
    assert problem_in(await program.get("/jobs/a:{b}/result"))["type"] == "urn:fennelq:invalid-job-id"


@pytest.mark.parametrize("how", ["DELETE", "POST"])
async def test_a_job_is_cancelled_and_recorded(program: Program, app: App, how: str) -> None:
    job = await sent(program, user_id=1)
    path = f"/jobs/{job}" if how == "DELETE" else f"/jobs/{job}:cancel"
    answer = await program.call(how, path, {"reason": "left"})
    assert (answer.status_code, answer.json()["done"]) == (200, True)
    again = await program.call(how, path, {})
    assert again.status_code == 409
    entries = await app.audit.list()
    assert [(one.what, one.target, one.via, one.done) for one in entries[-1:]] == [
        ("job cancel", job, "http", 1)
    ]
    assert (await program.get(f"/jobs/{job}/result")).json()["error"] == {
        "type": "JobCancelled",
        "message": "left",
    }


async def test_a_job_id_may_be_percent_encoded(program: Program) -> None:
    job = await sent(program, user_id=1)
    assert (await program.get(f"/jobs/{job.replace(':', '%3A')}")).json()["id"] == job


async def test_a_later_job_runs_now_and_a_dead_one_again(program: Program, app: App) -> None:
    later = await program.post("/jobs", {**WELCOME, "options": {"delay": 3600}})
    assert (await program.post(f"/jobs/{later.json()['id']}:run", {})).status_code == 200
    dead = await sent(program, "shop:fail")
    async with running(app):
        assert (await program.get(f"/jobs/{dead}/result?wait=20")).json()["status"] == "DEAD"
    assert (await program.post(f"/jobs/{dead}:replay", {})).json()["done"] is True
    assert (await program.post(f"/jobs/{dead}:replay", {})).status_code == 409


async def test_a_dead_job_goes_back_with_other_arguments(program: Program, app: App) -> None:
    dead = await sent(program, "shop:fail", text="one")
    async with running(app):
        await program.get(f"/jobs/{dead}/result?wait=20")
    wrong = await program.post(f"/jobs/{dead}:replay", {"arguments": {"text": 5}})
    assert wrong.status_code == 422
    answer = await program.post(f"/jobs/{dead}:replay", {"arguments": {"text": "two"}})
    assert (answer.status_code, answer.json()["done"]) == (200, True)
    info = await app.jobs.info(dead)
    assert info is not None
    assert json.loads(info.arguments) == [["two"], {}]


async def test_a_user_of_a_pattern_runs_only_its_tasks_now(app: App) -> None:
    job = (await app.tasks["shop:welcome"].options(delay=3600).delay(1)).id
    async with Program(app, auth=reports) as program:
        assert (await program.post(f"/jobs/{job}:run", {})).status_code == 403


async def test_waits_have_places_and_the_next_is_told_when_to_come_back(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (places.MOST_WAITS, places.MOST_STREAMS) == (1000, 1000)
    job = await sent(program, user_id=1)
    monkeypatch.setattr(program.api.office, "waits", places.Places(1, "wait"))
    first = asyncio.create_task(program.get(f"/jobs/{job}/result?wait=20"))
    await aeventually(lambda: program.api.office.waits.taken == 1)
    answer = await program.get(f"/jobs/{job}/result?wait=20")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert problem_in(answer)["type"] == "urn:fennelq:too-many-waits"
    program.api.office.closing.set()
    assert (await first).status_code == 202
    assert program.api.office.waits.taken == 0


async def test_a_client_that_leaves_ends_its_wait(program: Program, app: App) -> None:
    job = await sent(program, user_id=1)
    async with serving(program.api) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /api/v1/jobs/{job}/result?wait=50 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await aeventually(lambda: app.client.waiting.stored[0] == 1)
        writer.close()
        await aeventually(lambda: app.client.waiting.stored[0] == 0)
        assert program.api.office.waits.taken == 0
        del reader


def events_in(text: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def test_the_events_of_a_job_are_its_status_its_progress_and_its_end(
    program: Program, app: App
) -> None:
    job = await sent(program, "shop:count", to=3)
    async with running(app):
        answer = await program.get(f"/jobs/{job}/events")
    found = events_in(answer.text)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert found[0][0] == "status"
    assert found[-1] == ("end", {"id": job, "status": "SUCCESS", "result": 3})
    assert [value["done"] for kind, value in found if kind == "progress"][-1] == 3
    assert program.api.office.streams.taken == 0


async def test_the_process_ends_its_streams(program: Program) -> None:
    job = await sent(program, user_id=1)
    stream = asyncio.create_task(program.get(f"/jobs/{job}/events"))
    await aeventually(lambda: program.api.office.streams.taken == 1)
    program.api.office.closing.set()
    assert [kind for kind, _ in events_in((await stream).text)] == ["status"]


async def test_jobs_are_exported_as_lines(program: Program) -> None:
    jobs = {await sent(program, user_id=number) for number in range(3)}
    answer = await program.post("/jobs:export", {"where": "task:welcome"})
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert {json.loads(line)["id"] for line in answer.text.splitlines()} == jobs


@pytest.mark.parametrize("where", ["state:success", "tsak:x y", "since:tomorrow"])
async def test_a_wrong_filter_is_refused_before_the_first_line(program: Program, where: str) -> None:
    answer = await program.post("/jobs:export", {"where": where})
    assert answer.status_code == 422
    assert problem_in(answer)["type"] == "urn:fennelq:invalid-filter"
