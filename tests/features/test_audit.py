"""`app.audit`: operations that a program records, and how they are read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App, AuditEntry, BrokerUnavailable, ConfigurationError
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.manage.queues.pausing import this_user
from tests.features.conftest import MakeApp
from tests.kit.server import Server

NEVER = datetime(2001, 1, 1, tzinfo=UTC)


async def only(app: App, **filters: Any) -> AuditEntry:
    (entry,) = await app.audit.list(**filters)
    return entry


async def test_an_operation_is_recorded_with_who_did_what_and_its_outcome(app: App) -> None:
    async with app.audit.operation(
        "dlq replay", target="mail", filter="task:welcome", planned=3, who="ada@web-1", via="web"
    ) as operation:
        assert (await only(app)).state == "not finished"
        operation.ended(2, "1 gone already", before="a", after="b")
    entry = await only(app)
    assert (entry.who, entry.via, entry.what, entry.target) == ("ada@web-1", "web", "dlq replay", "mail")
    assert (entry.filter, entry.planned, entry.done, entry.state) == ("task:welcome", 3, 2, "done")
    assert (entry.outcome, entry.before, entry.after) == ("1 gone already", "a", "b")
    assert entry.ended_at is not None
    assert NEVER < entry.at <= entry.ended_at


async def test_the_user_of_the_process_is_recorded_by_default(app: App) -> None:
    async with app.audit.operation("my cleanup"):
        pass
    entry = await only(app)
    assert (entry.who, entry.via, entry.state, entry.done) == (this_user(), "api", "done", None)


async def test_an_exception_is_the_outcome_and_reaches_the_caller(app: App) -> None:
    with pytest.raises(ValueError, match="no such tenant"):
        async with app.audit.operation("tenant remove"):
            raise ValueError("no such tenant")
    entry = await only(app)
    assert (entry.state, entry.outcome) == ("failed", "ValueError: no such tenant")


async def test_a_cancelled_operation_is_interrupted(app: App) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with app.audit.operation("slow"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await only(app)).state == "interrupted"


async def test_the_same_works_without_an_event_loop(app: App) -> None:
    def work() -> list[AuditEntry]:
        with app.sync.audit.operation("dlq purge", target="mail") as operation:
            operation.ended(7)
        with pytest.raises(ValueError), app.sync.audit.operation("dlq purge"):  # noqa: PT011
            raise ValueError("boom")
        assert [one.state for one in app.sync.audit.scan()] == ["failed", "done"]
        return app.sync.audit.list(limit=None)

    failed, done = await asyncio.to_thread(work)
    assert (done.done, done.target, failed.outcome) == (7, "mail", "ValueError: boom")
    with pytest.warns(RuntimeWarning, match=r"async with app\.audit\.operation"):
        app.sync.audit.operation("dlq purge")


async def test_the_newest_is_first_and_filters_narrow(app: App) -> None:
    for what, who in (("dlq replay", "ada@web-1"), ("dlq purge", "bob@web-2"), ("queue pause", "ada@web-2")):
        async with app.audit.operation(what, who=who):
            pass

    async def whats(**filters: Any) -> list[str]:
        found = [entry.what async for entry in app.audit.scan(**filters)]
        assert found == [entry.what for entry in await app.audit.list(**filters)]
        return found

    assert await whats() == ["queue pause", "dlq purge", "dlq replay"]
    assert await whats(what="dlq") == ["dlq purge", "dlq replay"]
    assert await whats(who="ada") == ["queue pause", "dlq replay"]
    assert await whats(who="web-2") == ["queue pause", "dlq purge"]
    assert await whats(who="ada@web-1") == ["dlq replay"]
    assert await whats(since=timedelta(hours=1)) == await whats()
    assert await whats(until=NEVER) == []
    assert [entry.what for entry in await app.audit.list(limit=1)] == ["queue pause"]


async def test_more_operations_than_a_page_are_all_listed_once(app: App) -> None:
    for n in range(270):
        async with app.audit.operation("dlq replay", target=str(n)):
            pass
    listed = [entry.target for entry in await app.audit.list(limit=None)]
    assert listed == [str(n) for n in reversed(range(270))]


async def test_an_operation_that_began_before_the_time_and_ended_after_it_is_found(app: App) -> None:
    async with app.audit.operation("slow", target="mail") as operation:
        between = await _now_after(app)
        async with app.audit.operation("quick"):
            pass
        operation.ended(1)
    slow, quick = await only(app, what="slow", since=between), await only(app, what="quick")
    assert (slow.target, slow.done, slow.state) == ("mail", 1, "done")
    assert slow.at < between <= quick.at


async def _now_after(app: App) -> datetime:
    """The server's time, in a later millisecond than everything so far."""
    before = now = await app.client.ask(verbs.server.now())
    while now == before:
        now = await app.client.ask(verbs.server.now())
    return datetime.fromtimestamp(now / 1000, UTC)


async def test_a_first_line_that_was_written_twice_is_one_operation(app: App) -> None:
    keys = AppKeys(app.namespace)
    for phase in ("begin", "begin", "end"):
        fields = {"id": "x", "phase": phase, "what": "dlq replay", "who": "ada@web-1", "via": "cli"}
        await app.client.ask(verbs.audit.note(keys, fields))
    assert (await only(app)).id == "x"


@pytest.mark.parametrize(
    "fields",
    [
        {"of": "a later version"},
        {"id": "x", "phase": "end", "state": "undone", "begun": "99999999999999999999", "done": "many"},
        {"id": "x", "phase": "begin", "planned": "-1", "what": "\x1b[2J"},
    ],
    ids=str,
)
async def test_lines_of_another_version_do_not_hide_the_others(app: App, fields: dict[str, str]) -> None:
    await app.client.ask(verbs.audit.note(AppKeys(app.namespace), fields))
    async with app.audit.operation("dlq replay"):
        pass
    assert "dlq replay" in [entry.what for entry in await app.audit.list()]


async def test_texts_are_cut_and_names_are_checked(app: App) -> None:
    async with app.audit.operation("dlq replay", target="x" * 100_000, filter="\udcff"):
        pass
    entry = await only(app)
    assert (len(entry.target), entry.target[-1], entry.filter) == (1000, "…", "\\udcff")
    for what in ("", "two\nlines"):
        with pytest.raises(ConfigurationError):
            app.audit.operation(what)
    with pytest.raises(ConfigurationError, match="since is in the future"):
        await app.audit.list(since=datetime(2999, 1, 1, tzinfo=UTC))


async def test_an_operation_that_may_not_be_recorded_goes_on_with_a_warning(
    server: Server, make_app: MakeApp
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "operator", "on", ">pw", "+@all", "&*", "~fq:{shop/*")
        app = make_app(redis_url=server.url.replace("redis://", "redis://operator:pw@"))
        done: list[str] = []

        def work() -> None:
            with app.sync.audit.operation("dlq purge"):
                done.append("sync")

        with capture_logs() as logs:
            async with app.audit.operation("dlq purge"):
                done.append("async")
            await asyncio.to_thread(work)
        assert done == ["async", "sync"]
        assert [line["event"] for line in logs] == ["operation_not_recorded"] * 2
        assert "NOPERM" in logs[0]["why"]
        with pytest.raises(BrokerUnavailable):
            await app.audit.list()
        client.execute_command("ACL", "DELUSER", "operator")


async def test_an_outcome_that_cannot_be_written_is_a_warning(app: App, server: Server) -> None:
    with capture_logs() as logs:
        async with app.audit.operation("dlq purge"):
            with server.client() as client:
                client.set(AppKeys(app.namespace)["audit"], "of a wrong type")
    assert [line["event"] for line in logs] == ["operation_not_recorded"]
    with server.client() as client:
        client.delete(AppKeys(app.namespace)["audit"])
