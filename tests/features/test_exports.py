"""Dead jobs leave as lines of JSON, and come back."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import orjson
import pytest

from fennelq import App, AsyncResult, ImportRefused, ImportReport, Limit, QueuePaused, Status, UnknownQueue
from fennelq.broker.trouble import ReplyError
from tests.features.conftest import MakeApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

pytestmark = pytest.mark.both_servers


class Shop:
    """A task that dies as long as the shop is broken."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.broken = True
        self.ran = list[tuple[int, str, Any]]()

        @app.task(name="shop:charge", retries=0, concurrency=Limit(1, key="user_id"))
        async def charge(user_id: int, password: str = "", more: Any = None) -> str:
            if self.broken:
                raise ValueError(f"no money for {user_id}")
            self.ran.append((user_id, password, more))
            return f"charged {user_id}"

        @app.task(name="shop:mail", queue="mail", retries=0)
        async def mail(user_id: int) -> None:
            raise KeyError(user_id)

        self.charge, self.mail = charge, mail

    async def kill(self, jobs: list[Any]) -> list[AsyncResult[Any]]:
        """These jobs, dead."""
        handles = await self.app.enqueue(jobs)

        async def dead() -> bool:
            return all([await handle.status() is Status.DEAD for handle in handles])

        async with running(self.app):
            await aeventually(dead)
        return handles

    async def export(self, **how: Any) -> list[str]:
        """The lines, as a file has them."""
        return [json.dumps(line) async for line in self.app.dlq.export(**how)]


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


def everything(server: Server) -> dict[bytes, object]:
    """Every key that could tell of an import, with what is in it."""
    with server.client() as client:
        return {
            name: client.dump(name)
            for name in cast("list[bytes]", client.keys("fq:*"))
            if b":j:" in name or name.endswith((b":dlq", b":s"))
        }


FACTS = ("task", "arguments", "error_type", "message", "reason", "traceback", "tries", "replays", "priority")


async def test_what_is_exported_and_purged_comes_back_dead_with_all_it_had(
    shop: Shop, server: Server
) -> None:
    options: Any = {"priority": "high", "key": "order:1", "headers": {"tenant": "acme"}, "max_deliveries": 7}
    big = 10**30
    [dead] = await shop.kill([shop.charge.options(**options).job(7, more={"n": big})])
    key = shop.app.client.keys("default").record(dead.id.partition(":")[2])
    with server.client() as client:
        before: Any = client.hgetall(key)
    lines = await shop.export()
    assert await shop.app.dlq.purge(all=True) == 1
    assert await shop.app.dlq.import_(lines, dead=True) == ImportReport(imported=1)
    assert await shop.app.dlq.import_(lines, dead=True) == ImportReport(known=1)
    with server.client() as client:
        after: Any = client.hgetall(key)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    # Its place in the queue, the time of its death, and its history are new.
    assert changed <= {b"p", b"z", b"H", b"T", b"a", b"x"}
    failures = [{**orjson.loads(record[b"x"]), "f": ""} for record in (before, after)]
    assert failures[0] == failures[1]
    assert orjson.loads(before[b"o"]) == orjson.loads(after[b"o"])
    [again] = await shop.export()
    old, new = json.loads(lines[0]), json.loads(again)
    assert {name: new[name] for name in FACTS} == {name: old[name] for name in FACTS}
    assert new["arguments"] == [[7], {"more": {"n": big}}]
    [line] = await dead.history()
    assert (line.what, (line.more or "")[:20]) == ("restored", "from an export; died")
    shop.broken = False
    assert (await shop.app.dlq.replay()).replayed == 1
    async with running(shop.app):
        assert await dead.get(timeout=30) == "charged 7"
    assert shop.ran == [(7, "", {"n": big})]
    assert (await shop.charge.options(key="order:1").delay(7)).id == dead.id


async def test_an_import_sends_the_jobs_with_their_ids_once(shop: Shop) -> None:
    handles = await shop.kill([shop.charge.options(priority="low").job(n) for n in range(5)])
    lines = await shop.export()
    assert await shop.app.dlq.import_(lines) == ImportReport(known=5), "they are dead"
    assert await shop.app.dlq.purge(all=True) == 5
    shop.broken = False
    assert await shop.app.dlq.import_(lines) == ImportReport(imported=5)
    assert await shop.app.dlq.import_(iter(lines)) == ImportReport(known=5)
    infos = [await handle.info() for handle in handles]
    assert [(info.status, info.priority) for info in infos if info] == [(Status.SENT, "low")] * 5
    async with running(shop.app):
        assert await asyncio.gather(*(one.get(timeout=30) for one in handles)) == [
            f"charged {n}" for n in range(5)
        ]
    assert await shop.app.dlq.import_(lines) == ImportReport(known=5)
    assert sorted(n for n, *_ in shop.ran) == [0, 1, 2, 3, 4]


async def test_two_imports_at_once_make_no_job_twice(shop: Shop, make_app: MakeApp) -> None:
    await shop.kill([shop.charge.job(n) for n in range(30)])
    lines = await shop.export()
    assert await shop.app.dlq.purge(all=True) == 30
    others = [make_app() for _ in range(2)]
    reports = await asyncio.gather(*(app.dlq.import_(lines, dead=True) for app in others))
    assert sum(report.imported for report in reports) == 30
    assert sum(report.known for report in reports) == 30
    assert await shop.app.dlq.count() == 30


async def test_secrets_are_in_an_export_only_if_asked_for(shop: Shop) -> None:
    headers = {"Authorization": "Bearer hunter3", "tenant": "acme"}
    job = shop.charge.options(headers=headers).job(7, "hunter2", {"api_key": "hunter4", "n": 1})
    [dead] = await shop.kill([job])
    [line] = await shop.export()
    assert "hunter" not in line
    assert json.loads(line)["arguments"] == [[7, "[redacted]", {"api_key": "[redacted]", "n": 1}], {}]
    assert json.loads(line)["headers"] == {"Authorization": "[redacted]", "tenant": "acme"}
    assert await shop.app.dlq.purge(all=True) == 1
    with pytest.raises(ImportRefused, match="line 1: its secrets are hidden"):
        await shop.app.dlq.import_([line])
    shop.broken = True
    [dead] = await shop.kill([job.with_headers({})])
    [line] = await shop.export(secrets=True)
    assert await shop.app.dlq.purge(all=True) == 1
    assert await shop.app.dlq.import_([line]) == ImportReport(imported=1)
    info = await dead.info()
    assert info is not None
    assert orjson.loads(info.arguments) == [[7, "hunter2", {"api_key": "hunter4", "n": 1}], {}]
    assert info.headers == headers


async def a_line(shop: Shop, **changes: Any) -> dict[str, Any]:
    """A good line of a job that is gone, with these changes."""
    await shop.kill([shop.charge.job(7)])
    [line] = [line async for line in shop.app.dlq.export()]
    assert await shop.app.dlq.purge(all=True) == 1
    return {**line, **changes}


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "it is not JSON"),
    "nested": ("[" * 200_000, "it is not JSON"),
    "no object": ("[1]", "not a JSON object"),
    "no text": (b"\xff\xfe{}", "not JSON|cannot be read"),
    "version 2": ({"v": 2}, "of version 2, and this fennelq reads version 1"),
    "no version": ({"v": None}, "of version None"),
    "another app": ({"app": "other"}, "of app 'other', and this app is 'shop'"),
    "no id": ({"id": 7}, "is not a job id"),
    "a key of another app": ({"id": "default:{x}:y"}, "is not a job id"),
    "an unknown queue": ({"id": "mial:1"}, "queue 'mial' does not exist: did you mean 'mail'"),
    "no task": ({"task": ""}, "no name of a task"),
    "no call": ({"arguments": {"user_id": 7}}, "not a call"),
    "no record": ({"record": None}, "not dead any more"),
    "an unknown field": ({"record": {"place": "s/1-1"}}, "unknown field 'place'"),
    "bad options": ({"record": {"options": '{"r":-1}'}}, "options of the job cannot be read"),
    "bad gates": ({"record": {"gates": "c1:a c1:"}}, "field 'gates'"),
    "a bad lane": ({"record": {"lane": "iso"}}, "field 'lane'"),
    "a number that Redis does not count": ({"record": {"replays": "007"}}, "field 'replays'"),
    "digits of another script": ({"record": {"tries": "\u0663"}}, "field 'tries'"),
    "half of a character": ({"task": "shop:\ud800"}, "cannot be read"),
    "half of a character in an argument": ({"arguments": [["\ud800"], {}]}, "cannot be read"),
    "too much": ({"arguments": [["x" * 2_000_000], {}]}, "max_payload_bytes"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dead", [True, False])
async def test_a_bad_line_is_named_by_its_number_and_nothing_is_imported(
    shop: Shop, server: Server, bad: str, dead: bool
) -> None:
    good = await a_line(shop)
    text, why = BAD[bad]
    line = json.dumps({**good, "id": "default:bad", **text}) if isinstance(text, dict) else text
    lines = [json.dumps(good), "", line, json.dumps({**good, "id": "default:good2"})]
    before = everything(server)
    with pytest.raises(ImportRefused, match=why) as refused:
        await shop.app.dlq.import_(lines, dead=dead)
    [(number, error)] = refused.value.problems
    assert number == 3
    assert isinstance(error, UnknownQueue) is (bad == "an unknown queue")
    assert everything(server) == before
    report = await shop.app.dlq.import_(lines, dead=dead, continue_=True)
    assert (report.imported, report.refused) == (2, 1)
    assert report.problems.startswith("line 3: ")
    async with running(shop.app):
        await aeventually(lambda: counts(shop, 2))


async def counts(shop: Shop, number: int) -> bool:
    return await shop.app.dlq.count() == number


async def test_only_the_first_ten_bad_lines_are_named(shop: Shop) -> None:
    with pytest.raises(ImportRefused, match="and 15 more lines") as refused:
        await shop.app.dlq.import_(["{"] * 25)
    assert [number for number, _ in refused.value.problems] == list(range(1, 11))


async def test_a_job_whose_key_another_one_holds_is_not_sent(shop: Shop) -> None:
    await shop.kill([shop.charge.options(key="order:1").job(7)])
    lines = await shop.export()
    assert await shop.app.dlq.purge(all=True) == 1
    await shop.charge.options(key="order:1").delay(8)
    assert await shop.app.dlq.import_(lines) == ImportReport(key_taken=1)


async def test_a_paused_queue_takes_no_import_but_takes_the_dead(shop: Shop) -> None:
    line = await a_line(shop)
    await shop.app.queues.pause("default", only="enqueue")
    with pytest.raises(QueuePaused):
        await shop.app.dlq.import_([line])
    assert await shop.app.dlq.import_([line], dead=True) == ImportReport(imported=1)
    await shop.app.queues.resume("default")


async def test_a_damaged_dead_letter_queue_takes_nothing_of_a_job(shop: Shop, server: Server) -> None:
    line = await a_line(shop)
    key = shop.app.client.keys("default")["dlq"]
    with server.client() as client:
        client.delete(key)
        client.set(key, "damaged")
        with pytest.raises(ReplyError, match="should be a stream"):
            await shop.app.dlq.import_([line], dead=True)
        client.delete(key)
    assert await shop.app.dlq.import_([line], dead=True) == ImportReport(imported=1)


async def test_a_job_that_never_ran_comes_back_with_its_key(shop: Shop) -> None:
    await shop.kill([shop.charge.options(key="order:1").job(7)])
    [line] = [line async for line in shop.app.dlq.export()]
    assert await shop.app.dlq.purge(all=True) == 1
    del line["record"]["run"]
    assert await shop.app.dlq.import_([line], dead=True) == ImportReport(imported=1)
    assert (await shop.app.dlq.replay()).replayed == 1
    shop.broken = False
    async with running(shop.app):
        assert await shop.app.result(line["id"]).get(timeout=30) == "charged 7"


async def test_many_lines_of_several_queues_go_page_by_page(shop: Shop) -> None:
    await shop.kill([shop.charge.job(n) for n in range(120)] + [shop.mail.job(n) for n in range(120)])
    lines = [line async for line in shop.app.dlq.export()]
    assert await shop.app.dlq.purge(all=True) == 240
    done: list[int] = []
    mixed = [line for pair in zip(lines[:120], lines[120:], strict=True) for line in pair]
    assert (await shop.app.dlq.import_(mixed, dead=True, progress=done.append)).imported == 240
    assert done == [100, 200, 240]
    assert await shop.app.dlq.count(queue="mail") == 120


async def test_without_a_loop_it_is_the_same(shop: Shop) -> None:
    line = await a_line(shop)
    dlq = shop.app.sync.dlq

    def there_and_back() -> tuple[ImportReport, list[dict[str, Any]]]:
        return dlq.import_([line], dead=True), list(dlq.export())

    report, lines = await asyncio.to_thread(there_and_back)
    assert report == ImportReport(imported=1)
    assert [one["id"] for one in lines] == [line["id"]]
