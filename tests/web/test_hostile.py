"""Texts out of Redis are shown as texts on every page: no markup of theirs, no character that deceives a reader."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, cast

import pytest

from fennelq import TaskFailed
from fennelq.broker.keys import AppKeys, executors_key, queue_keys
from fennelq.model.fields import LETTERS
from fennelq.web import RIGHTS, User, words
from fennelq.web.live import View
from fennelq.web.visit import segment
from tests.kit.workers import running
from tests.web.kit import Browser, Shop, main_of

pytestmark = pytest.mark.audit(skip="what hostile clients write is not as it must be")

EVIL = (
    "<script>alert(1)</script></pre></textarea><svg onload=alert(2)>{{ 7 * 7 }}{% raw %}'\"><img src=x>"
    "\u202eevil\u2066\u200b\x00\x1b[2J\x85"
)
LONG = EVIL + "A" * (1 << 20)
HUGE = 12345678901234567890123456789012345678901234567890


def check(path: str, html: str) -> None:
    """A page that shows hostile texts."""
    main = main_of(html)
    for markup in ("<script>alert", "<svg onload", "<img", "</textarea><svg", "49{%"):
        assert markup not in main, (path, markup)
    for sign in "\u202e\u2066\u200b\x00\x1b\x85":
        assert sign not in html, (path, repr(sign))


async def evil_shop(shop: Shop) -> dict[str, str]:
    """A shop with hostile texts wherever a client can write them."""
    app, server = shop.app, shop.server
    with pytest.warns(UserWarning, match="no task"):
        await app.send("shop:evil", EVIL, HUGE, _kwargs={"note": LONG[:1_000_000]}, queue="mail")
    (job,) = [job async for job in app.jobs.find("task:evil")]
    keys, key = queue_keys(app.namespace, "billing"), shop.dead[0].partition(":")[2]
    beat = {"host": EVIL, "version": EVIL, "queues": [EVIL], "pid": 1, "beat_ms": 1 << 41, "running": 1}
    beat |= {
        "longest": {"job": EVIL, "task": EVIL, "seconds": 5},
        "blocked": {"at": EVIL, "job": EVIL, "seconds": 5},
    }
    with server.client() as client:
        for name in ("error_type", "message", "traceback", "reason", "task"):
            if name in LETTERS:
                client.hset(keys.record(key), LETTERS[name], EVIL)
        entries: Any = client.xrevrange(keys["dlq"], count=1)
        fields = cast("dict[bytes, bytes]", entries[0][1])
        texts = {b"RuntimeError", b"shop:charge", b"no money for order 3"}
        client.xadd(keys["dlq"], {name: EVIL if value in texts else value for name, value in fields.items()})
        client.hset(executors_key(app.namespace), EVIL, json.dumps(beat))
    return {"job": job.id}


async def test_hostile_texts_are_texts_on_every_page(shop: Shop) -> None:
    found = await evil_shop(shop)
    async with Browser(shop.app) as pages:
        for path in (
            "/",
            "/queues/mail",
            "/jobs?q=task:evil",
            f"/jobs/{found['job']}",
            f"/jobs/{shop.dead[0]}",
            "/dead",
            f"/dead/{await shop.group()}",
            "/executors",
            "/tasks",
            "/audit",
            "/health",
        ):
            answer = await pages.get(path)
            assert answer.status_code == 200, path
            check(path, answer.text)
            assert len(answer.content) < 100_000, path
        html = (await pages.get(f"/jobs/{found['job']}")).text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "\\u202eevil" in html
        assert str(HUGE) in html


async def test_hostile_headers_results_reasons_and_names_are_texts(shop: Shop) -> None:
    app = shop.app

    @app.task(name="shop:echo", queue="mail")
    async def echo(number: int) -> dict[str, Any]:
        return {EVIL: [EVIL, HUGE], "password": "sesame-in-a-result"}

    @app.task(name=f"shop:{EVIL[:40]}", queue="mail", retries=0)
    async def fails() -> None:
        raise LookupError(EVIL)

    headers = {"x-note": EVIL, "authorization": "sesame-in-a-header"}
    echoed, failed = await app.enqueue([echo.options(headers=headers).job(1), fails.job()])
    async with running(app, queues="mail"):
        await echoed.get(10)
        with suppress(TaskFailed):
            await failed.get(10)
    await app.queues.pause("mail", why=visible_part(EVIL), who="oncall")
    async with app.audit.operation("queue purge", target=EVIL[:80], filter=EVIL[:80], who="ada") as record:
        record.ended(1, EVIL)
    (group,) = [one for one in await app.dlq.groups() if "LookupError" in one.error_type]
    plan = await app.operations.plan("replay", f"state:dead fp:{group.fingerprint}")
    operation = await app.operations.begin(plan, arguments={EVIL: 1}, who="ada")
    await app.schedules.add(echo.job(1), name="nightly", cron="0 9 * * *")
    with shop.server.client() as client:
        client.hset(AppKeys(app.namespace).schedule("nightly"), "last_error", EVIL)
        client.hset(AppKeys(app.namespace).operation(operation.id), "problem", EVIL)
    async with Browser(app) as pages:
        for path in (
            "/",
            f"/jobs/{echoed.id}",
            f"/jobs/{failed.id}",
            f"/tasks/{segment(fails.name)}",
            "/tasks",
            f"/dead/{group.fingerprint}",
            f"/dead/{group.fingerprint}/replay",
            "/queues",
            "/queues/mail",
            "/audit",
            "/operations",
            f"/operations/{operation.id}",
            "/schedules",
            "/schedules/nightly",
            "/jobs?q=state:dead",
            "/health",
        ):
            answer = await pages.get(path)
            assert answer.status_code == 200, path
            check(path, answer.text)
            assert "sesame-in-a" not in answer.text, path
        html = (await pages.get(f"/jobs/{echoed.id}")).text
        assert str(HUGE) in html
        assert "x-note" in html
        stream = pages.dashboard.pages[0].live.stream(View(f"/jobs/{echoed.id}", RIGHTS), User("ada"))
        await anext(stream)
        sent = await anext(stream)
        assert "sesame-in-a" not in sent
        assert "<svg onload" not in sent
        await stream.aclose()


def visible_part(text: str) -> str:
    """What may be the reason of a pause: one line that can be printed."""
    return "".join(sign for sign in text if sign.isprintable())[:150]


async def test_hostile_addresses_are_texts_too(shop: Shop) -> None:
    async with Browser(shop.app) as pages:
        for path in (
            f"/queues/{segment(EVIL)}",
            f"/jobs/{segment(EVIL)}",
            f"/dead/{segment(EVIL)}",
            f"/executors/{segment(EVIL)}",
            f"/schedules/{segment('<script>')}",
            f"/tasks/{segment(EVIL)}",
            f"/operations/{segment('<script>')}",
        ):
            answer = await pages.get(path)
            assert answer.status_code in (404, 422), path
            check(path, answer.text)
        for query in ("/queues?name=", "/audit?who=", "/jobs?q=", "/queues?by=", "/queues?from=", "/?done="):
            answer = await pages.http.get(
                query.removeprefix("/").replace("=", ""),
                params={query[query.index("?") + 1 : -1]: EVIL.replace("\x00", "")},
            )
            assert answer.status_code in (200, 422), query
            check(query, answer.text)


async def test_a_text_in_an_address_does_not_get_onto_the_page(shop: Shop) -> None:
    async with Browser(shop.app) as pages:
        html = (await pages.get("/queues/mail?done=Call+0800-EVIL&count=99")).text
        assert "0800" not in main_of(html)
        assert 'class="done"' not in html


def test_integers_keep_every_digit_and_texts_are_cut() -> None:
    assert words.as_json({"n": HUGE}) == f'{{"n": {HUGE}}}'
    assert words.visible(LONG).endswith(f"… ({len(LONG):,} characters)")
    assert len(words.visible(LONG)) < words.LONGEST + 500
    assert words.lines("a\tb\n\u202ec", 100) == "a\tb\n\\u202ec"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (-3, "0 ms"), (0, "0 ms"), (0.0004, "0.4 ms"), (0.212, "212 ms"), (1, "1.0 s"), (8.12, "8.1 s"),
        (39.4, "39 s"), (59.7, "1 m"), (60, "1 m"), (252, "4 m 12 s"), (7380, "2 h 3 m"), (273600, "3 d 4 h"),
        (86400 * 400, "400 d"), (float("inf"), "–"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (22764, "22,764"),
        (118.42, "118.4"),
        (0.01, "< 0.1"),
        (0.0, "0"),
        (12345.6, "12,346"),
        (float("inf"), "–"),
        (float("nan"), "–"),
    ],
)
def test_numbers_have_thousands(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1.0 KiB"), (999, "999 B"), (224395264, "214 MiB"), (2 << 30, "2.0 GiB")],
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert words.size(count) == text
