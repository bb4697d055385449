"""What the pages say, and what their forms do: the values of the app, and its record of operations."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fennelq import App, Status
from fennelq.broker.keys import AppKeys
from fennelq.errors import HistoryUnavailable
from fennelq.manage.history.recording import HistoryRecorder
from fennelq.web import User, dashboard
from fennelq.web.problems import problem_of
from fennelq.web.visit import link, name_of, segment
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.kit import Browser, Shop, by_name, hidden_fields, main_of, text_of

pytestmark = pytest.mark.audit(unfinished=True)


async def test_an_empty_app_tells_what_to_do_first(pages: Browser) -> None:
    page = await pages.text("/")
    assert "Nothing has happened here yet" in page
    assert "fennelq enqueue shop.tasks:welcome 42" in page
    expected = {
        "/queues": "1 queue",
        "/jobs": "Search by id, state, task",
        "/dead": "No job is dead",
        "/tasks": "No task is known.",
        "/schedules": "No schedule is known",
        "/executors": "No executor has reported itself",
        "/limits": "No task of this app has a limit",
        "/operations": "None is under way.",
        "/audit": "Nothing was changed",
        "/health": "All checks pass",
    }
    for path, sentence in expected.items():
        assert sentence in await pages.text(path), path


async def test_the_overview_begins_with_what_needs_attention(shop: Shop, pages: Browser) -> None:
    page = await pages.text("/")
    assert "3 jobs of shop:charge died of RuntimeError: no money for order" in page
    assert "Queue search.index: consuming and enqueuing are paused since" in page
    assert "by oncall: reindexing by hand; 4 jobs not started." in page
    assert page.index("died of RuntimeError") < page.index("Ended per second") < page.index("Dead, by cause")


async def test_queues_that_need_attention_come_first(shop: Shop, pages: Browser) -> None:
    html = (await pages.get("/queues")).text
    assert re.findall(r'class="name" href="\./queues/([\w.]+)"', html) == [
        "mail",
        "search.index",
        "billing",
        "default",
    ]
    html = (await pages.get("/queues?by=name")).text
    assert re.findall(r'class="name" href="\./queues/([\w.]+)"', html) == [
        "billing",
        "default",
        "mail",
        "search.index",
    ]
    assert "paused by oncall" in await pages.text("/queues?only=paused")
    html = main_of((await pages.get("/queues?only=paused")).text)
    assert re.findall(r'class="name" href="\./queues/([\w.]+)"', html) == ["search.index"]
    html = main_of((await pages.get("/queues?name=IND")).text)
    assert re.findall(r'class="name" href="\./queues/([\w.]+)"', html) == ["search.index"]


async def test_a_queue_is_paused_and_resumed(shop: Shop, pages: Browser) -> None:
    assert "Pause mail" in await pages.text("/queues/mail/pause")
    page = await pages.done("/queues/mail/pause", {"only": "consume", "why": "the mail server is down"})
    assert "The queue is paused." in page
    assert "“the mail server is down”" in page
    pause = (await shop.app.queues.info("mail")).paused
    assert pause is not None
    assert (pause.consuming, pause.enqueuing, pause.who) == (True, False, "local@127.0.0.1")
    assert "The queue is resumed." in await pages.done("/queues/mail/resume")
    assert (await shop.app.queues.info("mail")).paused is None
    entries = await shop.app.audit.list()
    assert [(entry.what, entry.target, entry.state) for entry in entries] == [
        ("queue resume", "mail", "done"),
        ("queue pause", "mail", "done"),
    ]
    page = await pages.text("/audit")
    assert "local@127.0.0.1 queue resume mail" in page
    assert "queue pause" not in text_of(main_of((await pages.get("/audit?what=queue+resume")).text)).replace(
        "What: queue pause", ""
    )


async def test_a_purge_cancels_what_its_page_has_counted(shop: Shop, pages: Browser) -> None:
    html = (await pages.get("/queues/mail/purge")).text
    assert "Cancels 3 jobs that have not started" in text_of(html)
    plan = hidden_fields(html)
    assert plan["total"] == "3"
    later = await shop.welcome.delay(99)
    assert "Cancelling 3 jobs." in await pages.done("/queues/mail/purge", plan)
    await aeventually(lambda: ended(shop.app))
    assert await shop.app.result(shop.waiting).status() is Status.CANCELLED
    assert await shop.app.result(shop.scheduled).status() is Status.CANCELLED
    assert await later.status() is Status.SENT
    (operation,) = await shop.app.operations.list()
    assert (operation.act, operation.done, operation.state, operation.who) == (
        "cancel",
        3,
        "done",
        "local@127.0.0.1",
    )
    (entry,) = await shop.app.audit.list()
    assert (entry.what, entry.target, entry.planned, entry.done) == ("queue purge", "mail", 3, 3)
    assert f"{operation.id} cancel done 3 3" in await pages.text("/operations")
    assert "3 of 3" in await pages.text(f"/operations/{operation.id}")


async def ended(app: App) -> bool:
    operations = await app.operations.list()
    entries = await app.audit.list()
    return bool(operations) and operations[0].state == "done" and entries[0].state == "done"


async def test_a_large_purge_needs_the_name_of_the_queue(shop: Shop, pages: Browser) -> None:
    await shop.app.enqueue([shop.welcome.job(n) for n in range(101)])
    html = (await pages.get("/queues/mail/purge")).text
    plan = hidden_fields(html)
    assert "Type mail to confirm" in text_of(html)
    for typed in ({}, {"name": ""}, {"name": "billing"}):
        answer = await pages.post("/queues/mail/purge", {**plan, **typed})
        assert answer.status_code == 422
        assert "type the name of the queue, mail, to confirm. Nothing was done." in text_of(answer.text)
    assert await shop.app.operations.list() == []
    await pages.done("/queues/mail/purge", {**plan, "name": "mail"})
    await aeventually(lambda: ended(shop.app))
    assert (await shop.app.queues.info("mail")).waiting == 0


async def test_a_search_shows_what_it_finds(shop: Shop, pages: Browser) -> None:
    page = await pages.text("/jobs?q=state:dead")
    assert all(job in page for job in shop.dead)
    assert "3 jobs" in page
    assert "order= 2, token= secret" in page
    assert "sesame" not in page
    page = await pages.text("/jobs?q=task:welcome queue:mail state:waiting")
    assert shop.waiting in page
    assert "2 jobs" in page
    assert "0 jobs" in await pages.text("/jobs?q=task:nosuch")
    answer = await pages.get("/jobs?q=state:nosuch")
    assert answer.status_code == 422
    assert "nosuch" in text_of(answer.text)


async def test_the_id_of_a_job_leads_to_its_page(shop: Shop, pages: Browser) -> None:
    answer = await pages.get(f"/jobs?q={shop.waiting}")
    assert (answer.status_code, answer.headers["Location"]) == (303, f"./jobs/{shop.waiting}")


async def test_jobs_that_a_filter_finds_are_cancelled_together(shop: Shop, pages: Browser) -> None:
    html = (await pages.get("/jobs/all/cancel?q=queue:mail state:waiting")).text
    assert "Cancel: 2 jobs" in text_of(html)
    assert "2 jobs has begun" in await pages.done("/jobs/all/cancel", hidden_fields(html))
    await aeventually(lambda: ended(shop.app))
    assert await shop.app.result(shop.waiting).status() is Status.CANCELLED
    assert await shop.app.result(shop.scheduled).status() is Status.SCHEDULED


async def test_a_page_of_a_job_tells_its_story(shop: Shop, pages: Browser) -> None:
    page = await pages.text(f"/jobs/{shop.dead[0]}")
    assert "shop:charge DEAD" in page
    assert (
        'curl "$DASHBOARD/api/v1/jobs/shop:charge" -H "Authorization: Bearer $TOKEN" '
        """-H 'Content-Type: application/json' -d '{"order": 1, "token": "[redacted]"}'"""
    ) in page
    assert "It died after 1 try: RuntimeError: no money for order 1" in page
    assert "charge( order =1, token = secret , )" in page
    assert "sesame" not in page
    page = await pages.text(f"/jobs/{shop.waiting}")
    assert "user_id =42," in page
    assert (await pages.get("/jobs/mail:nosuch")).status_code == 404
    assert (await pages.get("/jobs/nonsense")).status_code == 422


async def test_a_job_shows_the_result_of_its_run(shop: Shop, pages: Browser) -> None:
    async with running(shop.app):
        job = await shop.welcome.delay(7, "good morning")
        await job.get(30)
    assert '"good morning 7"' in await pages.text(f"/jobs/{job.id}")


async def test_a_job_is_cancelled_run_now_and_sent_again(shop: Shop, pages: Browser) -> None:
    assert "The job is due now." in await pages.done(f"/jobs/{shop.scheduled}/run")
    assert await shop.app.result(shop.scheduled).status() is Status.SENT
    assert "Nothing was changed: the job has moved on." in await pages.done(f"/jobs/{shop.scheduled}/run")
    page = await pages.done(f"/jobs/{shop.waiting}/cancel", {"reason": "wrong user"})
    assert "The job is cancelled." in page
    info = await shop.app.jobs.info(shop.waiting)
    assert info is not None
    assert info.reason == "wrong user"
    before = await shop.app.jobs.count("queue:billing state:waiting")
    assert "The job is sent." in await pages.done(f"/jobs/{shop.dead[1]}/again")
    assert await shop.app.jobs.count("queue:billing state:waiting") == before + 1
    (again,) = [job async for job in shop.app.jobs.find("queue:billing state:waiting")]
    assert json.loads(again.arguments) == [[2, "sesame"], {}]
    whats = [entry.what for entry in await shop.app.audit.list()]
    assert whats == ["enqueue", "job cancel", "job run", "job run"]


async def test_a_group_shows_its_error_and_its_jobs(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    assert "3 dead jobs in 1 group" in await pages.text("/dead")
    html = (await pages.get(f"/dead/{group}")).text
    page = text_of(html)
    assert "RuntimeError in shop:charge" in page
    assert "raise RuntimeError(f&#34;no money for order {order}&#34;)</span>" in html
    assert all(job in page for job in shop.dead)
    assert (await pages.get("/dead/00000000")).status_code == 404


async def test_a_replay_puts_back_what_its_page_has_counted(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    html = (await pages.get(f"/dead/{group}/replay")).text
    assert "Replay 3 jobs of RuntimeError" in text_of(html)
    assert "All of them can go back." in text_of(html)
    plan = hidden_fields(html)
    async with running(shop.app):  # one more dies after the page was made
        later = await shop.charge.delay(4)
        await aeventually(lambda: is_dead(shop.app, later.id))
    assert "The replay of 3 jobs has begun." in await pages.done(
        f"/dead/{group}/replay", {**plan, "rate": "1000", "canary": ""}
    )
    await aeventually(lambda: recorded(shop.app))
    assert [await shop.app.result(job).status() for job in shop.dead] == [Status.SENT] * 3
    assert await later.status() is Status.DEAD
    (entry,) = await shop.app.audit.list()
    (operation,) = await shop.app.operations.list()
    assert (operation.act, operation.rate, operation.done) == ("replay", 1000, 3)
    assert (entry.what, entry.target, entry.done) == ("dlq replay", operation.id, 3)
    assert entry.filter == f"state:dead fp:{group} --rate 1000"
    assert f"{operation.id} replay done 3 3" in await pages.text("/operations")
    assert "Replayed before" in await pages.text(f"/dead/{group}")


async def is_dead(app: App, job: str) -> bool:
    return await app.result(job).status() is Status.DEAD


async def recorded(app: App) -> bool:
    entries = await app.audit.list()
    return bool(entries) and entries[0].state == "done"


async def has_failed(app: App) -> bool:
    entries = await app.audit.list()
    return bool(entries) and entries[0].state == "interrupted"


async def test_a_canary_that_dies_again_leaves_the_others_dead(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    plan = hidden_fields((await pages.get(f"/dead/{group}/replay")).text)
    async with running(shop.app):
        await pages.done(f"/dead/{group}/replay", {**plan, "canary": "1"})
        await aeventually(lambda: has_failed(shop.app))
    (operation,) = await shop.app.operations.list()
    page = await pages.text(f"/operations/{operation.id}")
    assert "1 job first; the others stay dead" in page
    assert "1 of 1 canary jobs died as before" in page
    (entry,) = await shop.app.audit.list()
    assert entry.done == 1
    assert "1 of 1 canary jobs died as before" in entry.outcome
    assert await shop.app.dlq.count() == 3


async def test_after_a_canary_that_succeeds_the_others_go_back(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    plan = hidden_fields((await pages.get(f"/dead/{group}/replay")).text)
    shop.has_money = True
    async with running(shop.app):
        await pages.done(f"/dead/{group}/replay", {**plan, "canary": "1", "rate": "1000"})
        for job in shop.dead:
            await aeventually(partial(has_succeeded, shop.app, job))
    (operation,) = await shop.app.operations.list()
    assert (operation.act, operation.canary, operation.done) == ("replay", 1, 3)
    await aeventually(lambda: recorded(shop.app))
    (entry,) = await shop.app.audit.list()
    assert (entry.done, entry.filter) == (3, f"state:dead fp:{group} --canary 1 --rate 1000")


async def has_succeeded(app: App, job: str) -> bool:
    return await app.result(job).status() is Status.SUCCESS


async def test_a_replay_of_a_process_that_was_killed_goes_on_in_another(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    plan = await shop.app.operations.plan("replay", f"state:dead fp:{group}")
    operation = await shop.app.operations.begin(plan, who="ada@web-1")  # and then nothing: it was killed
    assert "running" in await pages.text(f"/operations/{operation.id}")
    assert "The operation goes on." in await pages.done(f"/operations/{operation.id}/resume")
    await aeventually(lambda: ended(shop.app))
    assert [await shop.app.result(job).status() for job in shop.dead] == [Status.SENT] * 3


async def test_an_operation_of_a_process_that_is_gone_goes_on_by_itself(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await shop.app.operations.plan("replay", f"state:dead fp:{await shop.group()}")
    operation = await shop.app.operations.begin(plan, who="ada@web-1")
    async with Browser(shop.app) as pages:
        await pages.text("/")  # it has begun just now
        assert await shop.app.audit.list() == []
    monkeypatch.setattr("fennelq.web.adopting.SILENT", -1.0)
    async with Browser(shop.app, read_only=True) as pages:
        await pages.text("/")
    async with Browser(shop.app) as pages:
        await pages.text("/")
        await aeventually(lambda: ended(shop.app))
    (entry,) = await shop.app.audit.list()
    assert (entry.what, entry.target, entry.who, entry.done) == ("op resume", operation.id, "ada@web-1", 3)
    assert [await shop.app.result(job).status() for job in shop.dead] == [Status.SENT] * 3


async def test_an_operation_that_cannot_go_on_is_tried_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is recorded: in the long run, one operation would displace all others from the record."""
    plan = await shop.app.operations.plan("replay", f"state:dead fp:{await shop.group()}")
    operation = await shop.app.operations.begin(plan, who="ada@web-1")
    with shop.server.client() as client:
        client.hset(AppKeys(shop.app.namespace).operation(operation.id), "where", "")
    monkeypatch.setattr("fennelq.web.adopting.SILENT", -1.0)
    monkeypatch.setattr("fennelq.web.adopting.EVERY", 0.0)
    async with Browser(shop.app) as pages:
        await pages.text("/audit")
        await aeventually(lambda: has_entries(shop.app, 1))
        for path in ("/queues", "/dead", "/audit"):
            await pages.text(path)
        (entry,) = await shop.app.audit.list()
    assert (entry.what, entry.state) == ("op resume", "failed")
    assert "the record of the operation has no filter" in entry.outcome


async def has_entries(app: App, number: int) -> bool:
    entries = await app.audit.list()
    return len(entries) == number and entries[0].state != "not finished"


async def test_only_a_fingerprint_is_a_group_to_act_on(shop: Shop, pages: Browser) -> None:
    plan = {"until": "253402300799999", "total": "1"}
    for name in ("00000000 queue:mail", "x", "state:waiting"):
        for act in ("replay", "purge"):
            answer = await pages.post(f"/dead/{segment(name)}/{act}", plan)
            assert answer.status_code == 404, (name, act)
    assert await shop.app.operations.list() == []


async def test_two_who_replay_a_group_at_once_replay_each_job_once(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    plans = [hidden_fields((await pages.get(f"/dead/{group}/replay")).text) for _ in range(2)]
    for plan in plans:
        await pages.done(f"/dead/{group}/replay", {**plan, "rate": "", "canary": ""})
    await aeventually(lambda: all_done(shop.app, 2))
    operations = await shop.app.operations.list()
    assert sum(operation.done for operation in operations) == 3
    assert await shop.app.jobs.count("queue:billing state:waiting") == 3
    page = await pages.text("/operations")
    assert all(operation.id in page for operation in operations)


async def all_done(app: App, number: int) -> bool:
    states = [operation.state for operation in await app.operations.list()]
    return states == ["done"] * number


async def test_a_replay_with_other_arguments_shows_them_before(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    html = (await pages.get(f"/dead/{group}/replay?set=order%3D17")).text
    assert "order=1 → order=17" in text_of(html)
    plan = hidden_fields(html)
    async with Browser(shop.app, auth=by_name) as others:
        answer = await others.get(f"/dead/{group}/replay?set=order%3D17", user="replay")
        assert answer.status_code == 403
        answer = await others.post(f"/dead/{group}/replay", {**plan, "set": "order=18"}, user="replay")
        assert answer.status_code == 403
    await pages.done(f"/dead/{group}/replay", {**plan, "set": "order=17", "canary": "", "rate": ""})
    await aeventually(lambda: recorded(shop.app))
    jobs = [job async for job in shop.app.jobs.find("queue:billing state:waiting")]
    assert [json.loads(job.arguments)[0] for job in jobs] == [[17, "sesame"]] * 3


async def test_picked_jobs_go_back_or_are_removed(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    page = await pages.done(f"/dead/{group}/picked/replay", {"jobs": shop.dead[:2]})
    assert "Put 2 jobs back." in page
    page = await pages.done(f"/dead/{group}/picked/purge", {"jobs": shop.dead[2:]})
    assert "Removed 1 job for good." in page
    assert "No job is dead" in page
    assert await shop.app.dlq.count() == 0
    answer = await pages.post(f"/dead/{group}/picked/replay")
    assert (answer.status_code, "No job was picked" in answer.text) == (422, True)


async def test_a_group_is_removed_for_good(shop: Shop, pages: Browser) -> None:
    group = await shop.group()
    plan = hidden_fields((await pages.get(f"/dead/{group}/purge")).text)
    assert "Removing 3 jobs." in await pages.done(f"/dead/{group}/purge", plan)
    await aeventually(lambda: recorded(shop.app))
    assert await shop.app.dlq.count() == 0


async def test_the_arguments_of_a_dead_job_are_changed_without_its_secrets(
    shop: Shop, pages: Browser
) -> None:
    html = (await pages.get(f"/jobs/{shop.dead[0]}/edit")).text
    assert "sesame" not in html
    shown = json.loads(re.findall(r"<textarea[^>]*>([^<]*)<", html)[0].replace("&#34;", '"'))
    assert shown == {"order": 1, "token": "[redacted]"}
    answer = await pages.post(f"/jobs/{shop.dead[0]}/edit", {"arguments": '{"order": "many"}'})
    assert answer.status_code == 422
    answer = await pages.post(f"/jobs/{shop.dead[0]}/edit", {"arguments": "{"})
    assert answer.status_code == 422
    page = await pages.done(f"/jobs/{shop.dead[0]}/edit", {"arguments": json.dumps({**shown, "order": 100})})
    assert "The job is back in its queue." in page
    info = await shop.app.jobs.info(shop.dead[0])
    assert info is not None
    assert json.loads(info.arguments) == [[100, "sesame"], {}]
    (entry,) = [one for one in await shop.app.audit.list() if one.done]
    assert (entry.what, entry.before, entry.after) == (
        "dlq edit",
        '{"order": 1, "token": "[redacted]"}',
        '{"order": 100, "token": "[redacted]"}',
    )


async def test_an_export_has_no_secrets_and_is_imported_again(shop: Shop, pages: Browser) -> None:
    lines = (await pages.get("/dead/export")).text.splitlines()
    assert len(lines) == 3
    assert "sesame" not in "".join(lines)
    text = "\n".join([json.dumps(line) async for line in shop.app.dlq.export(secrets=True)])
    await shop.app.dlq.purge(all=True)
    assert "Imported 3 jobs." in await pages.done("/dead/import", {"lines": text, "dead": "true"})
    assert await shop.app.dlq.count() == 3


async def test_a_job_is_sent_from_the_form_of_its_task(shop: Shop, pages: Browser) -> None:
    html = (await pages.get("/tasks/shop:welcome/send")).text
    assert re.findall(r'name="arg\.(\w+)" placeholder="([^"]*)"( required)?', html) == [
        ("user_id", "", " required"),
        ("greeting", "&#39;hello&#39;", ""),
    ]
    page = await pages.done(
        "/tasks/shop:welcome/send", {"arg.user_id": "5", "arg.greeting": "42", "queue": "later"}
    )
    assert "The job is sent." in page
    (job,) = [job async for job in shop.app.jobs.find("queue:later")]
    assert json.loads(job.arguments) == [[5, "42"], {}]
    answer = await pages.post("/tasks/shop:welcome/send", {"arg.user_id": "five"})
    assert answer.status_code == 422
    assert "user_id" in text_of(answer.text)
    async with Browser(shop.app, auth=limited) as others:
        assert (await others.get("/tasks/shop:charge/send")).status_code == 403
        assert (await others.post("/tasks/shop:charge/send", {"arg.order": "1"})).status_code == 403
        assert (await others.get("/tasks/shop:welcome/send")).status_code == 200


def limited(_: object) -> User:
    return User("ci", ["see", "send:shop:wel*"])


async def test_schedules_are_shown_in_words_paused_and_run(app: App, pages: Browser) -> None:
    @app.task(name="shop:report")
    async def report(day: str) -> None: ...

    await app.schedules.add(report.job("monday"), name="nightly", cron="0 9 * * 1-5", tz="Europe/Paris")
    await app.schedules.add(report.job("x"), name="often", every=90)
    page = await pages.text("/schedules")
    assert "nightly shop:report weekdays at 09:00, Europe/Paris" in page
    assert "often shop:report every 1 m 30 s" in page
    assert (
        len(
            re.findall(
                r"(?:Mon|Tue|Wed|Thu|Fri) 09:00 in Europe/Paris", await pages.text("/schedules/nightly")
            )
        )
        == 5
    )
    assert "The schedule is paused." in await pages.done("/schedules/nightly/pause")
    assert (await app.schedules.get("nightly")).paused
    assert "It is paused." in await pages.text("/schedules/nightly")
    assert "The schedule is resumed." in await pages.done("/schedules/nightly/resume")
    assert not (await app.schedules.get("nightly")).paused
    assert "The schedule runs now." in await pages.done("/schedules/nightly/run")
    assert (await app.schedules.get("nightly")).run_count == 1
    assert "The schedule is removed." in await pages.done("/schedules/often/remove")
    assert [info.name for info in await app.schedules.list()] == ["nightly"]
    assert (await pages.get("/schedules/often")).status_code == 404


async def test_an_executor_shows_what_it_runs_and_its_stacks_and_drains(shop: Shop, pages: Browser) -> None:
    async with running(shop.app) as executor:
        name = executor.state.name
        await aeventually(lambda: reports(shop.app, name))
        assert name in await pages.text("/executors")
        page = await pages.text(f"/executors/{segment(name)}")
        assert "works" in page
        assert "MainThread" in await pages.text(f"/executors/{segment(name)}/stacks")
        page = await pages.done(f"/executors/{segment(name)}/profile", {"seconds": "1"})
        assert "The profile is ready." in page
        assert re.search(r"Time [\d.]+ s, \d+ looks", page)
        flame = await pages.get(f"/executors/{segment(name)}/profile/flame.svg")
        assert flame.headers["Content-Type"].startswith("image/svg+xml")
        assert re.search(rf"{re.escape(name)}: time, [\d.]+ s", flame.text)
        assert "style=" not in flame.text
        scope = (await pages.get(f"/executors/{segment(name)}/profile/speedscope.json")).json()
        assert scope["profiles"]
        assert (await pages.post(f"/executors/{segment(name)}/profile", {"seconds": "31"})).status_code == 422
        page = await pages.done(f"/executors/{segment(name)}/drain", {"replace": "false", "grace": ""})
        assert "The executor takes no more jobs." in page
    assert [entry.what for entry in await shop.app.audit.list()] == ["worker drain", "profile"]


async def reports(app: App, name: str) -> bool:
    return any(one.name == name and one.state == "works" for one in await app.executors.list())


async def test_without_the_right_to_see_arguments_no_page_has_them(shop: Shop) -> None:
    group = await shop.group()
    async with Browser(shop.app, auth=by_name) as pages:
        for path in (
            "/jobs?q=state:dead",
            f"/jobs/{shop.dead[0]}",
            f"/dead/{group}",
            "/queues/mail",
            f"/jobs/{shop.waiting}",
        ):
            page = await pages.text(path, user="see")
            assert "user_id" not in page, path
            assert "token=" not in page, path
            assert "order=" not in page, path
        assert "You may not see arguments." in await pages.text(f"/jobs/{shop.waiting}", user="see")
        for where in ("sesame", "header:tenant=a", "key:welcome"):
            answer = await pages.get(f"/jobs?q={where}", user="see")
            assert answer.status_code == 403, where
        assert (await pages.get(f"/jobs/{shop.dead[0]}/edit", user="see+edit")).status_code == 403


async def test_actions_are_offered_to_those_who_may_do_them(shop: Shop) -> None:
    async with Browser(shop.app, auth=by_name) as pages:
        group = await shop.group()
        for path, right, label in (
            ("/queues/mail", "pause", "Pause…"),
            ("/queues/mail", "purge", "Purge…"),
            (f"/dead/{group}", "replay", "Replay 3…"),
            (f"/dead/{group}", "purge", "Purge…"),
            (f"/jobs/{shop.dead[0]}", "edit", "Change arguments…"),
            (f"/jobs/{shop.waiting}", "cancel", "Cancel…"),
            (f"/jobs/{shop.scheduled}", "send", "Run now"),
            ("/tasks/shop:welcome", "send", "Send…"),
            ("/jobs?q=state:waiting", "cancel", "Cancel them…"),
        ):
            assert label not in await pages.text(path, user="see"), (path, label)
            assert label in await pages.text(path, user=f"see+{right}"), (path, label)


async def test_below_a_prefix_every_link_stays_below_it(shop: Shop) -> None:
    async with Browser(shop.app, root_path="/admin/jobs") as pages:
        for path in ("", "queues", "queues/mail", "queues/mail/pause", f"dead/{await shop.group()}"):
            answer = await pages.http.get(path)
            assert answer.status_code == 200, path
            for href in re.findall(r'(?:href|src|action)="([^"#]*)"', answer.text):
                target = answer.url.join(href)
                assert str(target.path).startswith("/admin/jobs/"), (path, href)
        answer = await pages.http.post("queues/mail/pause", headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.url.join(answer.headers["Location"]).path == "/admin/jobs/queues/mail"


async def test_behind_a_proxy_that_removes_the_prefix_links_stay_below_it(shop: Shop) -> None:
    made = dashboard(shop.app)

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/admin/")
        await made({**scope, "path": scope["path"].removeprefix("/admin")}, receive, send)

    transport = httpx.ASGITransport(proxied, client=("127.0.0.1", 50000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/admin/") as http:
        page = await http.get("queues/mail/pause")
        for href in re.findall(r'(?:href|src|action)="([^"#]*)"', page.text):
            answer = await http.get(page.url.join(href))
            assert answer.status_code == 200, href
        answer = await http.post("queues/mail/pause", headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.url.join(answer.headers["Location"]).path == "/admin/queues/mail"
    await made.close()


async def test_two_apps_have_a_switch(shop: Shop, redis_url: str) -> None:
    other = App("blog", redis_url=redis_url)
    async with Browser(shop.app, other) as pages, other:
        answer = await pages.get("/")
        assert answer.headers["Location"] == "./shop/"
        html = (await pages.get("/shop/queues/mail")).text
        (href,) = re.findall(r'href="([^"]*)">blog<', html)
        assert pages.http.base_url.join("shop/queues/mail").join(href).path == "/blog/"
        assert "Nothing has happened here yet" in await pages.text("/blog/")
        assert (await pages.get("/blog/queues/mail")).status_code == 404


@pytest.mark.parametrize(
    "name", ["mail", "a.b-c_d", "..", ".", "a/b", "~7E", "ä ö", "x:y", "\udc80", "%2F", "a?b#c"]
)
def test_any_name_is_a_part_of_a_path(name: str) -> None:
    part = segment(name)
    assert re.fullmatch(r"[A-Za-z0-9_:~-][A-Za-z0-9_.:~-]*", part)
    assert part not in (".", "..")
    assert name_of(part) == name
    assert link("queues", name) == f"queues/{part}"


async def test_the_audit_log_goes_on_in_the_history(server: Server, tmp_path: Path) -> None:
    app = LocalApp("shop", redis_url=server.url, history_url=f"sqlite:///{tmp_path}/history.db")
    async with app.audit.operation("queue purge", target="mail", who="ada@web-1"):
        pass
    await HistoryRecorder(app).drain()
    with server.client() as redis:
        redis.delete(AppKeys("shop")["audit"])
    async with Browser(app) as pages:
        assert "ada@web-1 queue purge mail" in await pages.text("/audit")
        assert "Nothing was changed" in await pages.text("/audit?who=bob")
        await app.history.close()
        (tmp_path / "history.db").write_bytes(b"no database at all" * 100)
        assert "Only what Redis keeps: the history in" in await pages.text("/audit")
    await app.history.close()
    await app.close()


async def test_jobs_that_have_ended_are_shown_from_the_history(server: Server, tmp_path: Path) -> None:
    app = LocalApp("shop", redis_url=server.url, history_url=f"sqlite:///{tmp_path}/history.db")

    @app.task(name="shop:welcome", queue="mail")
    async def welcome(user_id: int, token: str = "") -> str:
        return "sent"

    recorder = HistoryRecorder(app)
    await recorder.drain()  # from now on, ends are kept for the recorder
    async with running(app), Browser(app) as pages:
        job = await welcome.delay(42, "sesame")
        await job.get(30)
        await recorder.drain()
        call = "from the history welcome( user_id =42, token = secret , )"
        assert call in await pages.text(f"/jobs/{job.id}")
        with server.client() as redis:
            client: Any = redis
            client.delete(*client.scan_iter(match=f"*{job.id.partition(':')[2]}*"))
        page = await pages.text(f"/jobs/{job.id}")
        assert "shop:welcome SUCCESS" in page
        assert call in page
        assert "Run again" not in page  # its secret is not known
        row = f"{job.id} shop:welcome success user_id= 42, token= secret 1"
        assert row in await pages.text("/jobs?q=state:success task:welcome")
        assert "0 jobs" in await pages.text("/jobs?q=state:success nosuch")
        assert "from the history" not in await pages.text(
            f"/jobs/{(await welcome.options(delay=60).delay(1)).id}"
        )
        answer = await pages.get(f"/jobs/mail:{job.id.partition(':')[2][::-1]}")
        assert answer.status_code == 404
    await app.history.close()
    await app.close()


async def test_a_history_that_cannot_be_read_is_named_on_the_page_and_is_no_conflict(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "history.db").mkdir()
    app = LocalApp("shop", redis_url=server.url, history_url=f"sqlite:///{tmp_path}/history.db")
    async with Browser(app) as pages:
        shown = await pages.text("/jobs?q=state:success")
        assert f"the history in sqlite://{tmp_path}/history.db cannot be used" in shown
    await app.history.close()
    await app.close()
    problem = problem_of(HistoryUnavailable("the disk is full"), changing=False)
    assert (problem.status, problem.text, problem.headers) == (503, "the disk is full", {"Retry-After": "10"})


async def test_without_a_history_pages_say_so(shop: Shop, pages: Browser) -> None:
    assert "this app has no history. The setting history_url names one." in await pages.text("/jobs")
    answer = await pages.get(f"/jobs/mail:{'0' * 9}{'A' * 11}")
    assert answer.status_code == 404
    assert "This app has no history; the setting history_url names one." in text_of(answer.text)
    answer = await pages.get("/jobs?q=state:success")
    assert "history_url" in text_of(answer.text)
