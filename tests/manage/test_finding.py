"""The pace of a search, and how it goes on from where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest

from fennelq import App, Limit
from fennelq.broker.talk import Finds, Pause, Talk
from fennelq.broker.verbs.search import Criteria
from fennelq.manage import finding
from fennelq.manage.finding import At, Search, number_found
from fennelq.model.query import Query
from tests.kit.apps import LocalApp


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    """An app without tasks yet."""
    async with LocalApp("shop", redis_url=redis_url) as app:
        yield app


class Ticking:
    """A clock on which each look takes a quarter of a second."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 0.25
        return self._now


def without_pauses(talk: Talk[Any], pauses: list[float]) -> Generator[Any, Any, Any]:
    """The same conversation; its pauses are noted instead."""
    replies: Any = None
    try:
        while True:
            asked = talk.send(replies)
            if isinstance(asked, Pause):
                pauses.append(asked.seconds)
                replies = None
            else:
                replies = yield asked
    except StopIteration as end:
        return end.value


@pytest.mark.audit(unfinished=True)
async def test_a_search_pauses_four_times_what_its_steps_take(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def work(number: int) -> None: ...

    await app.enqueue([work.job(number) for number in range(500)])
    monkeypatch.setattr(finding, "clock", Ticking())
    pauses = list[float]()
    assert await app.client.converse(without_pauses(number_found(app, Query(), None), pauses)) == 500
    assert pauses == [1.0] * 4


@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("most", [1, 3, 100])
async def test_a_search_goes_on_from_where_it_was_after_each_step(app: App, most: int) -> None:
    @app.task
    async def work() -> None: ...

    @app.task(queue="lines", concurrency=Limit(1, key="account"))
    async def charge(account: int) -> None: ...

    jobs = [work.options(delay=600 if n % 2 else 0).job() for n in range(20)]
    ids = {one.id for one in await app.enqueue([*jobs, *(charge.job(n % 4) for n in range(20))])}
    met, search = list[str](), Search(app, Criteria(Query()), most=most)
    while (page := await app.client.converse(Finds(search.pages()).next())) is not None:
        met += [f"{page.keys.queue}:{hit.key}" for hit in page.hits]
        search = Search(app, Criteria(Query()), At.from_text(search.at.to_text()), most=most)
    assert sorted(met) == sorted(ids)
