"""Apps are listed in Redis when they are used; a user of `fennelq web` without code chooses one of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fennelq import App
from fennelq.web import choice
from fennelq.web.auth import Auth
from fennelq.web.choice import Choice
from fennelq.web.gate import HEADERS, Gate
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.web.commands import commands_of
from tests.web.kit import HOST, SAME_SITE, Shop, by_name, text_of

pytestmark = pytest.mark.audit(unfinished=True)

APPS = "fq:apps"


class Chooser:
    """The pages of a Redis."""

    def __init__(self, url: str, auth: Auth | None = None) -> None:
        self.made = Choice(url, Gate(auth))
        transport = httpx.ASGITransport(self.made, client=("127.0.0.1", 50000))
        self.http = httpx.AsyncClient(transport=transport, base_url=HOST)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(
            path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )

    async def close(self) -> None:
        await self.http.aclose()
        await self.made.close()


@pytest.fixture
async def chooser(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Chooser]:
    monkeypatch.setattr(choice, "FRESH", 0.0)
    made = Chooser(server.url)
    yield made
    await made.close()


def listed(server: Server) -> set[str]:
    with server.client() as client:
        found: Any = client.smembers(APPS)
        return {name.decode() for name in found}


def note(server: Server, *names: str) -> None:
    with server.client() as client:
        client.sadd(APPS, *names)


async def test_an_app_is_listed_when_it_sends_a_job(app: App, server: Server) -> None:
    @app.task(queue="mail")
    async def welcome() -> None: ...

    assert listed(server) == set()
    await welcome.delay()
    assert listed(server) == {"shop"}


async def test_an_app_is_listed_when_a_blocking_caller_sends_a_job(app: App, server: Server) -> None:
    @app.task(queue="mail")
    def welcome() -> None: ...

    await asyncio.to_thread(app.sync.enqueue, [welcome.job()])
    assert listed(server) == {"shop"}


@pytest.mark.parametrize("queues", ["mail", "*", "mail.*"])
async def test_an_app_is_listed_when_its_worker_starts(app: App, server: Server, queues: str) -> None:
    async with running(app, queues=queues):
        await aeventually(lambda: listed(server) == {"shop"})


async def test_without_an_app_the_page_says_how_one_gets_there(chooser: Chooser, server: Server) -> None:
    page = await chooser.get("/")
    assert page.status_code == 200
    assert "No app has used this Redis" in text_of(page.text)
    assert "sends its first job" in text_of(page.text)
    assert "Queues" not in text_of(page.text)
    note(server, "shop")
    assert (await chooser.get("/")).status_code == 303


async def test_one_app_is_shown_without_a_choice(chooser: Chooser, shop: Shop) -> None:
    answer = await chooser.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (303, "./shop/")
    page = await chooser.get("/shop/")
    assert "3 jobs of shop:charge died of RuntimeError" in text_of(page.text)
    assert "Other apps" not in text_of(page.text)
    assert (await chooser.get("/shop/queues/mail")).status_code == 200
    assert (await chooser.get("/shop/api/v1/queues")).status_code == 200


async def test_a_user_chooses_between_several_and_switches(
    chooser: Chooser, shop: Shop, server: Server
) -> None:
    other = LocalApp("blog", redis_url=server.url)

    @other.task(queue="mail")
    async def publish() -> None: ...

    await publish.delay()
    html = (await chooser.get("/")).text
    assert "2 apps" in text_of(html)
    assert re.findall(r'class="name" href="\./([^"]+)"', html) == ["blog/", "shop/"]
    page = (await chooser.get("/shop/dead")).text
    assert re.findall(r'class="item" href="\./(\.\./[^"]+)"', page) == ["../blog/"]
    done = await chooser.http.post("/shop/queues/mail/pause", data={"why": "a test"}, headers=SAME_SITE)
    assert done.status_code == 303
    assert (await shop.app.queues.info("mail")).paused is not None
    assert (await other.queues.info("mail")).paused is None
    await other.close()


async def test_what_is_no_app_is_not_looked_at(chooser: Chooser, server: Server) -> None:
    note(server, "shop", "<script>", "a/b", "", "x" * 200, "..")
    html = (await chooser.get("/")).text
    assert "<script>" not in html
    assert re.findall(r'class="name" href="\./([^"]+)"', html) == ["~2E./", "shop/"]
    for path in ("/nosuch/", "/a/b/", "/~3Cscript~3E/"):
        answer = await chooser.get(path)
        assert (answer.status_code, "has used this Redis" in answer.text) == (404, True), path
    assert (await chooser.get("/~2E./")).status_code == 200


async def test_many_requests_at_once_read_the_list_once(server: Server) -> None:
    chooser = Chooser(server.url)
    try:
        async with commands_of(server) as commands:
            answers = await asyncio.gather(*(chooser.get(f"/nosuch-{n}/") for n in range(50)))
        assert {answer.status_code for answer in answers} == {404}
        assert commands.count("SSCAN") == 1
    finally:
        await chooser.close()


async def test_of_very_many_apps_the_page_has_about_a_thousand(chooser: Chooser, server: Server) -> None:
    note(server, *(f"app-{n:04}" for n in range(3000)))
    html = (await chooser.get("/")).text
    assert 900 <= len(re.findall(r'class="name"', html)) <= 1200
    assert "There are more." in text_of(html)
    known = re.findall(r'class="name" href="\./([^"/]+)/"', html)
    page = (await chooser.get(f"/{known[0]}/")).text
    assert len(re.findall(r'class="item" href="\./\.\./', page)) <= 21
    assert "All apps" in text_of(page)


async def test_without_the_right_to_read_the_list_the_page_names_the_option(
    shop: Shop, server: Server
) -> None:
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "viewer", "on", ">pw", "resetkeys", "%R~fq:{shop*"),
            *("+@read", "+@connection", "+time", "+info", "+evalsha_ro", "+eval_ro"),
        )
    chooser = Chooser(server.url.replace("redis://", "redis://viewer:pw@"))
    try:
        page = await chooser.get("/")
        assert page.status_code == 200
        told = text_of(page.text)
        assert "The apps cannot be listed" in told
        assert "needs the right to read fq:apps" in told
        assert "--namespace NAME" in told
        assert "pw@" not in page.text
    finally:
        await chooser.close()
        with server.client() as client:
            client.execute_command("ACL", "DELUSER", "viewer")


async def test_another_key_of_this_name_is_told(chooser: Chooser, server: Server) -> None:
    with server.client() as client:
        client.set(APPS, "oops")
    try:
        assert "The apps cannot be listed" in text_of((await chooser.get("/")).text)
    finally:
        with server.client() as client:
            client.delete(APPS)


async def test_only_users_who_may_see_pages_learn_which_apps_there_are(shop: Shop, server: Server) -> None:
    chooser = Chooser(server.url, by_name)
    try:
        for path in ("/", "/shop/", "/nosuch/", "/nosuch/queues", "/static/"):
            statuses = {
                user: (await chooser.get(path, **({"X_User": user} if user else {}))).status_code
                for user in ("", "wrong", "cancel", "see")
            }
            assert (statuses[""], statuses["wrong"], statuses["cancel"]) == (401, 401, 403), path
            assert statuses["see"] == (
                404 if "/nosuch" in path or "static" in path else 303 if path == "/" else 200
            )
        assert (await chooser.get("/", Host="evil.example")).status_code == 403
        answer = await chooser.get("/", X_User="see")
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    finally:
        await chooser.close()


async def test_while_redis_is_away_the_page_says_so_at_once(server: Server, impatient: None) -> None:
    chooser = Chooser(server.url)
    try:
        server.pause()
        try:
            for path in ("/", "/shop/"):
                answer = await chooser.get(path)
                assert answer.status_code == 503
                assert "Redis does not answer" in text_of(answer.text)
        finally:
            server.resume()
        note(server, "shop")
        await aeventually(lambda: has_come_back(chooser))
    finally:
        await chooser.close()


async def has_come_back(chooser: Chooser) -> bool:
    return (await chooser.get("/")).status_code == 303
