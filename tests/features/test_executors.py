"""What executors report of themselves, and what they can be asked: their stacks, and to drain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from fennelq import (
    App,
    BrokerUnavailable,
    ConfigurationError,
    ExecutorInfo,
    ExecutorStacks,
    ExecutorUnavailable,
    Status,
    UnknownExecutor,
    current_job,
)
from fennelq.broker.keys import AppKeys, executors_key
from fennelq.manage.documents import of_stacks
from fennelq.manage.executors import asking
from tests.features.conftest import MakeApp, user_who_may_not
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running, running_aside
from tests.worker.states import is_heard

PATIENT = 30.0


class Holding:
    """A job that holds the thread in which it runs, until it is released."""

    def __init__(self) -> None:
        self.holds, self.release = threading.Event(), threading.Event()

    async def hold_the_loop(self) -> str:
        self.hold()
        return current_job().id

    def hold(self) -> None:
        self.holds.set()
        assert self.release.wait(60)


@pytest.fixture
def holding() -> Iterator[Holding]:
    holding = Holding()
    yield holding
    holding.release.set()


def with_task(make_app: MakeApp, function: Callable[..., Any], **settings: Any) -> tuple[App, Any]:
    app = make_app(**settings)
    return app, app.task(name="shop:hold")(function)


async def state_is(app: App, name: str, state: str) -> ExecutorInfo | None:
    found = [one for one in await app.executors.list() if one.name == name and one.state == state]
    return found[0] if found else None


# Facts


async def test_an_executor_reports_how_it_is(app: App) -> None:
    async with running(app, concurrency=3) as executor:
        found = await aeventually(lambda: state_is(app, executor.name, "works"))
        assert (found.alive, found.running, found.slots, found.stuck, found.unsettled) == (True, 0, 3, 0, 0)
        assert found.rss is not None
        assert found.rss > 10_000_000
        assert found.lag is not None
        assert found.lag >= 0
        assert found.host
        assert found.pid
        assert found.version
        assert found.uptime is not None
        assert found.seen_at is not None
        assert (found.blocked, found.longest) == (None, None)
        assert list(found.queues) == ["default"]


async def test_a_blocked_loop_is_reported_with_the_line_and_the_job(
    make_app: MakeApp, holding: Holding
) -> None:
    """By a thread, which also keeps the executor from looking silent."""
    aside, task = with_task(make_app, holding.hold_the_loop)
    app = make_app()
    with running_aside(aside) as executor:
        job = await app.enqueue([task.job()])
        await aeventually(holding.holds.is_set, within=PATIENT)
        found = await aeventually(lambda: state_is(app, executor.name, "blocked"), within=PATIENT)
        assert found.blocked is not None
        assert f"{__file__}:" in found.blocked.at
        assert found.blocked.at.endswith(" in hold"), "not the line of `Event.wait` that it calls"
        assert found.blocked.job == f"shop:hold ({job[0].id})"
        assert found.blocked.ago is None
        holding.release.set()
        after = await aeventually(lambda: state_is(app, executor.name, "works"), within=PATIENT)
        assert after.blocked is not None
        assert after.blocked.ago is not None
        assert after.blocked.seconds >= found.blocked.seconds


async def test_the_job_that_runs_for_longest_is_reported(make_app: MakeApp) -> None:
    app, over = make_app(), asyncio.Event()

    @app.task(name="shop:wait")
    async def wait() -> None:
        await over.wait()

    async with running(app) as executor:
        first = await wait.delay()
        await aeventually(lambda: executor.slots.taken == 1)
        await wait.delay()

        async def longest() -> Any:
            return (await app.executors.info(executor.name)).longest

        found = await aeventually(longest, within=PATIENT)
        over.set()
    assert (found.job, found.task) == (first.id, "shop:wait")
    assert found.seconds >= 1.0


async def test_facts_that_are_nonsense_are_read_as_far_as_possible(app: App, server: Server) -> None:
    nonsense = {
        "host": 7,
        "pid": "x",
        "rss": "\x1b[2J",
        "lag": [],
        "blocked": {"seconds": "long"},
        "longest": [1],
        "queues": {"a": 1},
        "running": True,
        "uptime": None,
        "state": ["draining"],
        "beat_ms": 1e300,
    }
    with server.client() as client:
        client.hset(executors_key("shop"), mapping={"a": orjson.dumps(nonsense), "b": b"\xff"})
    for found in await app.executors.list():
        assert (found.host, found.pid, found.rss, found.lag) == (None, None, None, None)
        assert (found.blocked, found.longest, found.running, found.uptime) == (None, None, None, None)
        assert (list(found.queues), found.seen_at) == ([], None)


# Names


@pytest.fixture
async def crew(app: App, server: Server) -> App:
    """Executors that have reported a moment ago, of an earlier version of fennelq."""
    await reported(app, server, "web-1.7.aa", "web-1.8.bb", "web-2.9.cc")
    return app


async def reported(app: App, server: Server, *names: str, **facts: object) -> None:
    with server.client() as client:
        seconds, micros = client.time()
        known = {"beat_ms": seconds * 1000 + micros // 1000, "version": "0.0.9", "interval": 60, **facts}
        client.hset(executors_key("shop"), mapping=dict.fromkeys(names, orjson.dumps(known)))


async def test_an_executor_is_found_by_the_beginning_of_its_name(crew: App) -> None:
    assert (await crew.executors.info("web-1.7.aa")).name == "web-1.7.aa"
    assert (await crew.executors.info("web-2")).name == "web-2.9.cc"
    assert (await asyncio.to_thread(crew.sync.executors.info, "web-1.8")).name == "web-1.8.bb"


async def test_a_beginning_that_several_have_is_refused_with_their_names(crew: App) -> None:
    with pytest.raises(UnknownExecutor, match=r"2 executors .* 'web-1': web-1\.7\.aa, web-1\.8\.bb") as error:
        await crew.executors.drain("web-1")
    assert error.value.matching == ["web-1.7.aa", "web-1.8.bb"]


@pytest.mark.parametrize("name", ["web-3.7.aa", ""])
async def test_an_unknown_executor_is_refused(crew: App, name: str) -> None:
    with pytest.raises(UnknownExecutor, match="no executor") as error:
        await crew.executors.stacks(name)
    assert error.value.matching == []


async def test_the_nearest_name_is_suggested(crew: App) -> None:
    with pytest.raises(UnknownExecutor, match=r"did you mean 'web-2\.9\.cc'"):
        await crew.executors.info("web-2.9.cd")


async def test_an_executor_that_has_ended_is_found_if_no_living_one_has_the_name(
    crew: App, server: Server
) -> None:
    await reported(crew, server, "web-2.5.dd", died="SIGKILL")
    assert (await crew.executors.info("web-2")).name == "web-2.9.cc"
    assert (await crew.executors.info("web-2.5")).state == "ended: SIGKILL"


# Stacks


def of_job(stacks: ExecutorStacks, kind: str, job: str) -> list[str]:
    """The frames of the stacks of this kind that serve this job."""
    return [frame for one in stacks.stacks if (one.kind, one.job) == (kind, job) for frame in one.frames]


async def test_the_stacks_of_a_blocked_executor_show_where_it_hangs(
    make_app: MakeApp, holding: Holding
) -> None:
    aside, task = with_task(make_app, holding.hold_the_loop)
    app = make_app()
    with running_aside(aside) as executor:
        (job,) = await app.enqueue([task.job()])
        await aeventually(holding.holds.is_set, within=PATIENT)
        stacks = await app.executors.stacks(executor.name)
        assert stacks.executor == executor.name
        assert stacks.blocked is None or stacks.blocked.at.endswith(" in hold")
        frames = of_job(stacks, "loop", f"shop:hold ({job.id})")
        assert any(frame.startswith(__file__) and frame.endswith(" in hold") for frame in frames)
        assert stacks.left_out == 0
        holding.release.set()


async def test_the_stacks_name_the_job_of_each_thread_and_each_task(
    make_app: MakeApp, holding: Holding
) -> None:
    app, over = make_app(), asyncio.Event()

    @app.task(name="shop:wait")
    async def wait() -> None:
        await over.wait()

    in_thread = app.task(name="shop:hold")(holding.hold)
    async with running(app) as executor:
        waits, holds = await app.enqueue([wait.job(), in_thread.job()])
        await aeventually(holding.holds.is_set)
        stacks = await app.executors.stacks(executor.name)
        over.set()
        holding.release.set()
    assert any(frame.endswith(" in wait") for frame in of_job(stacks, "task", f"shop:wait ({waits.id})"))
    assert any(frame.endswith(" in hold") for frame in of_job(stacks, "thread", f"shop:hold ({holds.id})"))
    names = {one.name for one in stacks.stacks}
    assert {"consumer", "presence", "fennelq-heartbeat"} <= names
    assert [one.kind for one in stacks.stacks].count("loop") == 1


async def test_the_stacks_are_bounded(make_app: MakeApp) -> None:
    app, over = make_app(), asyncio.Event()

    async def deep(n: int) -> None:
        await (deep(n - 1) if n else over.wait())

    app.task(name="shop:deep")(deep)
    async with running(app, concurrency=500) as executor:
        await app.enqueue([app.tasks["shop:deep"].job(100) for _ in range(500)])
        await aeventually(lambda: executor.slots.taken == 500, within=PATIENT)
        stacks = await app.executors.stacks(executor.name)
        over.set()
    assert stacks.left_out > 0
    assert len(stacks.stacks) <= 400
    assert max(len(one.frames) for one in stacks.stacks) <= 51
    assert len(orjson.dumps(of_stacks(stacks))) < 500_000


# Drain


async def test_an_executor_that_drains_takes_no_more_jobs_and_finishes_those_that_run(
    make_app: MakeApp,
) -> None:
    app, over = make_app(), asyncio.Event()

    @app.task(name="shop:wait")
    async def wait() -> None:
        await over.wait()

    async with running(app, concurrency=2) as executor:
        results = await app.enqueue([wait.job() for _ in range(2)])
        await aeventually(lambda: executor.slots.taken == 2)
        assert await app.executors.drain(executor.name, grace=60) == 2
        found = await aeventually(lambda: state_is(app, executor.name, "draining"))
        assert found.alive
        assert found.running == 2
        late = await wait.delay()
        assert await app.executors.drain(executor.name) == 2, "a second one changes nothing"
        over.set()
        for result in results:
            await result.get(timeout=PATIENT)
        await aeventually(lambda: is_gone(app, executor.name))
        assert await late.status() is Status.SENT
        assert (executor.drained, executor.recycled) == (True, False)
    async with running(app):
        await late.get(timeout=PATIENT)


async def is_gone(app: App, name: str) -> bool:
    return name not in [one.name for one in await app.executors.list()]


async def test_without_grace_running_jobs_are_handed_back(make_app: MakeApp) -> None:
    app, over = make_app(), asyncio.Event()

    @app.task(name="shop:wait")
    async def wait() -> None:
        await over.wait()

    async with running(app, grace=3600) as executor:
        result = await wait.delay()
        await aeventually(lambda: executor.slots.taken == 1)
        assert await app.executors.drain(executor.name, replace=True, grace=0) == 1
        await aeventually(lambda: is_gone(app, executor.name), within=PATIENT)
        assert (executor.drained, executor.recycled) == (False, True)
        info = await result.info()
        assert info is not None
        assert (info.status, info.tries) == (Status.SENT, 0)
    over.set()
    async with running(app):
        await result.get(timeout=PATIENT)


async def test_a_blocked_executor_drains_when_its_loop_works_again(
    make_app: MakeApp, holding: Holding
) -> None:
    aside, task = with_task(make_app, holding.hold_the_loop)
    app = make_app()
    with running_aside(aside) as executor:
        (result,) = await app.enqueue([task.job()])
        await aeventually(holding.holds.is_set, within=PATIENT)
        assert await asyncio.to_thread(app.sync.executors.drain, executor.name) == 1
        holding.release.set()
        assert await app.result(result.id).get(timeout=PATIENT) == result.id
        await aeventually(lambda: is_gone(app, executor.name), within=PATIENT)


@pytest.mark.parametrize("grace", [-1, float("inf"), float("nan")])
async def test_a_grace_that_is_no_time_is_refused(crew: App, grace: float) -> None:
    with pytest.raises(ConfigurationError, match="grace is"):
        await crew.executors.drain("web-2", grace=grace)


# No answer


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer, give up soon."""
    monkeypatch.setattr(asking, "WITHIN", 0.3)


@pytest.mark.usefixtures("hasty")
async def test_an_executor_of_an_earlier_version_does_not_listen(crew: App) -> None:
    with pytest.raises(
        ExecutorUnavailable, match=r"web-2\.9\.cc has an earlier version .* \(0\.0\.9\)"
    ) as error:
        await crew.executors.stacks("web-2")
    assert error.value.executor == "web-2.9.cc"


@pytest.mark.usefixtures("hasty")
async def test_an_executor_that_is_silent_is_described(app: App, server: Server) -> None:
    await reported(app, server, "web-1", beat_ms=1)
    with pytest.raises(ExecutorUnavailable, match="has not reported for a while"):
        await app.executors.drain("web-1")


@pytest.mark.usefixtures("hasty")
async def test_an_executor_whose_channel_no_connection_hears_is_described(app: App, server: Server) -> None:
    await reported(app, server, "web-1", rss=1)
    with pytest.raises(ExecutorUnavailable, match="does not listen"):
        await app.executors.drain("web-1")


async def test_an_executor_that_has_ended_is_not_asked(crew: App, server: Server) -> None:
    await reported(crew, server, "web-1", died="SIGKILL")
    with pytest.raises(ExecutorUnavailable, match="executor web-1 has ended: SIGKILL"):
        await crew.executors.stacks("web-1")


@pytest.mark.usefixtures("hasty")
async def test_an_executor_that_hears_and_does_not_answer_is_described(app: App, server: Server) -> None:
    await reported(app, server, "web-1", rss=1, pid=812, host="web")
    with server.client() as client, client.pubsub() as channel:
        channel.execute_command("SSUBSCRIBE", AppKeys("shop").questions("web-1"))
        await aeventually(lambda: is_heard(server, "web-1", ""))
        with pytest.raises(ExecutorUnavailable, match=r"library holds the interpreter.*--pid 812` on web"):
            await app.executors.stacks("web-1")


@pytest.mark.parametrize("answer", [b'{"unknown":"stacks","version":"0.0.9"}', b"{", b"7"])
async def test_an_answer_that_is_none_is_described(app: App, server: Server, answer: bytes) -> None:
    await reported(app, server, "web-1", rss=1)
    asked = asyncio.create_task(app.executors.stacks("web-1"))
    with server.client() as client:
        key = await aeventually(lambda: next(iter(client.keys(AppKeys("shop").answer("*"))), None))
        client.set(key, answer, ex=60)
    with pytest.raises(ExecutorUnavailable, match=r"cannot answer 'stacks'|cannot be read"):
        await asked


@pytest.mark.parametrize("right", ["-spublish", "-set"])
async def test_a_user_without_the_permission_is_told(make_app: MakeApp, server: Server, right: str) -> None:
    with user_who_may_not(server, right) as url:
        app = make_app(redis_url=url)
        await reported(app, server, "web-1", rss=1)
        with pytest.raises(BrokerUnavailable, match="does not permit a command") as error:
            await app.executors.drain("web-1")
        assert not error.value.retriable


async def test_an_executor_whose_user_may_not_subscribe_still_works(
    make_app: MakeApp, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "WITHIN", 0.3)
    with user_who_may_not(server, "-ssubscribe") as url:
        app = make_app(redis_url=url)

        @app.task(name="shop:add")
        async def add(n: int) -> int:
            return n + 1

        async with running(app) as executor:
            assert await (await add.delay(1)).get(timeout=PATIENT) == 2
            with pytest.raises(ExecutorUnavailable, match="does not listen"):
                await app.executors.stacks(executor.name)


GIVEN_UP = (
    "drain 0123456789abcdef",
    "drain",
    "drain \x1b[2J",
    "dance 0123456789abcdef",
    "x" * 10_000,
)


async def test_a_question_that_was_given_up_is_not_acted_on(app: App, server: Server) -> None:
    """For example, the process of the executor was stopped for an hour."""
    async with running(app) as executor:
        await aeventually(lambda: state_is(app, executor.name, "works"))
        for text in GIVEN_UP:
            await aeventually(lambda: is_heard(server, executor.name, text))  # noqa: B023
        await app.executors.stacks(executor.name)
        assert executor.state.ending is None
