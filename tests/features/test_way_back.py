"""The way back of dead jobs: a plan, a few first, and new arguments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from fennelq import (
    App,
    AsyncResult,
    ConfigurationError,
    Filters,
    InvalidArguments,
    Limit,
    PayloadTooLarge,
    ReplayRefused,
    Status,
    UnknownTask,
    dedupe,
)
from fennelq.broker import verbs
from fennelq.broker.scripts import script
from fennelq.manage.dead import search
from fennelq.manage.dead.letter import ReplayReport
from tests.features.conftest import MakeApp
from tests.kit.network import Exchange
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running


class CardRefused(Exception):
    """An error of the user's own."""


class Shop:
    """A task that dies for the accounts that are broken, and what it has charged."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.broken: set[int] | None = None
        """The accounts for which it dies; None for all."""
        self.error: type[Exception] = CardRefused
        self.ran = list[tuple[int, str]]()

        @app.task(name="shop:charge", retries=0)
        async def charge(user_id: int, currency: str = "EUR") -> str:
            if self.broken is None or user_id in self.broken:
                raise self.error(f"no money for {user_id}")
            self.ran.append((user_id, currency))
            return f"{user_id} {currency}"

        self.charge = charge

    async def kill(self, number: int) -> list[AsyncResult[str]]:
        """So many dead jobs, of the accounts 0, 1, 2 …"""
        return await die(self.app, [self.charge.job(n) for n in range(number)])

    async def statuses(self, handles: list[AsyncResult[str]]) -> Counter[Status]:
        """How many jobs have which status."""
        return Counter([await handle.status() for handle in handles])


async def die(app: App, jobs: list[Any]) -> list[AsyncResult[Any]]:
    """Send jobs, and wait until all are dead."""
    handles = await app.enqueue(jobs)

    async def dead() -> bool:
        return all([await handle.status() is Status.DEAD for handle in handles])

    async with running(app):
        await aeventually(dead)
    return handles


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


async def arguments_of(handle: AsyncResult[Any]) -> Any:
    info = await handle.info()
    assert info is not None
    return orjson.loads(info.arguments)


# The plan


async def test_a_plan_counts_and_shows_five_and_says_what_cannot_go_back(shop: Shop, server: Server) -> None:
    dead = await shop.kill(8)
    [keyed] = await die(shop.app, [shop.charge.options(key="order:1").job(8)])
    with server.client() as client:
        client.delete(shop.app.client.keys("default").idempotency("shop:charge:order:1"))
        client.hdel(shop.app.client.keys("default").record(dead[3].id.partition(":")[2]), "a")
    holder = await shop.charge.options(key="order:1").delay(9)
    plan = await shop.app.dlq.plan()
    assert (plan.count, plan.ready, plan.key_taken, plan.broken) == (9, 7, 1, 1)
    assert [letter.id for letter in plan.samples] == [handle.id for handle in dead[:5]]
    [newest] = await shop.app.dlq.list(limit=1)
    assert plan.newest == {"default": newest.entry}
    assert await shop.app.dlq.count() == 9
    report = await shop.app.dlq.replay(plan=plan)
    assert report == ReplayReport(replayed=7, key_taken=1, broken=1)
    assert await keyed.status() is Status.DEAD
    assert await shop.app.dlq.purge(all=True) == 2
    assert holder.id


async def test_what_dies_after_the_plan_stays(shop: Shop) -> None:
    before = await shop.kill(3)
    plan = await shop.app.dlq.plan(task=shop.charge)
    after = await shop.kill(2)
    assert await shop.app.dlq.replay(plan=plan) == ReplayReport(replayed=3)
    assert await shop.statuses(before) == {Status.SENT: 3}
    assert await shop.statuses(after) == {Status.DEAD: 2}


async def test_what_dies_again_after_the_plan_stays(shop: Shop) -> None:
    dead = await shop.kill(3)
    plan = await shop.app.dlq.plan()
    assert (await shop.app.dlq.replay(ids=[dead[1].id])).replayed == 1
    async with running(shop.app):
        await aeventually(lambda: shop.app.dlq.get(dead[1].id))
    assert await shop.app.dlq.replay(plan=plan) == ReplayReport(replayed=2)
    assert await dead[1].status() is Status.DEAD


async def test_a_purge_with_a_plan_leaves_what_dies_later(shop: Shop) -> None:
    await shop.kill(3)
    plan = await shop.app.dlq.plan(check=False)
    assert (plan.count, plan.ready, list(plan.samples)) == (3, 3, [])
    after = await shop.kill(1)
    assert await shop.app.dlq.purge(plan=plan) == 3
    assert await shop.statuses(after) == {Status.DEAD: 1}


async def test_a_plan_has_its_limit_and_its_filters(shop: Shop) -> None:
    dead = await shop.kill(5)
    plan = await shop.app.dlq.plan(limit=2, ids=(handle.id for handle in dead[1:]))
    assert plan.count == 2
    for more in (Filters(task="charge"), Filters(ids=[dead[4].id])):
        with pytest.raises(ConfigurationError, match="plan="):
            await shop.app.dlq.replay(plan=plan, **more)
    with pytest.raises(ConfigurationError, match="plan="):
        await shop.app.dlq.replay(plan=plan, limit=1)
    with pytest.raises(ConfigurationError, match="plan="):
        await shop.app.dlq.replay(plan=plan, arguments={})
    assert (await shop.app.dlq.replay(plan=plan)).replayed == 2
    assert await shop.statuses(dead) == {Status.DEAD: 3, Status.SENT: 2}
    assert (await shop.app.dlq.replay(plan=plan)).replayed == 0
    plan = await shop.app.dlq.plan(limit=1)
    assert [(await shop.app.dlq.replay(plan=plan)).replayed for _ in range(2)] == [1, 0]


async def test_an_empty_filter_does_not_purge_everything(shop: Shop) -> None:
    await shop.kill(1)
    for limit in (None, 1):
        with pytest.raises(ConfigurationError, match="all=True"):
            await shop.app.dlq.purge(limit=limit)
    with pytest.raises(ConfigurationError, match="all=True"):
        await asyncio.to_thread(lambda: shop.app.sync.dlq.purge())
    assert await shop.app.dlq.purge(queue="default") == 1


# A few first


@pytest.mark.both_servers
async def test_of_300_only_the_canary_is_sent_when_one_of_it_dies_again(shop: Shop) -> None:
    dead = await shop.kill(300)
    shop.broken = {3}
    done: list[int] = []
    async with running(shop.app):
        report = await shop.app.dlq.replay(canary=5, progress=done.append)
    assert (report.replayed, report.died_anew) == (5, 0)
    assert "1 of 5 canary jobs died as before" in report.stopped
    assert "no money for 3" in report.stopped
    assert done[-1] == 5
    assert [n for n, _ in sorted(shop.ran)] == [0, 1, 2, 4]
    assert await shop.statuses(dead) == {Status.SUCCESS: 4, Status.DEAD: 296}
    assert [info.replays for one in dead[5:] if (info := await one.info())] == [0] * 295


async def test_after_a_good_canary_the_others_follow(shop: Shop) -> None:
    dead = await shop.kill(20)
    shop.broken = set()
    async with running(shop.app):
        assert await shop.app.dlq.replay(canary=5) == ReplayReport(replayed=20)
        await asyncio.gather(*(handle.get(timeout=30) for handle in dead))
    assert sorted(shop.ran) == [(n, "EUR") for n in range(20)]


async def test_a_canary_that_dies_of_something_else_does_not_stop_the_others(shop: Shop) -> None:
    await shop.kill(8)
    shop.broken, shop.error = {1}, ZeroDivisionError
    async with running(shop.app):
        report = await shop.app.dlq.replay(canary=3)
    assert report == ReplayReport(replayed=8, died_anew=1)


async def test_a_canary_that_dies_in_another_function_does_not_stop_the_others(app: App) -> None:
    corrected = list[bool]()

    def bill() -> None:
        raise CardRefused

    def mail() -> None:
        raise CardRefused

    @app.task(name="shop:order", retries=0)
    async def order(n: int) -> None:
        mail() if corrected else bill()

    await die(app, [order.job(n) for n in range(6)])
    [group] = await app.dlq.groups()
    corrected.append(True)
    async with running(app):
        report = await app.dlq.replay(canary=2, fingerprint=group.fingerprint)
    assert report == ReplayReport(replayed=6, died_anew=2)


async def test_a_plan_of_a_group_is_of_this_group(shop: Shop) -> None:
    dead = await shop.kill(3)
    shop.error = ZeroDivisionError
    others = await shop.kill(2)
    letter = await shop.app.dlq.get(others[0].id)
    assert letter is not None
    plan = await shop.app.dlq.plan(fingerprint=letter.fingerprint)
    later = await shop.kill(1)
    assert (plan.count, plan.ready) == (2, 2)
    assert await shop.app.dlq.replay(plan=plan) == ReplayReport(replayed=2)
    assert await shop.statuses([*dead, *later]) == {Status.DEAD: 4}


async def test_a_canary_that_does_not_end_in_time_stops_the_others(shop: Shop) -> None:
    dead = await shop.kill(8)
    report = await shop.app.dlq.replay(canary=3, canary_timeout=0.05)
    assert report.replayed == 3
    assert "3 of 3 canary jobs have not ended within 0.05 s" in report.stopped
    assert await shop.statuses(dead) == {Status.SENT: 3, Status.DEAD: 5}


def replies_of_replay(exchange: Exchange) -> bool:
    """The replies after which jobs are back. A server that does not know the script replies with an error, and gets its
    source."""
    replay, error = script("replay"), exchange.reply.startswith(b"-")
    return not error and exchange.words[1:2] in ((replay.sha.encode(),), (replay.source.encode(),))


@pytest.mark.parametrize("changes", [None, {"currency": "USD"}])
async def test_a_canary_whose_reply_is_lost_is_watched_all_the_same(
    shop: Shop, make_app: MakeApp, proxy: Proxy, changes: dict[str, str] | None
) -> None:
    """The repeated call finds the jobs of the first one gone from the dead-letter queue."""
    dead = await shop.kill(30)
    far_away = make_app(redis_url=proxy.url)
    Shop(far_away)
    proxy.drop_reply(choice=replies_of_replay, cut=True)
    async with running(shop.app):
        report = await far_away.dlq.replay(canary=5, arguments=changes)
    assert proxy.counters.dropped == 1
    assert "5 of 5 canary jobs died as before" in report.stopped
    assert (report.replayed, report.gone) == (0, 5)
    assert await shop.statuses(dead) == {Status.DEAD: 30}
    assert [info.replays for one in dead if (info := await one.info())] == [1] * 5 + [0] * 25


async def test_after_a_good_canary_whose_reply_is_lost_the_others_follow(
    shop: Shop, make_app: MakeApp, proxy: Proxy
) -> None:
    dead = await shop.kill(12)
    shop.broken = set()
    far_away = make_app(redis_url=proxy.url)
    Shop(far_away)
    proxy.drop_reply(choice=replies_of_replay, cut=True)
    async with running(shop.app):
        assert await far_away.dlq.replay(canary=5) == ReplayReport(replayed=7, gone=5)
        await asyncio.gather(*(handle.get(timeout=30) for handle in dead))
    assert sorted(shop.ran) == [(n, "EUR") for n in range(12)]


async def test_a_job_that_was_replayed_before_the_canary_is_no_canary(shop: Shop) -> None:
    """The plan still has it: it was made before."""
    dead = await shop.kill(6)
    plan = await shop.app.dlq.plan(arguments={"currency": "USD"})
    shop.broken = {0}
    async with running(shop.app):
        assert (await shop.app.dlq.replay(ids=[dead[0].id])).replayed == 1
        await aeventually(lambda: shop.app.dlq.get(dead[0].id))
        assert await shop.app.dlq.replay(plan=plan, canary=2) == ReplayReport(replayed=5, gone=1)


async def test_a_plan_that_was_not_checked_stops_at_a_canary_that_dies(shop: Shop) -> None:
    """Such a plan has not looked at the kinds of the deaths."""
    dead = await shop.kill(6)
    plan = await shop.app.dlq.plan(check=False)
    async with running(shop.app):
        report = await shop.app.dlq.replay(plan=plan, canary=2)
    assert "2 of 2 canary jobs died as before" in report.stopped
    assert [info.replays for one in dead if (info := await one.info())] == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("how", ["its record and its entry are gone", "its entry is gone first"])
async def test_a_canary_that_was_purged_after_it_died_again_stops_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A purge comes between the death and the look, or within the look, when the record was read already."""
    dead = await shop.kill(8)
    purged: list[str] = []

    def died_again() -> bool:
        info = shop.app.sync.jobs.info(dead[0].id)
        return info is not None and (info.status, info.replays) == (Status.DEAD, 1)

    def purged_before(step: Any) -> Any:
        def make(*args: Any) -> Any:
            if name[0] == "jobs" and not purged:
                # The first look must not come before the death: it would see the death itself.
                eventually(died_again)
            if not purged and died_again():
                purged.append(dead[0].id)
                assert shop.app.sync.dlq.purge(ids=purged) == 1
            return step(*args)

        return make

    name = ("jobs", "outline") if how.startswith("its record") else ("dead", "dead_entry")
    room = getattr(verbs, name[0])
    async with running(shop.app):
        plan = await shop.app.dlq.plan()
        monkeypatch.setattr(room, name[1], purged_before(getattr(room, name[1])))
        report = await asyncio.to_thread(lambda: shop.app.sync.dlq.replay(plan=plan, canary=1))
    assert purged == [dead[0].id]
    assert report.replayed == 1
    assert (
        report.stopped == f"1 of 1 canary jobs were removed before their ends were seen, {dead[0].id} for one"
    )
    assert await shop.statuses(dead[1:]) == {Status.DEAD: 7}


async def test_a_canary_of_more_jobs_than_there_are_is_all_of_them(shop: Shop) -> None:
    await shop.kill(2)
    shop.broken = set()
    async with running(shop.app):
        assert await shop.app.dlq.replay(canary=5) == ReplayReport(replayed=2)
        assert await shop.app.dlq.replay(canary=5) == ReplayReport()
    with pytest.raises(ConfigurationError, match="canary"):
        await shop.app.dlq.replay(canary=0)


async def test_a_job_that_cannot_go_back_is_no_canary(shop: Shop, server: Server) -> None:
    dead = await shop.kill(6)
    with server.client() as client:
        client.hdel(shop.app.client.keys("default").record(dead[0].id.partition(":")[2]), "a")
    shop.broken = {3}
    async with running(shop.app):
        report = await shop.app.dlq.replay(canary=3)
    assert (report.replayed, report.broken) == (3, 1)
    assert "died as before" in report.stopped
    assert await shop.app.dlq.purge(all=True) == 4


@pytest.mark.both_servers
async def test_two_replays_with_a_canary_at_once_send_each_job_once(shop: Shop, make_app: MakeApp) -> None:
    dead = await shop.kill(100)
    shop.broken = set()
    async with running(shop.app):
        reports = await asyncio.gather(*(make_app().dlq.replay(canary=5) for _ in range(2)))
        await asyncio.gather(*(handle.get(timeout=30) for handle in dead))
    assert sum(report.replayed for report in reports) == 100
    assert sorted(shop.ran) == [(n, "EUR") for n in range(100)]


@pytest.mark.usefixtures("small_pages")
async def test_a_replay_with_a_canary_and_new_arguments_interrupted_anywhere_sends_each_job_once(
    shop: Shop,
) -> None:
    dead = await shop.kill(40)
    shop.broken = set()
    async with running(shop.app):
        for turns in range(1, 60, 2):
            again = shop.app.dlq.replay(canary=3, arguments={"currency": "USD"})
            replay = asyncio.create_task(again)
            for _ in range(turns):
                await asyncio.sleep(0)
            replay.cancel()
            await asyncio.gather(replay, return_exceptions=True)
        await shop.app.dlq.replay(canary=3, arguments={"currency": "USD"})
        await asyncio.gather(*(handle.get(timeout=30) for handle in dead))
    assert sorted(shop.ran) == [(n, "USD") for n in range(40)]
    assert [info.replays for handle in dead if (info := await handle.info())] == [1] * 40


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens at the edges of pages happens often."""
    monkeypatch.setattr(search, "PAGE", 7)


async def test_without_a_loop_it_is_the_same(shop: Shop) -> None:
    await shop.kill(4)
    dlq = shop.app.sync.dlq

    def replay() -> tuple[int, ReplayReport, ReplayReport]:
        plan = dlq.plan(arguments={"currency": "USD"}, limit=2)
        late = dlq.replay(canary=1, canary_timeout=0.01)
        return plan.count, dlq.replay(plan=plan), late

    count, report, late = await asyncio.to_thread(replay)
    assert (count, report) == (2, ReplayReport(replayed=1, gone=1))
    assert (late.replayed, bool(late.stopped)) == (1, True)


# New arguments


async def test_arguments_are_set_by_name_and_the_history_keeps_the_old_ones(shop: Shop) -> None:
    [dead] = await shop.kill(1)
    shop.broken = set()
    report = await shop.app.dlq.replay(arguments={"currency": "USD"}, who="anna@web-1")
    assert report == ReplayReport(replayed=1)
    async with running(shop.app):
        assert await dead.get(timeout=30) == "0 USD"
    [line] = [line for line in await dead.history() if line.what == "replayed"]
    assert line.more == 'by anna@web-1, with new arguments; before: {"user_id":0}'


async def test_a_function_makes_the_new_arguments_or_leaves_a_job_dead(shop: Shop) -> None:
    dead = await shop.kill(4)

    def only_even(arguments: dict[str, Any]) -> Mapping[str, Any] | None:
        n = arguments["user_id"]
        return {"user_id": n + 100, "currency": "CHF"} if n % 2 == 0 else None

    assert await shop.app.dlq.replay(arguments=only_even) == ReplayReport(replayed=2, skipped=2)
    assert await shop.statuses(dead) == {Status.SENT: 2, Status.DEAD: 2}
    assert await arguments_of(dead[2]) == [[102, "CHF"], {}]


@pytest.mark.parametrize(
    ("arguments", "parameter", "why"),
    [
        ({"user_id": "seven"}, "user_id", "valid integer"),
        ({"usr_id": 7}, "usr_id", "no such parameter"),
        ({"currency": None}, "currency", "valid string"),
    ],
)
async def test_arguments_that_do_not_fit_move_nothing_and_the_parameter_is_named(
    shop: Shop, arguments: dict[str, Any], parameter: str, why: str
) -> None:
    dead = await shop.kill(3)
    for call in (shop.app.dlq.replay, shop.app.dlq.plan):
        with pytest.raises(ReplayRefused, match=why) as refused:
            await call(arguments=arguments)
        assert (refused.value.parameter, refused.value.job_id, refused.value.number) == (
            parameter,
            dead[0].id,
            1,
        )
        assert parameter in str(refused.value)
    assert await shop.statuses(dead) == {Status.DEAD: 3}


class Raising:
    """A function that fails for the seventh job."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if self.calls == 7:
            raise KeyError("currency")
        return {**arguments, "currency": "USD"}


async def test_a_function_that_raises_on_the_7th_of_20_moves_none(shop: Shop) -> None:
    dead = await shop.kill(20)
    with pytest.raises(ReplayRefused, match=r"Raising raised KeyError: 'currency'") as refused:
        await shop.app.dlq.replay(arguments=Raising())
    assert (refused.value.number, refused.value.fitting, refused.value.job_id) == (7, 6, dead[6].id)
    assert "Nothing was replayed" in str(refused.value)
    assert await shop.statuses(dead) == {Status.DEAD: 20}


async def test_a_function_that_raises_on_the_7th_of_20_moves_6_if_asked_to(shop: Shop) -> None:
    dead = await shop.kill(20)
    raising = Raising()
    report = await shop.app.dlq.replay(arguments=raising, continue_=True)
    assert (report.replayed, report.skipped, raising.calls) == (6, 14, 7)
    assert f"job {dead[6].id} (number 7 of those selected)" in report.stopped
    assert await shop.statuses(dead[:6]) == {Status.SENT: 6}
    assert await shop.statuses(dead[6:]) == {Status.DEAD: 14}
    assert [await arguments_of(one) for one in dead[:6]] == [[[n, "USD"], {}] for n in range(6)]


async def test_a_function_is_called_once_per_job(shop: Shop) -> None:
    await shop.kill(5)
    calls = list[int]()

    def noting(arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(arguments["user_id"])
        return arguments

    plan = await shop.app.dlq.plan(arguments=noting)
    assert (await shop.app.dlq.replay(plan=plan)).replayed == 5
    assert calls == [0, 1, 2, 3, 4]


async def test_a_long_message_of_a_function_is_cut(shop: Shop) -> None:
    await shop.kill(1)

    def fails(_: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("x" * 1_000_000)

    with pytest.raises(ReplayRefused, match="fails raised ValueError: xxx") as refused:
        await shop.app.dlq.replay(arguments=fails)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("returned", [7, [1], {1: 2}])
async def test_a_function_that_returns_no_arguments_is_refused(shop: Shop, returned: Any) -> None:
    await shop.kill(1)
    with pytest.raises(ReplayRefused, match="must return the arguments by name, or None"):
        await shop.app.dlq.replay(arguments=lambda _: returned)
    assert await shop.app.dlq.count() == 1


async def test_an_async_function_is_refused(shop: Shop) -> None:
    async def change(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    with pytest.raises(ConfigurationError, match="without await"):
        await shop.app.dlq.replay(arguments=change)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="dict of arguments"):
        await shop.app.dlq.replay(arguments=[7])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_arguments_that_are_too_large_move_nothing(make_app: MakeApp) -> None:
    shop = Shop(make_app(max_payload_bytes=200))
    dead = await shop.kill(2)
    with pytest.raises(ReplayRefused, match="max_payload_bytes") as refused:
        await shop.app.dlq.replay(arguments={"currency": "x" * 300})
    assert isinstance(refused.value.error, PayloadTooLarge)
    assert await shop.statuses(dead) == {Status.DEAD: 2}


async def test_large_arguments_go_in_several_calls(shop: Shop) -> None:
    dead = await shop.kill(7)
    large = {"currency": "x" * 700_000}
    assert await shop.app.dlq.replay(arguments=large) == ReplayReport(replayed=7)
    assert [len((await arguments_of(one))[0][1]) for one in dead] == [700_000] * 7


async def test_the_history_keeps_four_kibibytes_of_the_old_arguments_and_no_secrets(shop: Shop) -> None:
    @shop.app.task(name="shop:login", retries=0)
    async def login(password: str, note: str, options: dict[str, str]) -> None:
        raise CardRefused

    [dead] = await die(shop.app, [login.job("hunter2", "ä" * 9000, {"api_key": "hunter3"})])
    assert (await shop.app.dlq.replay(arguments={"note": "short"}, who="anna")).replayed == 1
    [line] = [line for line in await dead.history() if line.what == "replayed"]
    assert line.more is not None
    assert 4090 < len(line.more.encode()) <= 4096
    assert line.more.startswith('by anna, with new arguments; before: {"password":"[redacted]","note":"ää')
    assert await arguments_of(dead) == [["hunter2", "short", {"api_key": "hunter3"}], {}]


async def test_without_the_code_of_a_task_its_arguments_are_changed_only_if_asked_to(
    shop: Shop, make_app: MakeApp, server: Server
) -> None:
    job = shop.charge.options(concurrency=Limit(1, key="user_id"), key="order:1").job(7, currency="EUR")
    [dead] = await die(shop.app, [job])
    stranger = make_app()
    with pytest.raises(ReplayRefused, match="unknown task 'shop:charge'") as refused:
        await stranger.dlq.replay(arguments={"currency": "USD"})
    assert isinstance(refused.value.error, UnknownTask)
    report = await stranger.dlq.replay(arguments={"currency": "USD", "0": 8}, anyway=True)
    assert report == ReplayReport(replayed=1)
    assert await arguments_of(dead) == [[8], {"currency": "USD"}]
    keys = shop.app.client.keys("default")
    with server.client() as client:
        gates, key = client.hmget(keys.record(dead.id.partition(":")[2]), ["g", "k"])
    assert (gates, key) == (b"c1:shop:charge/7", b"=shop:charge:order:1")


async def test_new_arguments_have_the_limits_the_fair_key_and_the_key_of_their_own(
    app: App, server: Server
) -> None:
    @app.task(
        name="shop:bill",
        retries=0,
        concurrency=Limit(1, key="account"),
        fair_key="tenant",
        key=dedupe.arguments("account"),
        dedupe="latest",
    )
    async def bill(account: int, tenant: str) -> None:
        raise CardRefused

    [dead] = await die(app, [bill.job(41, "acme")])
    key = dead.id.partition(":")[2]
    keys = app.client.keys("default")
    as_sent = await bill.delay(42, "umbrella")
    with server.client() as client:
        wanted = client.hmget(keys.record(as_sent.id.partition(":")[2]), ["g", "k"])
        assert await as_sent.cancel()
        assert (await app.dlq.replay(arguments={"account": 42, "tenant": "umbrella"})).replayed == 1
        assert client.hmget(keys.record(key), ["g", "k"]) == wanted
        assert wanted[1] == b"^shop:bill:account=42"
        assert client.get(keys.idempotency("shop:bill:account=42")) == key.encode()
        assert client.get(keys.idempotency("shop:bill:account=41")) is None
    assert (await bill.delay(42, "umbrella")).id == dead.id
    other = await bill.delay(41, "acme")
    assert (other.id != dead.id, other.deduplicated) == (True, False)


async def test_a_key_that_the_call_has_named_stays(app: App) -> None:
    @app.task(name="shop:bill", retries=0, key=dedupe.arguments("account"), dedupe="until_done")
    async def bill(account: int) -> None:
        raise CardRefused

    [dead] = await die(app, [bill.options(key="order:1").job(41)])
    assert (await app.dlq.replay(arguments={"account": 42})).replayed == 1
    assert (await bill.options(key="order:1").delay(41)).id == dead.id


async def test_a_job_whose_new_key_is_taken_stays_dead(app: App) -> None:
    @app.task(name="shop:bill", retries=0, key=dedupe.arguments("account"), dedupe="until_done")
    async def bill(account: int) -> None:
        raise CardRefused

    [dead] = await die(app, [bill.job(41)])
    await bill.delay(42)
    plan = await app.dlq.plan(arguments={"account": 42})
    assert (plan.count, plan.ready, plan.key_taken) == (1, 0, 1)
    assert await app.dlq.replay(plan=plan) == ReplayReport(key_taken=1)
    assert await arguments_of(dead) == [[41], {}]


async def test_a_job_that_was_replayed_meanwhile_is_reported_as_gone(shop: Shop) -> None:
    dead = await shop.kill(2)
    plan = await shop.app.dlq.plan(arguments={"currency": "USD"})
    assert (await shop.app.dlq.replay(ids=[dead[0].id])).replayed == 1
    assert await shop.app.dlq.replay(plan=plan) == ReplayReport(replayed=1, gone=1)
    assert await arguments_of(dead[0]) == [[0], {}]


async def test_a_lost_answer_changes_no_job_twice(shop: Shop, make_app: MakeApp, proxy: Proxy) -> None:
    dead = await shop.kill(3)
    far_away = make_app(redis_url=proxy.url)
    Shop(far_away)
    plan = await far_away.dlq.plan(arguments={"currency": "USD"})
    proxy.drop_reply(command="EVALSHA", cut=True)
    report = await far_away.dlq.replay(plan=plan)
    assert report.total == 3
    assert [await arguments_of(one) for one in dead] == [[[n, "USD"], {}] for n in range(3)]
    assert [info.replays for handle in dead if (info := await handle.info())] == [1] * 3


# One job


async def test_an_edited_job_runs_with_its_new_arguments(shop: Shop) -> None:
    [dead] = await shop.kill(1)
    shop.broken = set()
    answer = await shop.app.dlq.edit(dead.id, {"user_id": 5, "currency": "USD"}, who="anna")
    assert (answer.done, answer.text) == (True, "replayed with other arguments")
    async with running(shop.app):
        assert await dead.get(timeout=30) == "5 USD"
    again = await shop.app.dlq.edit(dead.id, {"user_id": 5})
    assert (again.done, again.text, again.known) == (False, "not dead: SUCCESS", True)
    unknown = await shop.app.dlq.edit("default:missing", {"user_id": 5})
    assert (unknown.done, unknown.known) == (False, False)


async def test_one_job_whose_reply_is_lost_is_replayed_all_the_same(
    shop: Shop, make_app: MakeApp, proxy: Proxy
) -> None:
    first, second = await shop.kill(2)
    far_away = make_app(redis_url=proxy.url)
    Shop(far_away)
    proxy.drop_reply(choice=replies_of_replay, cut=True)
    edited = await far_away.dlq.edit(first.id, {"user_id": 5, "currency": "USD"}, who="anna")
    assert (edited.done, edited.text) == (True, "replayed with other arguments")
    proxy.drop_reply(choice=replies_of_replay, cut=True)
    retried = await far_away.jobs.retry(second.id)
    assert (retried.done, retried.text) == (True, "replayed")
    assert proxy.counters.dropped == 2
    assert [info.replays for one in (first, second) if (info := await one.info())] == [1, 1]


async def test_an_edit_that_another_caller_has_overtaken_is_not_done(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    [dead] = await shop.kill(1)
    send = verbs.dead.replay

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(verbs.dead, "replay", send)
        assert shop.app.sync.jobs.retry(dead.id).done
        return send(*args)

    monkeypatch.setattr(verbs.dead, "replay", overtaken)
    answer = await asyncio.to_thread(lambda: shop.app.sync.dlq.edit(dead.id, {"user_id": 5}))
    assert (answer.done, answer.text) == (False, "not dead: SENT")
    assert await arguments_of(dead) == [[0], {}]


async def test_an_edit_that_does_not_fit_moves_nothing(shop: Shop) -> None:
    [dead] = await shop.kill(1)
    with pytest.raises(InvalidArguments, match="user_id"):
        await shop.app.dlq.edit(dead.id, {"currency": "USD"})
    with pytest.raises(ConfigurationError, match="all arguments by name"):
        await shop.app.dlq.edit(dead.id, [7])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert await dead.status() is Status.DEAD


async def test_an_edit_needs_the_code_unless_anyway(shop: Shop, make_app: MakeApp) -> None:
    [dead] = await shop.kill(1)
    stranger = make_app().sync.dlq
    with pytest.raises(UnknownTask):
        await asyncio.to_thread(stranger.edit, dead.id, {"user_id": 5})
    answer = await asyncio.to_thread(lambda: stranger.edit(dead.id, {"user_id": 5}, anyway=True))
    assert answer.done
    assert await arguments_of(dead) == [[], {"user_id": 5}]


async def test_arguments_of_every_kind_of_parameter_can_be_changed(app: App) -> None:
    seen = list[Any]()

    @app.task(name="shop:many", retries=0)
    async def many(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> None:
        seen.append((a, b, rest, c, more))
        if a < 10:
            raise CardRefused

    [dead] = await die(app, [many.job(1, 2, 3, 4, c=5, d=6)])

    def more(arguments: dict[str, Any]) -> dict[str, Any]:
        assert arguments == {"a": 1, "b": 2, "rest": [3, 4], "c": 5, "d": 6}
        return {**arguments, "a": 10, "rest": [7], "e": 8}

    assert (await app.dlq.replay(arguments=more)).replayed == 1
    async with running(app):
        await dead.get(timeout=30)
    assert seen[-1] == (10, 2, (7,), 5, {"d": 6, "e": 8})
