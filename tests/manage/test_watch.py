"""One watch for all readers: when it looks, what each of them gets, and how rates are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fennelq import App, ExecutorInfo, QueueInfo, clock
from fennelq.broker.talk import Talk
from fennelq.manage import watch as watching
from fennelq.manage.queues.info import damaged
from fennelq.manage.watch import LINGER, LONGEST, SHARE, SHORTEST, Look, Snapshot, Watch, rates_of
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)


def a_queue(seconds: float = 0, **ended: int) -> QueueInfo:
    """The queue `mail`, so many seconds after noon."""
    return QueueInfo(
        name="mail",
        waiting=0,
        running=0,
        scheduled=0,
        retry=0,
        dead=0,
        lanes={},
        ended=ended,
        at=NOON + timedelta(seconds=seconds),
    )


class Stage:
    """A watch whose looks end, and whose time passes, when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, linger: float = LINGER) -> None:
        self.now, self.looks = 1000.0, 0
        self.pauses: list[float] = []
        self._look: asyncio.Future[Look] | None = None
        self._pause: asyncio.Future[None] | None = None
        app = SimpleNamespace(namespace="shop", client=SimpleNamespace(converse=self._converse))
        self.watch = Watch(cast("App", app), linger=linger)
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(watching, "sleep", self._sleep)

    async def _converse(self, talk: Talk[Any]) -> Look:
        talk.close()
        self.looks += 1
        self._look = asyncio.get_running_loop().create_future()
        return await self._look

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._pause = asyncio.get_running_loop().create_future()
        await self._pause

    @property
    def looks_now(self) -> bool:
        return self._look is not None and not self._look.done()

    @property
    def pauses_now(self) -> bool:
        return self._pause is not None and not self._pause.done()

    async def end_look(self, *, took: float = 0.001, **ended: int) -> None:
        """The look that is under way has found these counters; returns when the watch pauses."""
        await aeventually(lambda: self.looks_now)
        assert self._look is not None
        self.now += took
        self._look.set_result(Look([a_queue(self.now, **ended)], [ExecutorInfo("anna", "works", {})]))
        await aeventually(lambda: self.pauses_now)

    async def fail_look(self) -> None:
        """The look that is under way fails; returns when the watch pauses."""
        await aeventually(lambda: self.looks_now)
        assert self._look is not None
        self._look.set_exception(ConnectionError("gone"))
        await aeventually(lambda: self.pauses_now)

    async def end_pause(self, *, after: float | None = None) -> None:
        """The pause is over; returns when the watch looks again or has ended."""
        assert self._pause is not None
        self.now += self.pauses[-1] if after is None else after
        self._pause.set_result(None)
        await aeventually(lambda: self.looks_now or not self.tasks())

    async def look(self, **ended: int) -> None:
        """A pause and a look."""
        await self.end_pause()
        await self.end_look(**ended)

    @staticmethod
    def tasks() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "watch"]


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    stage = Stage(monkeypatch)
    async with stage.watch:
        yield stage
    assert not stage.tasks()


async def first_snapshot(stage: Stage, **ended: int) -> Snapshot:
    asked = asyncio.create_task(stage.watch.snapshot())
    await stage.end_look(**ended)
    return await asked


@asynccontextmanager
async def followed(stage: Stage) -> AsyncGenerator[AsyncGenerator[Snapshot]]:
    following = stage.watch.follow()
    try:
        yield following
    finally:
        await following.aclose()


async def next_of(following: AsyncGenerator[Snapshot]) -> asyncio.Task[Snapshot]:
    """The next snapshot, for which a reader waits now."""

    async def get() -> Snapshot:
        return await anext(following)

    task = asyncio.create_task(get())
    await asyncio.sleep(0)
    return task


# When it looks


async def test_it_does_not_look_before_a_reader_asks(stage: Stage) -> None:
    assert (stage.looks, stage.tasks()) == (0, [])


async def test_readers_that_ask_at_once_share_one_look(stage: Stage) -> None:
    readers = [asyncio.create_task(stage.watch.snapshot()) for _ in range(200)]
    await stage.end_look()
    first, *others = await asyncio.gather(*readers)
    assert all(other is first for other in others)
    assert stage.looks == 1
    assert await stage.watch.snapshot() is first


async def test_a_look_is_followed_by_a_pause_of_a_second_or_fifty_times_as_long(stage: Stage) -> None:
    asked = asyncio.create_task(stage.watch.snapshot())
    await stage.end_look(took=0.004)
    assert (await asked).interval == stage.pauses[-1] == SHORTEST
    async with followed(stage) as following:
        assert await anext(following) is await stage.watch.snapshot()
        await stage.end_pause()
        await stage.end_look(took=0.3)
        assert stage.pauses[-1] == pytest.approx(SHARE * 0.3)
        assert (await anext(following)).interval == stage.pauses[-1]


async def test_after_a_look_that_waited_for_redis_the_pause_is_a_minute(stage: Stage) -> None:
    asked = asyncio.create_task(stage.watch.snapshot())
    await stage.end_look(took=4)
    assert (await asked).interval == stage.pauses[-1] == LONGEST


async def test_it_looks_for_a_while_after_the_last_reader_and_then_ends(stage: Stage) -> None:
    first = await first_snapshot(stage)
    await stage.look()
    second = await stage.watch.snapshot()
    assert second is not first
    asked_at = stage.now
    while stage.now + stage.pauses[-1] - asked_at < LINGER:
        await stage.look()
    looks = stage.looks
    await stage.end_pause()
    assert (stage.looks, stage.tasks()) == (looks, [])


async def test_a_watch_for_scrapes_looks_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, linger=SHORTEST)
    async with stage.watch:
        first = await first_snapshot(stage)
        assert await stage.watch.fresh() is first
        await stage.end_pause()
        assert (stage.looks, stage.tasks()) == (1, [])
        assert await first_snapshot(stage) is not first
        assert stage.looks == 2


async def test_a_reader_that_waits_keeps_it_looking_however_long_the_pause_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, linger=SHORTEST)
    async with stage.watch:
        failed = asyncio.create_task(stage.watch.fresh())
        await stage.fail_look()
        with pytest.raises(ConnectionError):
            await failed
        waits = asyncio.create_task(stage.watch.fresh())
        await asyncio.sleep(0)
        await stage.end_pause(after=60)
        await stage.end_look()
        assert (await waits).queues


async def test_a_reader_that_asks_after_the_end_gets_a_new_look_and_no_old_snapshot(stage: Stage) -> None:
    first = await first_snapshot(stage, succeeded=1)
    await stage.end_pause(after=LINGER)
    assert stage.tasks() == []
    stage.now += 3600
    again = await first_snapshot(stage, succeeded=9)
    assert again is not first
    assert again.rates == {}, "a rate over an hour would not be the rate now"


async def test_a_follower_keeps_it_looking_and_gets_each_snapshot(stage: Stage) -> None:
    async with followed(stage) as following:
        waits = await next_of(following)
        await stage.end_look(succeeded=0)
        seen = [await waits]
        for count in range(1, 30):
            waits = await next_of(following)
            await stage.look(succeeded=count)
            seen.append(await waits)
        assert [one.queues["mail"].ended["succeeded"] for one in seen] == [*range(30)]
        assert stage.now - 1000 > 2 * LINGER
    await stage.end_pause(after=LINGER)
    assert stage.tasks() == []


async def test_all_followers_get_the_same_snapshot(stage: Stage) -> None:
    async with followed(stage) as one, followed(stage) as other:
        for _ in range(3):
            waits = [await next_of(one), await next_of(other)]
            if stage.pauses_now:
                await stage.end_pause()
            await stage.end_look()
            first, second = await asyncio.gather(*waits)
            assert first is second
    assert stage.looks == 3


async def test_a_slow_follower_gets_the_latest_snapshot_and_misses_those_in_between(stage: Stage) -> None:
    async with followed(stage) as following:
        waits = await next_of(following)
        await stage.end_look(succeeded=1)
        await waits
        for count in (2, 3, 4):
            await stage.look(succeeded=count)
        assert (await anext(following)).queues["mail"].ended == {"succeeded": 4}


async def test_a_reader_that_is_cancelled_does_not_take_the_look_from_the_others(stage: Stage) -> None:
    leaving, staying = (asyncio.create_task(stage.watch.snapshot()) for _ in range(2))
    await aeventually(lambda: stage.looks_now)
    leaving.cancel()
    await asyncio.wait([leaving])
    await stage.end_look()
    assert (await staying).queues["mail"].name == "mail"


async def test_leaving_the_watch_ends_the_looking_and_cancels_readers(stage: Stage) -> None:
    reader = asyncio.create_task(stage.watch.snapshot())
    await aeventually(lambda: stage.looks_now)
    await stage.watch.__aexit__()
    await asyncio.wait([reader])
    assert reader.cancelled()
    assert stage.tasks() == []


# Looks that fail


async def test_the_error_of_a_look_reaches_every_reader_that_waits(stage: Stage) -> None:
    readers = [asyncio.create_task(stage.watch.snapshot()) for _ in range(2)]
    await stage.fail_look()
    errors = await asyncio.gather(*readers, return_exceptions=True)
    assert [str(error) for error in errors] == ["gone", "gone"]
    assert stage.pauses == [SHORTEST]


async def test_after_an_error_the_next_look_is_awaited_and_no_old_snapshot_is_shown(stage: Stage) -> None:
    first = await first_snapshot(stage)
    await stage.end_pause()
    await stage.fail_look()
    reader = asyncio.create_task(stage.watch.snapshot())
    await asyncio.sleep(0)
    assert not reader.done()
    await stage.look()
    assert await reader is not first


async def test_a_follower_gets_the_error_and_can_follow_again(stage: Stage) -> None:
    async with followed(stage) as following:
        waits = await next_of(following)
        await stage.fail_look()
        with pytest.raises(ConnectionError):
            await waits
    async with followed(stage) as following:
        waits = await next_of(following)
        await stage.look()
        assert (await waits).queues


# Rates


async def test_rates_are_differences_of_two_snapshots(stage: Stage) -> None:
    first = await first_snapshot(stage, succeeded=100)
    assert first.rates == {}
    stage.now += 1
    await stage.look(succeeded=150, died=4)
    rates = (await stage.watch.snapshot()).rates["mail"]
    seconds = stage.now - 1000 - 0.001
    assert rates == {"succeeded": pytest.approx(50 / seconds), "died": pytest.approx(4 / seconds)}


def test_a_rate_is_per_second_by_the_clock_of_the_server() -> None:
    assert rates_of(a_queue(0, succeeded=7), a_queue(4, succeeded=9, died=2)) == {
        "succeeded": 0.5,
        "died": 0.5,
    }


def test_a_counter_that_has_fallen_has_begun_anew() -> None:
    assert rates_of(a_queue(0, succeeded=1000), a_queue(2, succeeded=6)) == {"succeeded": 3.0}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (a_queue(0), a_queue(0, succeeded=1)),
        (a_queue(5), a_queue(0, succeeded=1)),
        (damaged("mail", "spoilt"), a_queue(1, succeeded=1)),
        (a_queue(0, succeeded=1), damaged("mail", "spoilt")),
    ],
)
def test_without_two_moments_in_order_there_is_no_rate(before: QueueInfo, after: QueueInfo) -> None:
    assert rates_of(before, after) is None


# On a server


async def test_a_snapshot_has_what_the_lists_of_queues_and_executors_have(redis_url: str) -> None:
    app = LocalApp("shop", redis_url=redis_url)

    @app.task(name="shop:welcome", queue="mail")
    async def welcome(n: int) -> int:
        return n

    async with app, Watch(app) as watch:
        await welcome.delay(1)
        snapshot = await watch.snapshot()
        assert [*snapshot.queues.values()] == await app.queues.list()
        assert [*snapshot.executors.values()] == await app.executors.list()
    assert snapshot.queues["mail"].waiting == 1
    assert snapshot.at == max(info.at for info in snapshot.queues.values() if info.at)
    assert snapshot.seconds > 0


# A reader that must not get an old snapshot


async def test_while_a_look_takes_too_long_a_fresh_snapshot_is_the_next_one(stage: Stage) -> None:
    first = await first_snapshot(stage, succeeded=1)
    assert await stage.watch.fresh() is first
    await stage.end_pause(after=SHORTEST)
    assert await stage.watch.fresh() is first, "the look may take a moment"
    stage.now += watching.LATE + 0.01
    assert await stage.watch.snapshot() is first
    asked = asyncio.create_task(stage.watch.fresh())
    await asyncio.sleep(0)
    assert not asked.done()
    await stage.end_look(succeeded=2)
    assert (await asked).queues["mail"].ended == {"succeeded": 2}


async def test_a_look_that_is_always_slow_does_not_make_snapshots_old(stage: Stage) -> None:
    asked = asyncio.create_task(stage.watch.snapshot())
    await stage.end_look(took=1.0)
    snapshot = await asked
    stage.now += snapshot.interval + 2.9
    assert not snapshot.overdue
    stage.now += 0.2
    assert snapshot.overdue
