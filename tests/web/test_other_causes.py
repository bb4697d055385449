"""Dead jobs beyond a thousand causes have no group of their own: they are picked, or found by a search, which moves all
that it finds as an operation that outlives its process."""

from __future__ import annotations

import re
from html import unescape

import pytest

from fennelq import App, Status
from fennelq.manage.dead.search import MANY_CAUSES
from tests.kit.groups import count_as_other
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, Shop, by_name, hidden_fields, main_of, text_of

pytestmark = pytest.mark.audit(unfinished=True, index_is_wrong=True)


@pytest.fixture
async def others(shop: Shop) -> Shop:
    count_as_other(shop.server, shop.app.namespace, "billing")
    return shop


async def has_ended(app: App, state: str) -> bool:
    found = await app.operations.list()
    return bool(found) and found[0].state == state


async def test_they_are_neither_replayed_nor_removed_as_a_whole(others: Shop, pages: Browser) -> None:
    html = main_of((await pages.get("/dead/other")).text)
    assert "These jobs died of many causes" in text_of(html)
    assert "/other/replay" not in html.replace("/other/picked/replay", "")
    assert "/other/purge" not in html
    for path in ("/dead/other/replay", "/dead/other/purge"):
        answers = [await pages.get(path), await pages.post(path, {"until": "9999999999999", "total": "3"})]
        assert [answer.status_code for answer in answers] == [422, 422]
        assert all(MANY_CAUSES in text_of(answer.text) for answer in answers)
    assert await others.app.dlq.count() == 3
    assert await others.app.operations.list() == []
    assert await others.app.audit.list() == []


async def test_their_page_leads_to_a_search_that_replays_all_it_finds(others: Shop, pages: Browser) -> None:
    html = (await pages.get("/dead/other")).text
    (search,) = re.findall(r'href="\.\./(jobs\?q=[^"]*charge[^"]*)"', html)
    found = (await pages.get(unescape(search))).text
    (way,) = re.findall(r'href="\./(jobs/all/replay[^"]*)"', found)
    plan = (await pages.get(unescape(way))).text
    assert "Replay: 3 jobs" in text_of(plan)
    form = {**hidden_fields(plan), "canary": "", "rate": "1000"}
    assert "The operation on 3 jobs has begun." in await pages.done("/jobs/all/replay", form)
    await aeventually(lambda: has_ended(others.app, "done"))
    (operation,) = await others.app.operations.list()
    assert (operation.act, operation.done, operation.rate) == ("replay", 3, 1000)
    assert [await others.app.result(job).status() for job in others.dead] == [Status.SENT] * 3


async def test_those_that_are_picked_go_back(others: Shop, pages: Browser) -> None:
    some = others.dead[:2]
    assert "2" in await pages.done("/dead/other/picked/replay", {"jobs": some})
    assert [one.id for one in await others.app.dlq.list()] == others.dead[2:]


async def test_a_search_removes_the_dead_that_it_has_counted(others: Shop, pages: Browser) -> None:
    plan = (await pages.get("/jobs/all/purge?q=state:dead queue:billing")).text
    assert "Remove: 3 jobs" in text_of(plan)
    assert 'name="typed"' not in plan
    await pages.done("/jobs/all/purge", hidden_fields(plan))
    await aeventually(lambda: has_ended(others.app, "done"))
    assert await others.app.dlq.count() == 0
    assert await others.app.jobs.count("queue:mail state:waiting") == 2


async def test_who_removes_more_than_a_hundred_types_their_number(others: Shop, pages: Browser) -> None:
    form = hidden_fields((await pages.get("/jobs/all/purge?q=state:dead")).text) | {"total": "101"}
    for typed in ("", "100"):
        answer = await pages.post("/jobs/all/purge", {**form, "typed": typed})
        assert (answer.status_code, "type 101 to confirm" in text_of(answer.text)) == (422, True)
    assert await others.app.operations.list() == []
    await pages.done("/jobs/all/purge", {**form, "typed": "101"})
    await aeventually(lambda: has_ended(others.app, "done"))
    assert await others.app.dlq.count() == 0


async def test_a_plan_of_one_act_does_not_do_another(others: Shop, pages: Browser) -> None:
    plan = hidden_fields((await pages.get("/jobs/all/replay?q=state:dead")).text)
    assert (await pages.post("/jobs/all/purge", plan)).status_code == 422
    forged = {**plan, "act": "cancel"}  # a dead job cannot be cancelled
    assert (await pages.post("/jobs/all/cancel", forged)).status_code == 422
    assert await others.app.operations.list() == []
    assert await others.app.dlq.count() == 3


async def test_a_search_offers_what_the_user_may_do_with_what_it_looks_for(others: Shop) -> None:
    async with Browser(others.app, auth=by_name) as pages:
        offered = {
            where: re.findall(r"jobs/all/(\w+)\?", (await pages.get(f"/jobs?q={where}", user="all")).text)
            for where in ("state:dead", "state:waiting", "state:scheduled", "queue:mail")
        }
        assert offered == {
            "state:dead": ["replay", "purge"],
            "state:waiting": ["cancel"],
            "state:scheduled": ["cancel", "run"],
            "queue:mail": ["cancel", "run", "replay", "purge"],
        }
        few = (await pages.get("/jobs?q=queue:mail", user="see+purge")).text
        assert re.findall(r"jobs/all/(\w+)\?", few) == ["purge"]
