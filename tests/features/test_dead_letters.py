"""The dead: found, read, brought back, removed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import cast

import pytest

from fennelq import App, AsyncResult, ConfigurationError, Status, TaskFailed
from fennelq.broker import verbs
from fennelq.manage import pace
from fennelq.manage.dead import dead, search
from fennelq.manage.dead.letter import DeadLetter, ReplayReport
from fennelq.manage.dead.search import Filters
from fennelq.manage.queues.queues import Queues
from tests.features.conftest import MakeApp
from tests.kit.ageing import age
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

NEVER = ReplayReport()


class CardRefused(Exception):
    """An error of the user's own."""


class Shop:
    """Tasks that die as long as the shop is broken, and what has run since it is not."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.broken = True
        self.ran = Counter[int]()

        @app.task(retries=0)
        async def charge(n: int) -> int:
            return self._do(n, CardRefused(f"no money for {n}"))

        @app.task(queue="mail", retries=0)
        async def welcome(n: int) -> int:
            return self._do(n, ValueError("no such user"))

        self.charge, self.welcome = charge, welcome

    def _do(self, n: int, error: Exception) -> int:
        if self.broken:
            raise error
        self.ran[n] += 1
        return n

    async def kill(self, *, charges: int = 0, welcomes: int = 0) -> list[AsyncResult[int]]:
        """So many dead jobs, in the order in which they died."""
        jobs = [self.charge.job(n) for n in range(charges)] + [self.welcome.job(n) for n in range(welcomes)]
        handles = await self.app.enqueue(jobs)
        async with running(self.app):
            await aeventually(lambda: self.all_dead(handles))
        return handles

    async def all_dead(self, handles: list[AsyncResult[int]]) -> bool:
        return all([await handle.status() is Status.DEAD for handle in handles])

    async def waiting(self) -> int:
        """How many jobs wait in all queues."""
        return sum(queue.waiting for queue in await Queues(self.app).list())


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 7 and scripts of 3 entries: what happens at the edges of pages happens often."""
    monkeypatch.setattr(search, "PAGE", 7)
    for module in (dead, pace, search):
        monkeypatch.setattr(module, "MOST_JOBS", 3)


async def has_succeeded(handle: AsyncResult[int]) -> bool:
    return await handle.status() is Status.SUCCESS


async def is_unknown(handle: AsyncResult[int]) -> bool:
    """Whether nothing is known of the job any more."""
    return await handle.status() is Status.UNKNOWN


def keys(server: Server, pattern: str) -> list[bytes]:
    """The names of the keys that match."""
    with server.client() as client:
        return cast("list[bytes]", client.keys(pattern))


def ids(letters: list[DeadLetter]) -> list[str]:
    return [letter.id for letter in letters]


# Looking


async def test_a_dead_job_is_listed_with_what_killed_it(shop: Shop) -> None:
    [dead] = await shop.kill(charges=1)
    [letter] = await shop.app.dlq.list()
    assert (letter.id, letter.queue, letter.task) == (dead.id, "default", shop.charge.name)
    assert letter.error_type.endswith("CardRefused")
    assert (letter.message, letter.reason) == ("no money for 0", "failed")
    info = await dead.info()
    assert info is not None
    assert letter.died_at == info.ended_at


async def test_the_newest_come_first_unless_the_oldest_are_asked_for(shop: Shop) -> None:
    first, second, third = [(await shop.kill(charges=1))[0].id for _ in range(3)]
    assert ids(await shop.app.dlq.list()) == [third, second, first]
    assert ids(await shop.app.dlq.list(order="oldest")) == [first, second, third]
    assert ids(await shop.app.dlq.list(limit=2)) == [third, second]
    assert ids(await shop.app.dlq.list(limit=1, order="oldest")) == [first]


async def test_queues_are_listed_together_in_the_order_of_death(shop: Shop) -> None:
    first = (await shop.kill(welcomes=1))[0].id
    second = (await shop.kill(charges=1))[0].id
    third = (await shop.kill(welcomes=1))[0].id
    assert ids(await shop.app.dlq.list()) == [third, second, first]
    assert ids(await shop.app.dlq.list(limit=2, order="oldest")) == [first, second]


async def test_every_queue_is_looked_at_unless_one_is_named(shop: Shop) -> None:
    charged, welcomed = await shop.kill(charges=1, welcomes=1)
    assert set(ids(await shop.app.dlq.list())) == {charged.id, welcomed.id}
    assert ids(await shop.app.dlq.list(queue="mail")) == [welcomed.id]
    assert len(await shop.app.dlq.list(queue=["mail", "default"])) == 2
    assert await shop.app.dlq.list(queue="nothing-here") == []


async def test_a_queue_that_only_another_process_knows_is_looked_at(shop: Shop, make_app: MakeApp) -> None:
    [dead] = await shop.kill(welcomes=1)
    stranger = make_app()
    assert ids(await stranger.dlq.list()) == [dead.id]


async def test_filters_narrow_the_search_together(shop: Shop) -> None:
    charged, welcomed = await shop.kill(charges=1, welcomes=1)
    for found, filters in [
        ([charged.id], Filters(task=shop.charge)),
        ([charged.id], Filters(task=shop.charge.name)),
        ([welcomed.id], Filters(error="ValueError")),
        ([charged.id], Filters(error="CardRefused")),
        ([], Filters(error="Refused")),
        ([], Filters(task=shop.charge, error="ValueError")),
        ([welcomed.id], Filters(ids=[welcomed.id])),
        ([], Filters(ids=[welcomed.id], error="CardRefused")),
        ([], Filters(ids=[welcomed.id], queue="default")),
        ([], Filters(ids=[])),
    ]:
        assert ids(await shop.app.dlq.list(**filters)) == found, filters
        assert await shop.app.dlq.count(**filters) == len(found), filters


async def test_a_function_s_name_is_enough_to_name_its_task(shop: Shop) -> None:
    await shop.kill(charges=1, welcomes=1)

    @shop.app.task(name="other:charge", retries=0)
    async def charge() -> None:
        raise ValueError

    [other] = await shop.app.enqueue([charge.job()])
    async with running(shop.app):
        with pytest.raises(TaskFailed):
            await other.get(timeout=30)
    assert await shop.app.dlq.count(task="charge") == 1
    assert await shop.app.dlq.count(task="other:charge") == 1


async def test_since_and_until_take_a_moment_or_an_age(shop: Shop) -> None:
    first, second = [(await shop.kill(charges=1))[0] for _ in range(2)]
    [then] = await shop.app.dlq.list(ids=[first.id])
    a_moment_later = then.died_at + timedelta(milliseconds=1)
    dead = shop.app.dlq
    assert ids(await dead.list(since=a_moment_later)) == [second.id]
    assert ids(await dead.list(until=then.died_at)) == [first.id]
    assert ids(await dead.list(since=then.died_at)) == [second.id, first.id]
    assert ids(await dead.list(since=then.died_at, until=then.died_at)) == [first.id]
    assert await dead.count(since=timedelta(hours=1)) == 2
    assert await dead.count(since=3600) == 2
    assert await dead.count(until=3600) == 0
    assert await dead.count(until=timedelta(0)) == 2


async def test_a_moment_without_a_zone_is_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        await app.dlq.list(since=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.usefixtures("small_pages")
async def test_a_search_goes_on_over_the_edges_of_pages(shop: Shop) -> None:
    dead = await shop.kill(charges=20, welcomes=5)
    oldest = [handle.id for handle in dead]
    assert sorted([letter.id async for letter in shop.app.dlq.scan()]) == sorted(oldest)
    assert len(await shop.app.dlq.list(limit=None)) == 25
    assert len(await shop.app.dlq.list(limit=11)) == 11
    assert await shop.app.dlq.count(task=shop.charge) == 20
    assert sorted(ids(await shop.app.dlq.list(ids=oldest))) == sorted(oldest)


async def test_get_returns_everything(shop: Shop) -> None:
    [dead] = await shop.kill(charges=1)
    letter = await shop.app.dlq.get(dead.id)
    assert letter is not None
    assert letter.info is not None
    assert "CardRefused: no money for 0" in letter.traceback
    assert (letter.tries, letter.info.arguments, letter.info.replays) == (1, b"[[0],{}]", 0)
    assert letter.info.enqueued_at is not None
    assert letter.info.started_at is not None


async def test_get_knows_nothing_of_what_is_not_dead(shop: Shop) -> None:
    sent = await shop.charge.delay(1)
    assert await shop.app.dlq.get(sent.id) is None
    assert await shop.app.dlq.get("mail:missing") is None
    with pytest.raises(ValueError, match="is not a job id"):
        await shop.app.dlq.get("missing")


async def test_groups_count_the_dead_by_task_and_error(shop: Shop) -> None:
    await shop.kill(charges=3, welcomes=2)
    groups = [
        (group.task, group.error_type.rpartition(".")[2], group.jobs) for group in await shop.app.dlq.groups()
    ]
    assert groups == [(shop.charge.name, "CardRefused", 3), (shop.welcome.name, "ValueError", 2)]


# Bringing back


async def test_a_replayed_job_is_the_same_job_with_a_fresh_budget(shop: Shop) -> None:
    [dead] = await shop.kill(charges=1)
    shop.broken = False
    assert await shop.app.dlq.replay() == ReplayReport(replayed=1)
    async with running(shop.app):
        assert await dead.get(timeout=30) == 0
    info = await dead.info()
    assert info is not None
    assert (info.status, info.tries, info.replays) == (Status.SUCCESS, 1, 1)
    assert await shop.app.dlq.count() == 0


async def test_only_what_meets_the_filters_comes_back(shop: Shop) -> None:
    charged, welcomed = await shop.kill(charges=1, welcomes=1)
    assert await shop.app.dlq.replay(error="ValueError") == ReplayReport(replayed=1)
    assert (await charged.status(), await welcomed.status()) == (Status.DEAD, Status.SENT)


async def test_a_limit_brings_back_the_oldest(shop: Shop) -> None:
    first, second = [(await shop.kill(charges=1))[0] for _ in range(2)]
    assert (await shop.app.dlq.replay(limit=1)).replayed == 1
    assert (await first.status(), await second.status()) == (Status.SENT, Status.DEAD)


async def test_ids_that_are_not_dead_are_no_harm(shop: Shop) -> None:
    [dead] = await shop.kill(charges=1)
    waiting = await shop.welcome.delay(1)
    assert await shop.app.dlq.replay(ids=[dead.id, waiting.id, "mail:missing"]) == ReplayReport(replayed=1)
    assert await shop.app.dlq.replay(ids=[dead.id]) == NEVER
    assert await shop.waiting() == 2


@pytest.mark.both_servers
async def test_eight_replays_at_once_bring_each_job_back_once(shop: Shop, make_app: MakeApp) -> None:
    dead = await shop.kill(charges=200)
    shop.broken = False
    reports = await asyncio.gather(*(make_app().dlq.replay() for _ in range(8)))
    assert sum(report.replayed for report in reports) == 200
    assert sum(report.key_taken + report.broken for report in reports) == 0
    assert await shop.waiting() == 200
    async with running(shop.app):
        await asyncio.gather(*(handle.get(timeout=30) for handle in dead))
    assert shop.ran == dict.fromkeys(range(200), 1)


@pytest.mark.usefixtures("small_pages")
async def test_a_replay_interrupted_anywhere_and_run_again_makes_no_duplicates(shop: Shop) -> None:
    dead = await shop.kill(charges=60)
    interrupted = 0
    for turns in range(1, 40):
        replay = asyncio.create_task(shop.app.dlq.replay())
        for _ in range(turns):
            await asyncio.sleep(0)
        interrupted += replay.cancel()
        await asyncio.gather(replay, return_exceptions=True)
    still_dead = await shop.app.dlq.count()
    assert interrupted
    assert (await shop.app.dlq.replay()).replayed == still_dead
    assert await shop.waiting() == 60
    assert [info.replays for handle in dead if (info := await handle.info())] == [1] * 60


async def test_a_replay_stopped_between_two_pages_leaves_the_rest_dead(shop: Shop) -> None:
    await shop.kill(charges=250)

    def stop(done: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        await shop.app.dlq.replay(progress=stop)
    assert (await shop.waiting(), await shop.app.dlq.count()) == (100, 150)
    assert await shop.app.dlq.replay() == ReplayReport(replayed=150)
    assert await shop.waiting() == 250


async def test_a_lost_answer_makes_no_duplicates(shop: Shop, make_app: MakeApp, proxy: Proxy) -> None:
    await shop.kill(charges=5)
    far_away = make_app(redis_url=proxy.url)
    client = far_away.client
    await client.ask(
        verbs.dead.replay(client.keys("default"), ["0-1"])
    )  # the server knows the script from now on
    proxy.drop_reply(command="EVALSHA", cut=True)
    report = await far_away.dlq.replay()
    assert (report.total, report.gone) == (5, 5)
    assert (await shop.waiting(), await shop.app.dlq.count()) == (5, 0)


@pytest.mark.usefixtures("small_pages")
async def test_what_dies_again_meanwhile_is_left_for_the_next_time(shop: Shop) -> None:
    dead = await shop.kill(charges=40)
    replay = asyncio.create_task(shop.app.dlq.replay(rate=1000))
    async with running(shop.app):
        assert await replay == ReplayReport(replayed=40)
        await aeventually(lambda: shop.all_dead(dead))
    assert [info.replays for handle in dead if (info := await handle.info())] == [1] * 40
    assert await shop.app.dlq.count() == 40


async def test_rate_is_the_most_per_second(shop: Shop) -> None:
    await shop.kill(charges=30)
    done: list[int] = []
    began = time.monotonic()
    await shop.app.dlq.replay(rate=100, progress=done.append)
    assert time.monotonic() - began >= 0.2
    assert (done[0], done[-1]) == (10, 30)
    with pytest.raises(ConfigurationError, match="rate"):
        await shop.app.dlq.replay(rate=0)


async def test_a_replay_works_as_long_as_the_job_is_listed(make_app: MakeApp, server: Server) -> None:
    shop = Shop(make_app(record_ttl=0, result_ttl=0, failure_ttl=0))
    [dead] = await shop.kill(charges=1)
    [record] = keys(server, "*:j:*")
    with server.client() as client:
        assert client.ttl(record) == -1, "the record of a dead job must not expire"
    shop.broken = False
    assert await shop.app.dlq.replay() == ReplayReport(replayed=1)
    async with running(shop.app):
        await aeventually(lambda: shop.ran == {0: 1})
        await aeventually(lambda: has_succeeded(dead))
        age(server, 600)
        await aeventually(lambda: is_unknown(dead))


@pytest.mark.audit(skip="the key was stolen from a dead job's record")
async def test_a_job_whose_key_is_taken_stays_dead(shop: Shop, server: Server) -> None:
    dead = await shop.charge.options(key="order:1").delay(1)
    async with running(shop.app):
        with pytest.raises(TaskFailed):
            await dead.get(timeout=30)
    with server.client() as client:
        client.delete(*keys(server, "*idem:*"))
    await shop.charge.options(key="order:1").delay(2)
    assert await shop.app.dlq.replay() == ReplayReport(key_taken=1)
    assert await dead.status() is Status.DEAD


@pytest.mark.audit(skip="a record was robbed of its arguments")
async def test_a_record_that_cannot_be_read_is_reported_separately(shop: Shop, server: Server) -> None:
    await shop.kill(charges=2)
    with server.client() as client:
        client.hdel(keys(server, "*:j:*")[0].decode(), "a")
    assert await shop.app.dlq.replay() == ReplayReport(replayed=1, broken=1)
    assert await shop.app.dlq.purge(all=True) == 1


# Removing


async def test_purged_jobs_are_gone_for_good(shop: Shop, server: Server) -> None:
    dead = await shop.kill(charges=3, welcomes=1)
    done: list[int] = []
    assert await shop.app.dlq.purge(task=shop.charge, progress=done.append) == 3
    assert done == [3]
    assert [await handle.status() for handle in dead] == [*[Status.UNKNOWN] * 3, Status.DEAD]
    assert len(keys(server, "*:j:*")) == len(keys(server, "*:r:*")) == 1


@pytest.mark.usefixtures("small_pages")
async def test_a_limit_purges_the_oldest(shop: Shop) -> None:
    dead = await shop.kill(charges=10)
    order = ids(await shop.app.dlq.list(order="oldest"))
    assert await shop.app.dlq.purge(limit=8, all=True) == 8
    assert ids(await shop.app.dlq.list(order="oldest")) == order[8:]
    assert len(dead) == 10
