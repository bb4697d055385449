"""The filter language selects dead jobs: those of a tenant, or with a text in their arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fennelq import App, AsyncResult, BrokerUnavailable, ConfigurationError, InvalidFilter, Status
from fennelq.manage.dead import search
from fennelq.manage.dead.letter import ReplayReport
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


class Shop:
    """Eight dead jobs of two tenants in two queues. Every third has a card, and one a megabyte of arguments."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ids = list[str]()

        @app.task(name="shop:charge", retries=0)
        async def charge(n: int, note: str) -> None:
            raise ValueError(f"no money for {n}")

        self.charge = charge

    async def kill(self) -> None:
        for n in range(8):
            note = "card 4711" if n % 3 == 0 else "x" * 900_000 if n == 1 else ""
            options: Any = {"headers": {"tenant": "acme" if n < 5 else "umbrella"}, "job_id": f"job-{n}"}
            queue = "mail" if n in (2, 6) else "default"
            result = await self.charge.options(queue=queue, **options).delay(n, note)
            await self.dies(result)
            self.ids.append(result.id)

    async def dies(self, result: AsyncResult[Any]) -> None:
        async def is_dead() -> bool:
            return await result.status() is Status.DEAD

        await aeventually(is_dead)

    def number(self, job_id: str) -> int:
        return self.ids.index(job_id)

    async def found(self, where: str, **filters: Any) -> list[int]:
        """The numbers of the jobs that match."""
        return sorted([self.number(one.id) async for one in self.app.dlq.scan(where=where, **filters)])


@pytest.fixture
async def shop(app: App) -> Shop:
    found = Shop(app)
    async with running(app):
        await found.kill()
    return found


async def test_dead_jobs_are_selected_by_every_word_of_a_filter(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PAGE", 3)
    letters = {shop.number(one.id): one for one in await shop.app.dlq.list()}
    since = letters[3].died_at.isoformat()
    for where, wanted in (
        ("header:tenant=acme", [0, 1, 2, 3, 4]),
        ("-header:tenant=acme", [5, 6, 7]),
        ('"card 4711"', [0, 3, 6]),
        ('header:tenant=acme "card 4711" state:dead', [0, 3]),
        ("xxxx", [1]),
        ('-xxxx -"card 4711"', [2, 4, 5, 7]),
        ('"money for 5"', [5]),
        ("task:charge error:ValueError queue:mail", [2, 6]),
        ("-queue:mail header:tenant=umbrella", [5, 7]),
        (f"since:{since}", [3, 4, 5, 6, 7]),
        (f"until:{since} header:tenant=acme", [0, 1, 2, 3]),
        (f"fp:{letters[0].fingerprint}", [*range(8)]),
        ("fp:0000beef", []),
        ("id:default:job-3", [3]),
        ("default:unknown", []),
        ("", [*range(8)]),
    ):
        assert await shop.found(where) == wanted, where


async def test_a_filter_and_other_filters_must_both_match(shop: Shop) -> None:
    assert await shop.found("header:tenant=acme", queue="mail") == [2]
    assert await shop.found("header:tenant=acme queue:mail", queue="default") == []
    assert await shop.found('"card 4711"', ids=[shop.ids[n] for n in (7, 6, 5, 0)]) == [0, 6]
    assert await shop.found("default:job-3", ids=shop.ids[4:]) == []
    assert await shop.found("since:1h", until=timedelta(hours=1)) == []
    fingerprint = (await shop.app.dlq.groups())[0].fingerprint
    assert await shop.found("header:tenant=umbrella", fingerprint=fingerprint) == [5, 6, 7]
    [group] = await shop.app.dlq.groups(where="header:tenant=umbrella")
    assert group.jobs == 3
    newest = await shop.app.dlq.list(where="header:tenant=acme", limit=2)
    assert [shop.number(one.id) for one in newest] == [4, 3]


async def test_a_replay_and_a_purge_do_what_the_filter_selects_and_no_more(shop: Shop) -> None:
    plan = await shop.app.dlq.plan(where='header:tenant=acme "card 4711"')
    assert (plan.count, plan.ready) == (2, 2)
    assert [shop.number(letter.id) for letter in plan.samples] == [0, 3]
    assert await shop.app.dlq.count(where="header:tenant=acme") == 5
    assert await shop.app.dlq.replay(plan=plan) == ReplayReport(replayed=2)
    assert await shop.app.dlq.purge(where="header:tenant=umbrella", limit=2) == 2
    left = [shop.number(one.id) for one in await shop.app.dlq.list(order="oldest")]
    assert (len(left), {1, 2, 4} < set(left)) == (4, True)
    assert [shop.number(line["id"]) async for line in shop.app.dlq.export(where="xxxx")] == [1]


async def test_a_plan_of_ids_in_a_filter_is_of_these_ids(shop: Shop) -> None:
    plan = await shop.app.dlq.plan(where="default:job-3", limit=1)
    assert await shop.app.dlq.replay(plan=plan) == ReplayReport(replayed=1)
    assert await shop.app.dlq.count() == 7


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("taks:charge", "did you mean 'task'"),
        ("state:waiting", "state:waiting selects no dead job"),
        ("state:dead state:waiting", "state:waiting selects no dead job"),
        ("-state:dead", "-state:dead selects no dead job"),
        ("since:2099-01-01", "is in the future"),
        ("card.*", "looks like a pattern"),
    ],
)
async def test_a_wrong_filter_is_refused_and_changes_nothing(app: App, where: str, sentence: str) -> None:
    for act in (app.dlq.count, app.dlq.purge, app.dlq.replay, app.dlq.plan):
        with pytest.raises(InvalidFilter, match=sentence):
            await act(where=where)
    with pytest.raises(InvalidFilter, match="a filter is a text"):
        await app.dlq.count(where=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_a_filter_that_selects_everything_does_not_purge_everything(shop: Shop) -> None:
    for where in ("", "  "):
        with pytest.raises(ConfigurationError, match="all=True"):
            await shop.app.dlq.purge(where=where)
    assert await shop.app.dlq.count() == 8


async def test_a_time_in_the_future_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="since is in the future"):
        await app.dlq.count(since=timedelta(hours=-1))
    # The clock of the caller may be ahead of the server's.
    assert await app.dlq.count(since=timedelta(seconds=-10)) == 0


@pytest.mark.audit(skip="a record was removed by hand")
async def test_a_record_that_is_gone_does_not_match_and_hides_no_other(shop: Shop, server: Server) -> None:
    with server.client() as client:
        client.delete(shop.app.client.keys("default").record("job-0"))
    assert await shop.found("header:tenant=acme") == [1, 2, 3, 4]
    assert await shop.app.dlq.purge(all=True) == 8


async def to_its_end(work: Any) -> None:
    """Await it, or read all that it yields."""
    if not hasattr(work, "__aiter__"):
        await work
        return
    async for _ in work:
        pass


@pytest.mark.audit(skip="a key is damaged")
async def test_a_damaged_queue_does_not_stop_the_others(shop: Shop, server: Server) -> None:
    dlq, keys = shop.app.dlq, shop.app.client.keys("default")
    with server.client() as client:
        client.delete(keys["dlq"])
        client.set(keys["dlq"], "what?")
    mail = {2, 6}
    assert {shop.number(one.id) for one in await dlq.list()} == mail
    assert {shop.number(one.id) async for one in dlq.scan()} == mail
    assert (await dlq.count(), [group.jobs for group in await dlq.groups()]) == (2, [2])
    everything: Any = (dlq.list, dlq.scan, dlq.count, dlq.groups, dlq.plan, dlq.replay, dlq.purge, dlq.export)
    for act in everything:
        for filters in ({"queue": "default"}, {"where": "queue:default"}, {"ids": [shop.ids[0]]}):
            with pytest.raises(BrokerUnavailable, match="problem with queue 'default'"):
                await to_its_end(act(**filters))
    plan = await dlq.plan(limit=1)
    assert (plan.count, "queue 'default'" in plan.problem) == (1, True)
    assert await dlq.replay(plan=plan) == ReplayReport(replayed=1)
    exported = list[str]()

    async def export() -> None:
        async for line in dlq.export():
            exported.append(line["id"])

    for act_on_others in (export(), dlq.replay()):
        with pytest.raises(BrokerUnavailable, match="problem with queue 'default'"):
            await act_on_others
    assert {shop.number(one) for one in exported} < mail
    assert (len(exported), await dlq.count()) == (1, 0)
