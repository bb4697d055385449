"""Replays as operations: a canary first, or with other arguments. They outlive the process that performs them too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import to_thread

from fennelq import App, ConfigurationError, OperationInfo
from fennelq.broker.keys import AppKeys
from fennelq.manage import acting, operations
from fennelq.manage.dead.new_arguments import Written
from fennelq.manage.dead.search import put_back
from fennelq.model.job import JobInfo
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

pytestmark = pytest.mark.audit(unfinished=True)

JOBS = 7


class Bank:
    """Dead jobs in two queues, of one task each, whose numbers are their arguments."""

    def __init__(self, app: App, server: Server) -> None:
        self.app, self.server = app, server
        self.fails: Callable[[int], None] = no_money
        self.started = list[int]()

        @app.task(name="bank:charge", queue="billing", retries=0)
        async def charge(number: int) -> None:
            self.started.append(number)
            self.fails(number)

        @app.task(name="bank:refund", queue="refunds", retries=0)
        async def refund(number: int) -> None:
            self.fails(number)

        self.charge, self.refund = charge, refund

    async def die(self, number: int = JOBS, task: Any = None) -> list[str]:
        """So many jobs die; returns them as an operation finds them: the newest death first."""
        before = await self.app.dlq.count()
        jobs = await self.app.enqueue([(task or self.charge).job(n) for n in range(number)])
        async with running(self.app):
            await aeventually(lambda: self.are_dead(before + number))
        self.started.clear()
        known = {job.id for job in jobs}
        return [one.id for one in await self.app.dlq.list(order="newest") if one.id in known]

    async def numbers(self, jobs: list[str]) -> list[int]:
        return sorted(json.loads(info.arguments)[0][0] for info in await self.infos(jobs))

    async def are_dead(self, number: int) -> bool:
        return await self.app.dlq.count() == number

    async def begun(self, where: str = "state:dead", **given: Any) -> OperationInfo:
        plan = await self.app.operations.plan("replay", where)
        return await self.app.operations.begin(plan, **given)

    async def done(self, where: str = "state:dead", **given: Any) -> OperationInfo:
        return await self.app.operations.resume((await self.begun(where, **given)).id)

    async def infos(self, jobs: list[str]) -> list[JobInfo]:
        found = [await self.app.result(job).info() for job in jobs]
        return [info for info in found if info is not None]

    def silence(self, operation: str) -> None:
        """As if its performer had reported long ago."""
        with self.server.client() as client:
            client.hset(AppKeys("shop").operation(operation), "beat", "1")


def no_money(number: int) -> None:
    raise RuntimeError("no money")


def fine(number: int) -> None: ...


@pytest.fixture
def bank(app: App, server: Server, monkeypatch: pytest.MonkeyPatch) -> Bank:
    """A bank whose operations take many steps."""
    monkeypatch.setattr(acting, "MOST_JOBS", 3)
    return Bank(app, server)


async def test_when_the_canary_dies_as_before_the_others_stay_dead(bank: Bank) -> None:
    jobs = await bank.die()
    async with running(bank.app):
        ended = await bank.done(canary=2)
    assert (ended.state, ended.done, ended.canary) == ("failed", 2, 2)
    assert "2 of 2 canary jobs died as before" in ended.problem
    assert sorted(bank.started) == await bank.numbers(jobs[:2])
    assert [info.replays for info in await bank.infos(jobs)] == [1, 1, 0, 0, 0, 0, 0]
    assert await bank.app.dlq.count() == JOBS


async def test_after_a_good_canary_the_others_follow(bank: Bank) -> None:
    jobs = await bank.die()
    bank.fails = fine
    async with running(bank.app):
        ended = await bank.done(canary=2)
        for job in jobs:
            await bank.app.result(job).get(30)
    assert (ended.state, ended.done, ended.problem) == ("done", JOBS, "")
    assert sorted(bank.started) == [*range(JOBS)]


async def test_a_canary_larger_than_the_operation_is_all_of_it(bank: Bank) -> None:
    await bank.die(2)
    bank.fails = fine
    async with running(bank.app):
        ended = await bank.done(canary=5)
    assert (ended.state, ended.done) == ("done", 2)


async def test_a_canary_that_dies_of_something_else_does_not_stop_the_others(bank: Bank) -> None:
    jobs = await bank.die()
    canary = await bank.numbers(jobs[:2])

    def differently(number: int) -> None:
        if number in canary:
            raise LookupError("no such account")

    bank.fails = differently
    async with running(bank.app):
        ended = await bank.done(canary=2)
    assert (ended.state, ended.done) == ("done", JOBS)


async def test_a_canary_that_dies_like_another_job_of_the_operation_stops_the_others(bank: Bank) -> None:
    """The filter selects deaths of two kinds; the canary has died of the second, and dies now of the first."""

    def differently(number: int) -> None:
        raise LookupError("no such account")

    bank.fails = differently
    await bank.die(2)
    bank.fails = no_money
    await bank.die(3)
    bank.fails = differently
    async with running(bank.app):
        ended = await bank.done(canary=2)
    assert (ended.state, ended.done) == ("failed", 2)
    assert "2 of 2 canary jobs died as before" in ended.problem


async def test_a_canary_that_does_not_end_in_time_stops_the_others_and_others_are_chosen_then(
    bank: Bank,
) -> None:
    jobs = await bank.die()
    ended = await bank.done(canary=2, canary_timeout=0.05)  # no worker
    assert (ended.state, ended.done) == ("failed", 2)
    assert "2 of 2 canary jobs have not ended within 0.05 s" in ended.problem
    assert await bank.app.dlq.count() == JOBS - 2
    again = await bank.app.operations.resume(ended.id)
    assert (again.state, again.done) == ("failed", 4)
    assert [info.replays for info in await bank.infos(jobs)] == [1, 1, 1, 1, 0, 0, 0]


class Killed(Exception):
    """The performer is gone."""


@pytest.mark.parametrize("ends", ["well", "badly"])
@pytest.mark.parametrize("step", range(1, 7))
async def test_a_canary_whose_performer_was_killed_goes_on_in_another(
    bank: Bank, step: int, ends: str
) -> None:
    jobs = await bank.die()
    begun, seen = await bank.begun(canary=4), list[int]()

    def killed(done: int) -> None:
        seen.append(done)
        if len(seen) == step:
            raise Killed

    with pytest.raises(Killed):
        await to_thread.run_sync(lambda: bank.app.sync.operations.resume(begun.id, killed))
    bank.silence(begun.id)
    bank.fails = fine if ends == "well" else no_money
    async with running(bank.app):
        ended = await bank.app.operations.resume(begun.id)
        replays = [info.replays for info in await bank.infos(jobs)]
    if ends == "well":
        assert (ended.state, ended.done) == ("done", JOBS)
        assert sorted(bank.started) == [*range(JOBS)]
        assert replays == [1] * JOBS
    else:
        assert (ended.state, ended.done) == ("failed", 4)
        assert sorted(bank.started) == await bank.numbers(jobs[:4])
        assert replays == [1, 1, 1, 1, 0, 0, 0]


async def test_a_performer_that_is_killed_between_its_choice_and_the_report_chooses_no_others(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs go back, and the performer is killed before it can report that."""
    jobs = await bank.die()
    begun = await bank.begun(canary=2)
    calls = list[str]()

    def killed(keys: Any, entries: Any, changes: Any) -> Any:
        answers = yield from put_back(keys, entries, changes)
        calls.extend(entries)
        if len(calls) == 2:
            raise Killed
        return answers

    monkeypatch.setattr(acting, "put_back", killed)
    with pytest.raises(Killed):
        await bank.app.operations.resume(begun.id)
    assert await bank.app.dlq.count() == JOBS - 2
    bank.silence(begun.id)
    async with running(bank.app):
        ended = await bank.app.operations.resume(begun.id)
    assert ended.state == "failed"
    assert "2 of 2 canary jobs died as before" in ended.problem
    assert [info.replays for info in await bank.infos(jobs)] == [1, 1, 0, 0, 0, 0, 0]


async def test_an_operation_that_waits_for_its_canary_reports_and_can_be_stopped(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BEAT", 0.0)
    await bank.die()
    begun = await bank.begun(canary=1)
    async with resuming(bank, begun.id) as ended:
        await aeventually(lambda: bank.are_dead(JOBS - 1))
        before = await bank.app.operations.get(begun.id)
        assert before is not None
        await aeventually(lambda: has_reported(bank, before))
        await bank.app.operations.stop(begun.id)
        assert (await ended).state == "stopped"
    bank.fails = fine
    async with running(bank.app):
        assert (await bank.app.operations.resume(begun.id)).done == JOBS


@asynccontextmanager
async def resuming(bank: Bank, operation: str) -> AsyncGenerator[asyncio.Task[OperationInfo]]:
    task = asyncio.ensure_future(bank.app.operations.resume(operation))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def has_reported(bank: Bank, before: OperationInfo) -> bool:
    now = await bank.app.operations.get(before.id)
    return now is not None and now.beat is not None and before.beat is not None and now.beat > before.beat


async def test_two_canaries_at_once_put_each_job_back_once(bank: Bank) -> None:
    jobs = await bank.die()
    bank.fails = fine
    one, other = [await bank.begun(canary=2) for _ in range(2)]
    async with running(bank.app):
        ends = await asyncio.gather(*(bank.app.operations.resume(op.id) for op in (one, other)))
        for job in jobs:
            await bank.app.result(job).get(30)
    assert [end.state for end in ends] == ["done", "done"]
    assert sorted(bank.started) == [*range(JOBS)]


# With other arguments


async def test_a_replay_changes_arguments_and_shows_only_their_names(bank: Bank) -> None:
    jobs = await bank.die()
    ended = await bank.done(arguments={"number": Written("4711")}, who="ada@web-1")
    assert (ended.state, ended.done, ended.arguments) == ("done", JOBS, ("number",))
    assert "4711" not in repr(ended)
    infos = await bank.infos(jobs)
    assert [json.loads(info.arguments)[0] for info in infos] == [[4711]] * JOBS
    for job in jobs:
        assert "by ada@web-1, with new arguments" in repr(await bank.app.result(job).history())
    async with running(bank.app):
        await aeventually(lambda: bank.are_dead(JOBS))
    assert bank.started == [4711] * JOBS


async def test_new_arguments_need_the_code_unless_they_may_change_anyway(bank: Bank, server: Server) -> None:
    jobs = await bank.die(2)
    begun = await bank.begun(arguments={"number": 40})
    numbered = await bank.begun(arguments={"0": 41}, anyway=True)
    assert (begun.needs_code, numbered.needs_code) == (True, False)
    async with App("shop", redis_url=server.url) as codeless:
        ended = await codeless.operations.resume(begun.id)
        assert (ended.state, ended.done) == ("failed", 0)
        assert "No job was replayed" in ended.problem
        assert (await codeless.operations.resume(numbered.id)).done == 2
    assert [json.loads(info.arguments)[0] for info in await bank.infos(jobs)] == [[41], [41]]


async def test_numbered_arguments_are_those_in_that_place(bank: Bank) -> None:
    """A process without the code has begun the operation, and one with the code goes on."""
    jobs = await bank.die(2)
    ended = await bank.done(arguments={"0": 41}, anyway=True)
    assert (ended.state, ended.done) == ("done", 2)
    assert [json.loads(info.arguments) for info in await bank.infos(jobs)] == [[[41], {}]] * 2


async def test_arguments_that_do_not_fit_one_job_leave_all_dead(bank: Bank) -> None:
    await bank.die(4, bank.refund)
    await bank.die(4)
    ended = await bank.done(arguments={"nomber": 3})
    assert (ended.state, ended.done) == ("failed", 0)
    assert "nomber" in ended.problem
    assert "No job was replayed" in ended.problem
    assert await bank.app.dlq.count() == 8
    ended = await bank.done(arguments={"number": "many"}, canary=2)
    assert (ended.state, ended.done) == ("failed", 0)
    assert await bank.app.dlq.count() == 8


@pytest.mark.parametrize("step", range(1, 7))
async def test_new_arguments_outlive_the_performer(bank: Bank, step: int) -> None:
    jobs = await bank.die()
    begun, seen = await bank.begun(arguments={"number": 40}), list[int]()

    def killed(done: int) -> None:
        seen.append(done)
        if len(seen) == step:
            raise Killed

    try:
        await to_thread.run_sync(lambda: bank.app.sync.operations.resume(begun.id, killed))
    except Killed:
        bank.silence(begun.id)
    ended = await bank.app.operations.resume(begun.id)
    assert (ended.state, ended.done) == ("done", JOBS)
    infos = await bank.infos(jobs)
    assert [(json.loads(info.arguments)[0], info.replays) for info in infos] == [([40], 1)] * JOBS


async def test_a_record_with_damaged_arguments_replays_nothing(bank: Bank) -> None:
    await bank.die(2)
    begun = await bank.begun(arguments={"number": 40})
    with bank.server.client() as client:
        client.hset(AppKeys("shop").operation(begun.id), "arguments", "{nothing")
    with pytest.raises(Exception, match="no readable arguments"):
        await bank.app.operations.resume(begun.id)
    known = await bank.app.operations.get(begun.id)
    assert known is not None
    assert known.arguments == ("?",)
    assert await bank.app.dlq.count() == 2


async def test_only_a_replay_has_a_canary_and_arguments(bank: Bank) -> None:
    plan = await bank.app.operations.plan("purge", "state:dead")
    with pytest.raises(ConfigurationError, match="only a replay"):
        await bank.app.operations.begin(plan, canary=1)
    with pytest.raises(ConfigurationError, match="only a replay"):
        await bank.app.operations.begin(plan, arguments={"number": 1})
    plan = await bank.app.operations.plan("replay", "state:dead")
    with pytest.raises(ConfigurationError, match="canary"):
        await bank.app.operations.begin(plan, canary=0)
    with pytest.raises(ConfigurationError, match="not JSON"):
        await bank.app.operations.begin(plan, arguments={"number": object()})
