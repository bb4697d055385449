"""`app.cancel`: cancels the jobs that match filters, in pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from anyio import to_thread

from fennelq import App, AsyncResult, ConfigurationError, InvalidFilter, RetryPolicy, Status
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.manage import acting, cancelling, finding
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running


class Shop:
    """Jobs of two tasks in two queues, one of each kind."""

    def __init__(self, app: App) -> None:
        self.app, self.gate = app, asyncio.Event()
        self.results = dict[str, AsyncResult[Any]]()
        self.begun = 0

        @app.task(name="shop:work", retry=RetryPolicy.fixed(3, delay=500))
        async def work(fails: bool = False) -> None:
            self.begun += 1
            if fails:
                raise ValueError("no")
            await self.gate.wait()

        @app.task(name="shop:mail", queue="mail")
        async def mail() -> None: ...

        self.work, self.mail = work, mail

    async def fill(self) -> None:
        """Two jobs of each kind: running, waiting for the next try, ready, scheduled, ready in another queue."""
        fails = [await self.work.delay(True) for _ in range(2)]
        runs = [await self.work.delay() for _ in range(2)]

        async def settled() -> bool:
            return self.begun == 4 and [await one.status() for one in fails] == [Status.RETRY] * 2

        await aeventually(settled)
        for number in range(2):
            self.results[f"runs {number}"], self.results[f"fails {number}"] = runs[number], fails[number]
            self.results[f"high {number}"] = await self.mail.options(priority="high").delay()
            self.results[f"later {number}"] = await self.work.options(delay=600).delay()
            self.results[f"mail {number}"] = await self.mail.delay()

    async def now(self) -> int:
        """The server's clock, in milliseconds."""
        return await self.app.client.ask(verbs.server.now())

    async def is_after(self, moment: int) -> bool:
        return await self.now() > moment

    async def cancelled(self) -> Counter[str]:
        """How many of each kind have been cancelled or asked to stop."""
        kinds = Counter[str]()
        for kind, result in self.results.items():
            info = await result.info()
            assert info is not None
            if info.stopping or info.status is Status.CANCELLED:
                kinds[kind.partition(" ")[0]] += 1
        return kinds


@pytest.fixture
def shop(app: App) -> Shop:
    return Shop(app)


EVERY = {"runs": 2, "fails": 2, "high": 2, "later": 2, "mail": 2}
CHOICES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"all": True}, EVERY),
    ({"queue": "mail"}, {"high": 2, "mail": 2}),
    ({"queue": ["mail", "default"]}, EVERY),
    ({"queue": []}, {}),
    ({"queue": "unknown"}, {}),
    ({"task": "shop:work"}, {"runs": 2, "fails": 2, "later": 2}),
    ({"task": "mail"}, {"high": 2, "mail": 2}),
    ({"task": "work", "queue": "mail"}, {}),
    ({"status": Status.RETRY}, {"fails": 2}),
    ({"status": "SCHEDULED"}, {"later": 2}),
    ({"status": [Status.SENT, Status.EXECUTING]}, {"runs": 2, "high": 2, "mail": 2}),
    ({"older_than": timedelta(hours=1)}, {}),
    ({"older_than": 0.001, "task": "work"}, {"runs": 2, "fails": 2, "later": 2}),
    ({"task": "work", "status": Status.EXECUTING, "limit": 1}, {"runs": 1}),
    ({"where": "queue:mail"}, {"high": 2, "mail": 2}),
    ({"where": "state:running state:retry"}, {"runs": 2, "fails": 2}),
    ({"where": "-task:mail"}, {"runs": 2, "fails": 2, "later": 2}),
    ({"where": "true"}, {"fails": 2}),
]


@pytest.mark.parametrize(("which", "kinds"), CHOICES)
async def test_the_jobs_that_match_every_filter_are_cancelled(
    shop: Shop, which: dict[str, Any], kinds: dict[str, int]
) -> None:
    async with running(shop.app, queues="default"):
        await shop.fill()
        filled = await shop.now()
        await aeventually(lambda: shop.is_after(filled))  # the last job is older than a millisecond
        assert await shop.app.cancel(**which) == sum(kinds.values())
        assert await shop.cancelled() == kinds
        shop.gate.set()


async def test_with_a_limit_so_many_jobs_are_cancelled_and_no_more(shop: Shop) -> None:
    await shop.app.enqueue([shop.mail.job() for _ in range(250)])
    assert [await shop.app.cancel(queue="mail", limit=limit) for limit in (120, 100, 100)] == [120, 100, 30]


async def test_with_a_limit_no_more_is_read_than_needed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[str]()

    def noted(keys: QueueKeys, *args: Any, **given: Any) -> Any:
        searched.append(keys.queue)
        return verbs.search.find(keys, *args, **given)

    monkeypatch.setattr(finding, "find", noted)
    await shop.app.enqueue([*(shop.mail.job() for _ in range(3)), shop.work.options(queue="zoo").job()])
    assert await shop.app.cancel(queue=["zoo", "mail"], limit=1) == 1
    assert searched == ["mail"]


async def test_a_task_may_be_given_as_it_is_and_a_reason_is_kept(shop: Shop) -> None:
    result = await shop.mail.delay()
    assert await shop.app.cancel(task=shop.mail, reason="the shop is closed") == 1
    info = await result.info()
    assert info is not None
    assert info.reason == "the shop is closed"


async def test_without_an_event_loop_jobs_are_cancelled_alike(shop: Shop) -> None:
    await shop.app.enqueue([shop.mail.job() for _ in range(3)])
    cancel = shop.app.sync.cancel
    assert await to_thread.run_sync(lambda: cancel(task="mail", limit=2)) == 2
    assert await to_thread.run_sync(lambda: cancel(all=True)) == 1


async def test_pages_of_every_place_are_read_to_their_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "MOST_JOBS", 7)
    later = [shop.mail.options(delay=600).job() for _ in range(300)]
    results = await shop.app.enqueue([*later, *(shop.mail.job() for _ in range(60))])
    assert await shop.app.cancel(task="mail") == 360
    assert {await result.status() for result in results[::40]} == {Status.CANCELLED}


async def test_jobs_that_arrive_in_a_lane_meanwhile_do_not_make_it_endless(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.app.enqueue([shop.mail.job() for _ in range(4)])
    monkeypatch.setattr(acting, "MOST_JOBS", 2)
    selection = cancelling.Selection.of("mail", None, None, None)
    sent = 0

    def send_another(done: int) -> None:
        nonlocal sent
        sent += 1
        assert sent < 10
        shop.app.blocking.converse(_sent(shop.app, shop.mail.job()))

    work = cancelling.Cancelling(shop.app, selection, progress=send_another)
    assert await shop.app.client.converse(work.run()) == 4
    assert await shop.app.cancel(queue="mail") == sent == 2


def _sent(app: App, job: Any) -> Any:
    from fennelq.client import sent

    return sent(app, [job])


@pytest.mark.audit(skip="a queue is damaged by hand")
async def test_a_damaged_queue_does_not_stop_the_others(shop: Shop, server: Server) -> None:
    @shop.app.task(queue="broken")
    async def never() -> None: ...

    results = [await shop.mail.delay() for _ in range(2)]
    with server.client() as client:
        client.set(queue_keys("shop", "broken")["sched"], "what?")
        client.set(queue_keys("shop", "mail").record("odd"), "what?")
        client.xadd(queue_keys("shop", "mail")["s"], {"i": "odd"})
    with pytest.raises(Exception, match="WRONGTYPE"):
        await shop.app.cancel(older_than=0.0001)
    assert [await result.status() for result in results] == [Status.CANCELLED] * 2


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ConfigurationError, "this cancels every job of the app: pass queue=.* or all=True"),
    ({"older_than": 0}, ConfigurationError, "all=True"),
    ({"status": ["SENT", "SCHEDULED", "EXECUTING", "RETRY"]}, ConfigurationError, "all=True"),
    ({"limit": 5}, ConfigurationError, "all=True"),
    ({"limit": 0, "queue": "mail"}, ConfigurationError, "limit must be a whole number, 1 or more"),
    ({"queue": "no queue"}, ConfigurationError, "queue 'no queue' is not valid"),
    ({"task": 5}, ConfigurationError, "task must be a task or its name, not an int"),
    (
        {"status": "DEAD"},
        ConfigurationError,
        "status 'DEAD' cannot be cancelled, only EXECUTING, RETRY, SCHED",
    ),
    ({"status": "ready"}, ConfigurationError, "status 'ready' cannot be cancelled"),
    ({"older_than": -1}, ConfigurationError, "older_than must be between 0 s and ten years"),
    ({"older_than": "1h"}, ConfigurationError, "older_than must be seconds or a timedelta"),
    ({"queue": "mail", "where": "task:mail"}, ConfigurationError, "where= stands alone"),
    ({"where": "state:dead"}, InvalidFilter, "jobs in state dead cannot be cancelled, only .*fennelq dlq"),
    (
        {"where": "-state:waiting -state:limited -state:running -state:scheduled -state:retry"},
        InvalidFilter,
        "no job",
    ),
    ({"where": "mail:order-17"}, InvalidFilter, "name these jobs by their ids"),
    ({"where": "taks:mail"}, InvalidFilter, "did you mean 'task'"),
    ({"queue": "mail", "reason": "expired"}, ConfigurationError, "use another word"),
]


@pytest.mark.parametrize(("which", "error", "text"), WRONG)
async def test_a_wrong_filter_is_refused_and_cancels_nothing(
    shop: Shop, which: dict[str, Any], error: type[Exception], text: str
) -> None:
    result = await shop.mail.delay()
    with pytest.raises(error, match=text):
        await shop.app.cancel(**which)
    assert await result.status() is Status.SENT
