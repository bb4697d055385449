"""What tasks have injected: made before the call, left before the outcome. The runner, without Redis."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import fastapi
import orjson
import pytest

from fennelq import App, Depends, JobContext, Reject, Retry, Shared, Snooze, current_job, injected
from fennelq.model import outcome
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.worker.running.held import STOPPED, Held
from fennelq.worker.running.injecting import call_in_thread
from fennelq.worker.running.runner import Runner
from fennelq.worker.shared import LooplessValues, SharedValues
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually

Function = Callable[..., Any]


class Bench:
    """Runs jobs of tasks on one executor's shared values."""

    def __init__(self) -> None:
        self.app = LocalApp("shop", redis_url="redis://127.0.0.1:1/0", stop_grace=0.01, default_retries=0)
        self.shared = SharedValues()
        self._runner = Runner(self.app, 4, self.shared)
        self.timed_out: list[Held] = []

    async def __call__(self, function: Function, args: bytes = b"[[],{}]", **options: Any) -> Outcome:
        return await self.begin(function, args, **options)[1]

    def begin(
        self, function: Function, args: bytes = b"[[],{}]", **options: Any
    ) -> tuple[Held, asyncio.Task[Outcome]]:
        """A run, as the workbench starts it."""
        name = f"shop:{function.__name__}"
        if name not in self.app.tasks:
            self.app.task(name=name, **options)(function)
        held = Held(Delivery("mail", "s", "1-1", "7", name, args, b"", 0, 1, 1, 1_700_000_000_000))
        run = asyncio.create_task(self._runner.run(held, self._time_out))
        held.begun, held.task = True, run  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        return held, run

    def _time_out(self, held: Held) -> None:
        self.timed_out.append(held)
        held.time_out()


@pytest.fixture
async def run() -> AsyncIterator[Bench]:
    """`await run(function)`: the outcome of one job."""
    bench = Bench()
    yield bench
    await bench.shared.leave(1)


def value(ended: Outcome) -> Any:
    assert ended.kind == outcome.SUCCESS, ended
    return orjson.loads(ended.value)["ok"]


def error(ended: Outcome) -> str:
    return str(orjson.loads(ended.error)["message"])


# Values


def plain() -> str:
    return "plain"


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "coroutine"


def generator() -> Generator[str]:
    yield "generator"


async def async_generator() -> AsyncIterator[str]:
    yield "async_generator"


@contextmanager
def manager() -> Generator[str]:
    yield "manager"


@asynccontextmanager
async def async_manager() -> AsyncGenerator[str]:
    yield "async_manager"


class Maker:
    """A provider that is an object."""

    async def __call__(self) -> str:
        return "maker"

    def method(self) -> Generator[str]:
        yield "method"


def part(first: str, last: str = "t") -> str:
    return f"{first}{last}"


PROVIDERS: list[tuple[Function, str]] = [
    (plain, "plain"),
    (coroutine, "coroutine"),
    (generator, "generator"),
    (async_generator, "async_generator"),
    (manager, "manager"),
    (async_manager, "async_manager"),
    (Maker(), "maker"),
    (Maker().method, "method"),
    (functools.partial(part, "par"), "part"),
    (functools.cache(plain), "plain"),
    (lambda: "lambda", "lambda"),
    (str, ""),
]


@pytest.mark.parametrize(("provider", "made"), PROVIDERS, ids=[made or "class" for _, made in PROVIDERS])
async def test_a_provider_of_every_kind_fills_a_parameter_of_every_task(
    run: Bench, provider: Function, made: str
) -> None:
    async def on_loop(text: str = Depends(provider), shared: str = Shared(provider)) -> list[str]:
        return [text, shared]

    def in_thread(text: str = Depends(provider), shared: str = Shared(provider)) -> list[str]:
        return [text, shared]

    assert value(await run(on_loop)) == [made, made]
    assert value(await run(in_thread)) == [made, made]


Text = Annotated[str, Depends(plain)]


def nested(text: str = fastapi.Depends(plain)) -> str:
    return f"nested {text}"


async def test_annotated_and_the_markers_of_fastapi_are_the_same(run: Bench) -> None:
    async def read(
        a: Text,
        number: int,
        *rest: str,
        b: Annotated[str, fastapi.Depends(nested)],
        c: Annotated[str, Shared(plain)] = injected,
        d: str = fastapi.Security(coroutine),
    ) -> list[object]:
        return [a, number, rest, b, c, d]

    assert value(await run(read, b'[[7,"x"],{}]')) == [
        "plain", 7, ["x"], "nested plain", "plain", "coroutine",
    ]  # fmt: skip
    assert value(await run(read, b'[[],{"number":7}]')) == [
        "plain", 7, [], "nested plain", "plain", "coroutine",
    ]  # fmt: skip


async def test_a_provider_is_called_once_per_job_whatever_needs_it(run: Bench) -> None:
    calls: list[str] = []

    def settings() -> dict[str, str]:
        calls.append("settings")
        return {}

    def db(settings: Any = Depends(settings)) -> list[Any]:
        return [settings]

    async def same(one: Any = Depends(settings), db: Any = Depends(db), two: Any = Depends(settings)) -> bool:
        return one is two and db[0] is one

    assert value(await run(same))
    assert calls == ["settings"]
    assert value(await run(same))
    assert calls == ["settings", "settings"]


async def test_an_object_that_could_be_entered_is_passed_as_it_is(run: Bench) -> None:
    async def look(lock: Any = Depends(threading.Lock)) -> bool:
        return bool(lock.locked())

    assert value(await run(look)) is False


async def test_the_current_job_can_be_injected(run: Bench) -> None:
    def doubled(job: JobContext = Depends(current_job)) -> str:
        return job.id * 2

    async def look(job: JobContext = Depends(current_job), twice: str = Depends(doubled)) -> list[str]:
        return [job.id, twice]

    def look_in_thread(job: JobContext = Depends(current_job)) -> str:
        return job.id

    assert value(await run(look)) == ["mail:7", "mail:7mail:7"]
    assert value(await run(look_in_thread)) == "mail:7"


@pytest.mark.parametrize("made", [coroutine, generator, async_generator, manager, async_manager])
async def test_a_provider_that_returns_another_unmade_value_fails_the_job(run: Bench, made: Function) -> None:
    async def look(text: Any = Depends(lambda: made())) -> None: ...

    async def share(text: Any = Shared(lambda: made())) -> None: ...

    def look_in_thread(text: Any = Depends(lambda: made())) -> None: ...

    for function in (look, share, look_in_thread):
        assert "the provider <lambda> returned" in error(await run(function))


async def test_a_provider_that_fails_fails_the_job_and_what_was_entered_is_left(run: Bench) -> None:
    left: list[str] = []

    def session() -> Generator[None]:
        try:
            yield
        except ConnectionError as refused:
            left.append(str(refused))
            raise

    def user(session: Any = Depends(session)) -> str:
        raise ConnectionError("no such host")

    async def read(user: str = Depends(user)) -> None: ...

    def read_in_thread(user: str = Depends(user)) -> None: ...

    for function in (read, read_in_thread):
        ended = await run(function)
        assert (ended.kind, error(ended)) == (outcome.DEAD, "no such host")
    assert left == ["no such host", "no such host"]


# Threads


async def test_plain_providers_of_a_thread_run_in_it_and_async_ones_on_the_loop(run: Bench) -> None:
    loop = threading.get_ident()
    seen: dict[str, set[int]] = {}

    def note(what: str) -> None:
        seen.setdefault(what, set()).add(threading.get_ident())

    def host() -> str:
        note("needed on the loop")
        return "host"

    def url(host: str = Depends(host)) -> str:
        note("needed on the loop")
        return f"url of {host}"

    async def pool(url: str = Depends(url)) -> AsyncIterator[str]:
        note("async")
        yield f"pool of {url}"
        note("async")

    def session(pool: str = Depends(pool)) -> Generator[str]:
        note("thread")
        yield f"session of {pool}"
        note("thread")

    def work(number: int, session: str = Depends(session), pool: str = Depends(pool)) -> list[str]:
        note("thread")
        return [session, pool]

    assert value(await run(work, b"[[1],{}]")) == ["session of pool of url of host", "pool of url of host"]
    assert seen["async"] == seen["needed on the loop"] == {loop}
    assert len(seen["thread"]) == 1
    assert seen["thread"] != {loop}


# Leaving


class Journal:
    """Providers that note when they are entered and left."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def noting(self, name: str) -> Generator[str]:
        self.lines.append(f"{name} entered")
        try:
            yield name
        except BaseException as error:
            self.lines.append(f"{name} got {type(error).__name__}")
            raise
        else:
            self.lines.append(f"{name} left")

    def outer(self) -> Generator[str]:
        with self.noting("outer") as name:
            yield name

    async def middle(self) -> AsyncIterator[str]:
        with self.noting("middle") as name:
            yield name


@pytest.fixture
def journal() -> Journal:
    return Journal()


async def test_what_was_entered_is_left_in_reverse_before_the_outcome(run: Bench, journal: Journal) -> None:
    async def work(outer: str = Depends(journal.outer), middle: str = Depends(journal.middle)) -> None:
        journal.lines.append("work")

    def work_in_thread(middle: str = Depends(journal.middle), outer: str = Depends(journal.outer)) -> None:
        journal.lines.append("work")

    assert (await run(work)).kind == outcome.SUCCESS_WITHOUT_VALUE
    assert journal.lines == ["outer entered", "middle entered", "work", "middle left", "outer left"]
    journal.lines.clear()
    assert (await run(work_in_thread)).kind == outcome.SUCCESS_WITHOUT_VALUE
    assert journal.lines == ["middle entered", "outer entered", "work", "outer left", "middle left"]


RAISED: list[tuple[BaseException, str, str]] = [
    (ValueError("no"), outcome.DEAD, "failed"),
    (Retry(3), outcome.DEAD, "failed"),
    (Snooze(3), outcome.SNOOZE, "snoozed"),
    (Reject("no"), outcome.DEAD, "rejected"),
    (SystemExit(3), outcome.DEAD, "failed"),
    (GeneratorExit(), outcome.DEAD, "failed"),
    (StopIteration(), outcome.DEAD, "failed"),
    (asyncio.CancelledError(), outcome.DEAD, "failed"),
]


@pytest.mark.parametrize(("raised", "kind", "reason"), RAISED, ids=lambda value: type(value).__name__)
async def test_providers_get_what_the_task_raises_and_cannot_make_it_a_success(
    run: Bench, journal: Journal, raised: BaseException, kind: str, reason: str
) -> None:
    """The one outside of a provider that swallows the error gets it as well: it must not commit."""
    swallowed: list[BaseException] = []

    def lenient() -> Generator[None]:
        try:
            yield
        except BaseException as error:
            swallowed.append(error)

    async def lenient_async() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            swallowed.append(error)

    async def work(
        outer: str = Depends(journal.outer), a: Any = Depends(lenient), b: Any = Depends(lenient_async)
    ) -> None:
        raise raised

    def work_in_thread(
        outer: str = Depends(journal.outer), a: Any = Depends(lenient), b: Any = Depends(lenient_async)
    ) -> None:
        raise raised

    for function in (work, work_in_thread):
        ended = await run(function)
        assert (ended.kind, ended.reason) == (kind, reason)
    got = type(raised).__name__
    on_loop = (
        "RuntimeError" if isinstance(raised, StopIteration) else got
    )  # no coroutine can raise a StopIteration
    assert journal.lines == ["outer entered", f"outer got {on_loop}", "outer entered", f"outer got {got}"]
    assert len(swallowed) == 4


async def test_a_commit_that_fails_fails_the_job_and_what_is_outside_gets_its_error(
    run: Bench, journal: Journal
) -> None:
    """U13."""

    def session(outer: str = Depends(journal.outer)) -> Generator[None]:
        yield
        raise ConnectionError("commit failed")

    async def async_session(outer: str = Depends(journal.outer)) -> AsyncIterator[None]:
        yield
        raise ConnectionError("commit failed")

    async def work(session: Any = Depends(session)) -> int:
        return 1

    async def work_async(session: Any = Depends(async_session)) -> int:
        return 1

    def work_in_thread(session: Any = Depends(session)) -> int:
        return 1

    for function in (work, work_async, work_in_thread):
        ended = await run(function)
        assert (ended.kind, error(ended)) == (outcome.DEAD, "commit failed")
        assert "commit failed" in orjson.loads(ended.error)["traceback"]
    assert journal.lines == ["outer entered", "outer got ConnectionError"] * 3


async def test_a_provider_may_raise_another_outcome_in_place_of_the_error(run: Bench) -> None:
    def translating() -> Generator[None]:
        try:
            yield
        except ValueError as wrong:
            raise Reject("never valid") from wrong

    async def work(_: Any = Depends(translating)) -> None:
        raise ValueError

    def work_in_thread(_: Any = Depends(translating)) -> None:
        raise ValueError

    for function in (work, work_in_thread):
        assert (await run(function)).reason == "rejected"


async def test_a_job_that_its_executor_stops_is_left_with_its_cancellation(
    run: Bench, journal: Journal
) -> None:
    begun = asyncio.Event()

    async def work(outer: str = Depends(journal.outer), middle: str = Depends(journal.middle)) -> None:
        begun.set()
        await asyncio.Event().wait()

    held, outcome_of = run.begin(work)
    await begun.wait()
    held.stop(STOPPED)
    with pytest.raises(asyncio.CancelledError):
        await outcome_of
    assert journal.lines[2:] == ["middle got CancelledError", "outer got CancelledError"]


async def test_the_timeout_of_a_task_covers_its_providers(run: Bench, journal: Journal) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async def work(outer: str = Depends(journal.outer), slow: None = Depends(slow)) -> None: ...

    ended = await run(work, timeout=0.01)
    assert (ended.reason, journal.lines) == ("timeout", ["outer entered", "outer got CancelledError"])


@pytest.mark.parametrize("timeout", [None, 60])
async def test_providers_that_hang_when_they_are_left_are_asked_to_stop(
    run: Bench, journal: Journal, timeout: float | None
) -> None:
    """U13. Also when the task has no timeout, or a longer one."""

    async def hanging(outer: str = Depends(journal.outer)) -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    async def work(_: None = Depends(hanging)) -> int:
        return 1

    ended = await run(work, timeout=timeout)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "timeout")
    assert error(ended) == "the providers of the task did not end within stop_grace"
    assert journal.lines == ["outer entered", "outer got CancelledError"]


async def test_providers_that_hang_in_a_thread_are_asked_to_stop(run: Bench) -> None:
    """U13."""

    def hanging(job: JobContext = Depends(current_job)) -> Generator[None]:
        yield
        while job.cancelled is None:
            threading.Event().wait(0.001)

    def work(_: None = Depends(hanging)) -> int:
        return 1

    ended = await run(work)
    assert (ended.kind, ended.reason) == (outcome.DEAD, "timeout")
    assert len(run.timed_out) == 1


async def test_providers_that_end_in_time_leave_no_timer(run: Bench, journal: Journal) -> None:
    async def work(_: str = Depends(journal.middle)) -> int:
        return 1

    def work_in_thread(_: str = Depends(journal.outer)) -> int:
        return 1

    assert value(await run(work)) == value(await run(work_in_thread)) == 1
    await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.03)
    assert run.timed_out == []


def test_a_run_that_the_interpreter_closes_while_its_providers_end_waits_for_nothing_more() -> None:
    """The loop has ended before the run: code that waits again could never go on."""
    leaving = asyncio.Event()

    async def outer() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.sleep(0)

    async def inner(_: None = Depends(outer)) -> AsyncIterator[None]:
        yield
        leaving.set()
        await asyncio.Event().wait()

    async def work(_: None = Depends(inner)) -> None: ...

    async def begin() -> asyncio.Task[Outcome]:
        _, run = Bench().begin(work)
        await leaving.wait()
        return run

    loop = asyncio.new_event_loop()
    run = loop.run_until_complete(begin())
    loop.close()
    coroutine: Any = run.get_coro()
    coroutine.close()
    assert coroutine.cr_frame is None


# Shared values


async def test_a_shared_value_is_made_once_for_jobs_that_need_it_at_the_same_time(run: Bench) -> None:
    calls: list[str] = []

    async def make_pool() -> list[int]:
        calls.append("pool")
        await asyncio.sleep(0)
        return []

    async def same(pool: Any = Shared(make_pool)) -> int:
        return id(pool)

    def same_in_thread(pool: Any = Shared(make_pool)) -> int:
        return id(pool)

    ends = await asyncio.gather(*(run(function) for function in (same, same, same_in_thread) * 3))
    assert len({value(end) for end in ends}) == 1
    assert calls == ["pool"]


async def test_a_shared_value_that_cannot_be_made_fails_the_jobs_that_wait_and_is_made_for_the_next(
    run: Bench,
) -> None:
    answers: list[Any] = [ConnectionError("refused"), 5]

    async def make_pool() -> int:
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    async def work(pool: int = Shared(make_pool)) -> int:
        return pool

    first, second = await asyncio.gather(run(work), run(work))
    assert (error(first), error(second)) == ("refused", "refused")
    assert value(await run(work)) == 5


async def test_the_error_of_a_shared_value_has_the_same_traceback_in_each_job_that_waits(run: Bench) -> None:
    async def make_pool() -> int:
        await asyncio.sleep(0)
        raise ConnectionError("refused")

    async def around(_: JobContext, call: Callable[[], Any]) -> Any:
        return await call()

    async def work(pool: int = Shared(make_pool)) -> int:
        return pool

    run.app.performing(around)
    ends = await asyncio.gather(run(work), run(work), run(work))
    traces = [orjson.loads(end.error)["traceback"] for end in ends]
    assert traces[0].count("in around") == 1
    assert traces == [traces[0]] * 3


async def test_a_job_that_is_stopped_while_it_waits_does_not_disturb_the_others(run: Bench) -> None:
    ready = asyncio.Event()

    async def make_pool() -> int:
        await ready.wait()
        return 5

    async def work(pool: int = Shared(make_pool)) -> int:
        return pool

    (held, first), (_, second) = run.begin(work), run.begin(work)
    await asyncio.sleep(0)
    held.stop(STOPPED)
    with pytest.raises(asyncio.CancelledError):
        await first
    ready.set()
    assert value(await second) == 5


async def test_a_shared_value_that_hangs_delays_no_other(run: Bench) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async def stuck(_: None = Shared(hang)) -> None: ...

    async def work(user: str = Shared(coroutine)) -> str:
        return user

    held, waiting = run.begin(stuck)
    await asyncio.sleep(0)
    assert value(await run(work)) == "coroutine"
    held.stop(STOPPED)
    await asyncio.wait([waiting])


async def test_a_shared_value_is_not_made_in_the_context_of_a_job(run: Bench) -> None:
    def look() -> str:
        with pytest.raises(LookupError):
            current_job()
        return "no job"

    async def work(seen: str = Shared(look)) -> str:
        return seen

    assert value(await run(work)) == "no job"


async def test_shared_values_are_left_in_reverse_by_the_task_that_entered_them(
    run: Bench, logged: list[Any]
) -> None:
    lines: list[str] = []

    async def pool() -> AsyncIterator[str]:
        entered = asyncio.current_task()
        yield "pool"
        assert asyncio.current_task() is entered
        lines.append("pool")

    def failing() -> Generator[None]:
        yield
        raise ConnectionError("gone")

    async def client(pool: str = Shared(pool), failing: None = Shared(failing)) -> AsyncIterator[str]:
        yield f"client of {pool}"
        lines.append("client")

    async def hanging() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    async def work(client: str = Shared(client), hanging: None = Shared(hanging)) -> str:
        return client

    assert value(await run(work)) == "client of pool"
    await run.shared.leave(0.01)
    assert lines == ["client", "pool"]
    assert [(line["event"], line["provider"]) for line in logged] == [
        ("shared_value_not_left", "hanging"),
        ("shared_value_failed_to_leave", "failing"),
    ]
    assert run.shared.made == {}
    assert "the executor has stopped, so it does not make pool any more" in error(await run(work))


async def test_a_shared_value_that_hangs_at_its_end_leaves_time_for_those_that_are_left_after_it(
    run: Bench,
) -> None:
    lines: list[str] = []

    async def pool() -> AsyncIterator[str]:
        yield "pool"
        for _ in range(50):  # as a pool does that closes its connections
            await asyncio.sleep(0)
        lines.append("pool")

    async def hanging(pool: str = Shared(pool)) -> AsyncIterator[str]:
        yield pool
        await asyncio.Event().wait()

    async def work(pool: str = Shared(hanging)) -> str:
        return pool

    assert value(await run(work)) == "pool"
    await run.shared.leave(0.2)
    assert lines == ["pool"]


async def test_a_shared_value_whose_task_a_job_has_cancelled_is_left_and_made_again(run: Bench) -> None:
    lines: list[str] = []

    async def pool() -> AsyncIterator[str]:
        lines.append("entered")
        yield "pool"
        lines.append("left")

    async def rude(pool: str = Shared(pool)) -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("shared "):
                task.cancel()

    assert (await run(rude)).kind == outcome.SUCCESS_WITHOUT_VALUE
    await aeventually(lambda: lines == ["entered", "left"])
    assert (await run(rude)).kind == outcome.SUCCESS_WITHOUT_VALUE
    assert lines[2] == "entered"


async def test_a_shared_value_that_is_cancelled_before_it_begins_fails_the_job_and_is_made_for_the_next(
    run: Bench,
) -> None:
    async def work(user: str = Shared(coroutine)) -> str:
        return user

    async def cancel_all() -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("shared "):
                task.cancel()

    _, first = run.begin(work)
    await asyncio.create_task(cancel_all())
    assert error(await asyncio.wait_for(first, 20)) == "coroutine was cancelled"
    assert value(await asyncio.wait_for(run(work), 20)) == "coroutine"


# Overrides


async def test_a_job_gets_what_overrides_the_provider_also_when_a_shared_value_is_there(run: Bench) -> None:
    def pool() -> str:
        return "real"

    async def session(pool: str = Shared(pool)) -> str:
        return f"session of {pool}"

    async def work(session: str = Depends(session)) -> str:
        return session

    assert value(await run(work)) == "session of real"
    with run.app.overrides({pool: lambda: "fake"}):
        assert value(await run(work)) == "session of fake"
        with run.app.overrides({session: lambda: "nothing"}):
            assert value(await run(work)) == "nothing"
        assert value(await run(work)) == "session of fake"
    assert value(await run(work)) == "session of real"


# Without a loop


def test_without_a_loop_all_values_are_made_where_the_task_runs(journal: Journal) -> None:
    app, shared = App("shop", redis_url="redis://127.0.0.1:1/0"), LooplessValues()

    def crunch(number: int, pool: str = Shared(journal.outer), job: str = Depends(plain)) -> list[Any]:
        return [number, pool, job]

    injection = app.injections.of("shop:crunch", crunch, process=True)
    assert injection is not None
    for number in (1, 2):
        made = call_in_thread(
            injection, injection.recipe, [], lambda: None, crunch, (number,), {}, shared=shared
        )
        assert made == [number, "outer", "plain"]
    assert journal.lines == ["outer entered"]
    shared.leave()
    assert journal.lines == ["outer entered", "outer left"]
