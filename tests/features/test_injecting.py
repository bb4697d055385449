"""Injection: what a task needs besides its arguments, made by the worker and closed before the outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest

from fennelq import App, Depends, InvalidArguments, JobContext, Retry, Shared, TaskFailed, current_job
from tests.kit.workers import running, running_aside

Row = tuple[str, int]


class Database:
    """Keeps what was committed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.open = 0


class Session:
    """Rows that are not committed yet."""

    def __init__(self) -> None:
        self.rows: list[Row] = []


database = Database()


async def connect() -> AsyncIterator[Database]:
    database.rows.clear()
    database.open += 1
    yield database
    database.open -= 1


async def get_session(database: Database = Shared(connect)) -> AsyncIterator[Session]:
    session = Session()
    try:
        yield session
    except BaseException:
        session.rows.clear()
        raise
    database.rows += session.rows


def get_session_in_thread(database: Database = Shared(connect)) -> Generator[Session]:
    session = Session()
    yield session
    database.rows += session.rows


async def test_a_session_is_committed_by_success_and_rolled_back_by_a_failed_try(app: App) -> None:
    @app.task(retries=1)
    async def charge(
        order: int, session: Session = Depends(get_session), job: JobContext = Depends(current_job)
    ) -> int:
        session.rows.append((job.task, order * job.tries))
        if job.tries == 1:
            raise Retry(0)
        return order

    @app.task
    def refund(order: int, session: Session = Depends(get_session_in_thread)) -> None:
        session.rows.append(("refund", order))
        if order < 0:
            raise ValueError("no such order")

    async with running(app):
        assert await (await charge.delay(7)).get(timeout=30) == 7
        await (await refund.delay(7)).get(timeout=30)
        with pytest.raises(TaskFailed, match="no such order"):
            await (await refund.options(retries=0).delay(-1)).get(timeout=30)
        assert database.rows == [(charge.name, 14), ("refund", 7)]
        assert database.open == 1
    assert database.open == 0


async def test_scheduled_tasks_get_their_values_and_callers_cannot_pass_them(app: App) -> None:
    seen: list[Session] = []

    @app.every(0.05)
    async def sweep(session: Session = Depends(get_session)) -> None:
        seen.append(session)

    with pytest.raises(InvalidArguments, match="the worker injects it"):
        sweep.every(5, kwargs={"session": "mine"})
    async with running(app):
        result = await sweep.delay()
        await result.get(timeout=30)
    assert {type(session) for session in seen} == {Session}


def get_greeting() -> str:
    return "hello"


def test_jobs_of_the_sync_api_get_their_values(redis_url: str) -> None:
    app = App("shop", redis_url=redis_url)

    @app.task(name="shop:greet")
    def greet(name: str, greeting: str = Depends(get_greeting)) -> str:
        return f"{greeting} {name}"

    with running_aside(app):
        assert greet.sync.delay("ann").get(timeout=30) == "hello ann"
        with app.overrides({get_greeting: lambda: "good morning"}):
            assert greet.sync.delay("bob").get(timeout=30) == "good morning bob"
