"""The table of routes, walked as every kind of user: each gets what the table says, and nothing else."""

from __future__ import annotations

import re
from typing import Any, cast, get_args

import pytest

from fennelq.web.routes import ROUTES
from fennelq.web.table import PUBLIC, Row
from fennelq.web.users import RIGHTS, Right
from fennelq.web.visit import segment
from tests.web.kit import Browser, Shop, by_name

pytestmark = pytest.mark.audit(unfinished=True)

CHANGING = tuple(row for row in ROUTES if row.method == "POST")


def test_every_route_has_a_right_and_only_static_files_are_public() -> None:
    for row in ROUTES:
        assert row.right in (*RIGHTS, PUBLIC), row.path
    assert [row.path for row in ROUTES if row.right == PUBLIC] == ["/static/{version}/{file}"]


def test_a_route_that_changes_something_needs_more_than_to_see() -> None:
    assert [row.path for row in CHANGING if row.right in ("see", "see_arguments")] == []


def test_every_right_is_needed_somewhere() -> None:
    assert {row.right for row in ROUTES} - {PUBLIC} == set(get_args(Right)) - set[str]()


def test_no_two_routes_have_one_method_and_path() -> None:
    assert len({(row.method, row.path) for row in ROUTES}) == len(ROUTES)


async def path_of(row: Row, shop: Shop) -> str:
    """An address that the route has, in a shop with all of that."""
    names = {
        "queue": "mail",
        "job": shop.dead[0],
        "group": await shop.group(),
        "task": "shop:welcome",
        "schedule": "nightly",
        "executor": "web-1.1.abc",
        "operation": "0123abcd",
        "version": "1",
        "file": "live.js",
    }
    return re.sub(r"\{(\w+)\}", lambda found: segment(names[found[1]]), row.path)


async def ask(pages: Browser, row: Row, path: str, user: str | None) -> int:
    if row.method == "GET":
        return (await pages.get(path, user=user)).status_code
    return (await pages.post(path, {}, user=user)).status_code


def digest(shop: Shop) -> bytes:
    with shop.server.client() as client:
        found: Any = cast("Any", client).execute_command("DEBUG", "DIGEST")
        return bytes(found)


async def test_each_route_is_for_users_with_its_right_only(shop: Shop) -> None:
    before = digest(shop)
    async with Browser(shop.app, auth=by_name) as pages:
        for row in ROUTES:
            path, public = await path_of(row, shop), row.right == PUBLIC
            assert await ask(pages, row, path, None) == (200 if public else 401), path
            for right in sorted(RIGHTS - {row.right}):
                answer = await ask(pages, row, path, right)
                assert answer == (200 if public else 403), (path, right)
            assert await ask(pages, row, path, "nothing") == (200 if public else 403), path
    assert digest(shop) == before


async def test_each_route_answers_a_user_with_its_right(shop: Shop) -> None:
    """200, or what an empty form or a name that is not there leads to; never 401, 403 or 500."""
    async with Browser(shop.app, auth=by_name) as pages:
        for row in ROUTES:
            if row.handler.__name__ in ("stacks", "drain", "ask_drain"):
                continue  # these ask an executor, and there is none: see test_executors
            path = await path_of(row, shop)
            user = "all" if row.right == PUBLIC else f"see+see_arguments+{row.right}"
            assert await ask(pages, row, path, user) in (200, 303, 404, 422), path


async def test_a_wrong_password_is_refused_everywhere(shop: Shop) -> None:
    for row in ROUTES:
        async with Browser(shop.app, auth=by_name) as pages:
            path = await path_of(row, shop)
            assert await ask(pages, row, path, "wrong") == (200 if row.right == PUBLIC else 401), path


async def test_with_read_only_nobody_changes_anything(shop: Shop) -> None:
    before = digest(shop)
    async with Browser(shop.app, auth=by_name, read_only=True) as pages:
        for row in CHANGING:
            assert await ask(pages, row, await path_of(row, shop), "all") == 403, row.path
    assert digest(shop) == before


async def test_a_live_page_needs_the_right_of_the_page(shop: Shop) -> None:
    async with Browser(shop.app, auth=by_name) as pages:
        assert (await pages.get("/live?view=/queues")).status_code == 401
        assert (await pages.get("/live?view=/queues", user="cancel")).status_code == 403
        assert (await pages.get("/live?view=/nosuch", user="see")).status_code == 404
        assert (await pages.get("/live?view=/queues/mail/pause", user="all")).status_code == 404


async def test_an_unknown_path_and_a_wrong_method_are_pages_too(pages: Browser) -> None:
    assert (await pages.get("/nosuch")).status_code == 404
    assert (await pages.post("/queues")).status_code == 405
    assert (await pages.get("/queues/nosuch")).status_code == 404
