"""What is read of many queues or schedules: a page waits for a few, others follow in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fennelq import App, BrokerUnavailable
from fennelq.broker.trouble import ReplyError
from fennelq.web import rounds
from fennelq.web.rounds import Rounds
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, Shop

pytestmark = pytest.mark.audit(unfinished=True)

STEP = 3


class Reader:
    """Reads names, and remembers which."""

    def __init__(self) -> None:
        self.steps = list[list[str]]()
        self.error: Exception | None = None
        self.rounds = Rounds(STEP, self.find)

    async def find(self, names: Sequence[str]) -> list[str]:
        self.steps.append([*names])
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return [name.upper() for name in names]

    def wanted(self, number: int, version: int = 0) -> dict[str, int]:
        return {f"n{place}": version for place in range(number)}


async def test_a_page_waits_for_a_few_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SHORTEST", 0.0)
    reader = Reader()
    assert await reader.rounds.read(reader.wanted(8)) == 5
    assert reader.steps == [["n0", "n1", "n2"]]
    await aeventually(lambda: len(reader.rounds.values) == 8)
    assert reader.steps == [["n0", "n1", "n2"], ["n3", "n4", "n5"], ["n6", "n7"]]
    assert await reader.rounds.read(reader.wanted(8)) == 0
    assert len(reader.steps) == 3  # nothing has changed


async def test_a_page_does_not_wait_for_the_end_of_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step of 40 ms, the pause is longer than a page may take."""
    monkeypatch.setattr(rounds, "SHORTEST", 60.0)
    monkeypatch.setattr(rounds, "PATIENCE", 0.01)
    reader = Reader()
    assert await reader.rounds.read(reader.wanted(8)) == 5
    async with asyncio.timeout(5):
        assert await reader.rounds.read(reader.wanted(8)) == 5
    await reader.rounds.close()


async def test_what_has_changed_is_read_again_after_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SHORTEST", 0.0)
    reader = Reader()
    await reader.rounds.read(reader.wanted(2))
    reader.steps.clear()
    assert await reader.rounds.read({**reader.wanted(5), "n1": 1}) == 0
    assert reader.steps[0] == ["n2", "n3", "n4"]
    await aeventually(lambda: reader.steps[1:] == [["n1"]])


async def test_while_many_are_read_again_a_page_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SHORTEST", 0.0)
    reader = Reader()
    await reader.rounds.read(reader.wanted(8))
    await aeventually(lambda: len(reader.rounds.values) == 8)
    monkeypatch.setattr(rounds, "SHORTEST", 60.0)
    reader.steps.clear()
    await reader.rounds.read(reader.wanted(8, version=1))
    await aeventually(lambda: len(reader.steps) == 1)
    async with asyncio.timeout(5):
        await reader.rounds.read(reader.wanted(8, version=2))
    assert len(reader.steps) == 1
    await reader.rounds.close()


async def test_a_name_that_is_gone_is_forgotten() -> None:
    reader = Reader()
    await reader.rounds.read(reader.wanted(3))
    await reader.rounds.read(reader.wanted(1))
    assert reader.rounds.values == {"n0": "N0"}


@pytest.mark.parametrize(
    "error", [ReplyError("ERR odd"), BrokerUnavailable("is away", url="redis://", cure="")]
)
async def test_an_error_reaches_the_readers_and_the_next_page_asks_again(error: Exception) -> None:
    reader = Reader()
    reader.error = error
    both = await asyncio.gather(
        *(reader.rounds.read(reader.wanted(2)) for _ in range(2)), return_exceptions=True
    )
    assert both == [error, error]
    assert len(reader.steps) == 1
    reader.error = None
    assert await reader.rounds.read(reader.wanted(2)) == 0


async def test_a_bug_in_a_reading_does_not_leave_readers_waiting() -> None:
    reader = Reader()
    reader.error = ZeroDivisionError()
    async with asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError):
            await reader.rounds.read(reader.wanted(2))


async def test_a_page_shows_how_much_it_has_not_read_yet(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SHORTEST", 60.0)
    for number in range(5):
        await shop.app.schedules.add(shop.welcome.job(1), name=f"s{number}", cron="0 9 * * *")
    async with Browser(shop.app) as pages:
        page = await pages.text("/schedules")
        assert "3 schedules: not read yet, because this process has just begun to look" in page.lower()
        assert "s0" in page
        assert "s4" not in page


async def test_a_group_of_many_queues_is_shown_queue_by_queue(shop: Shop, app: App) -> None:
    group = await shop.group()
    for queue in ("north", "south"):
        job = await shop.charge.options(queue=queue).delay(7)
        await shop.die_in(queue)
        assert await app.dlq.count(queue=queue) == 1
        async with Browser(app) as pages:
            page = await pages.text(f"/dead/{group}")
            assert f"1 of 1 in {queue}" in page  # the newest death
            assert job.id in page
            other = await pages.text(f"/dead/{group}?queue=billing")
            assert "3 of 3 in billing" in other
            assert all(one in other for one in shop.dead)
