"""`sent`, `assert_enqueued` and the jobs that are left at the end."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fennelq import ConfigurationError, InvalidArguments, UsageError
from fennelq.testing import SentJob, Summary, Testing, session_server, testing
from fennelq.testing.found import Found
from tests.testing.shop import app, charge, flaky, report, runs, sign_up, welcome

# sent


async def test_what_was_sent_is_known_with_its_arguments_and_options(t: Testing) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    first = await welcome.options(priority="high", headers={"request": "r-1"}).delay(7, template="none")
    second = await charge.options(delay=90, key="order-8").delay(8)
    third = await charge.options(at=moment, queue="slow").delay(9)
    assert t.sent() == [
        SentJob(
            id=first.id,
            task=welcome.name,
            queue="mail",
            args=(7,),
            kwargs={"template": "none"},
            priority="high",
            headers={"from": "shop", "request": "r-1"},
        ),
        SentJob(
            id=second.id,
            task=charge.name,
            queue="default",
            args=(8,),
            kwargs={},
            delay=90.0,
            key="order-8",
            headers={},
        ),
        SentJob(id=third.id, task=charge.name, queue="slow", args=(9,), kwargs={}, at=moment, headers={}),
    ]
    assert [job.id for job in t.sent(charge)] == [second.id, third.id]
    assert await app.queues.purge("mail") + await app.queues.purge("default") == 2
    t.assert_enqueued(charge, 9)


async def test_a_job_that_was_there_already_is_not_sent_again(t: Testing) -> None:
    for _ in range(3):
        await welcome.options(key="once").delay(7)
    assert len(t.sent(welcome)) == 1
    await t.run_until_idle()


async def test_jobs_that_jobs_send_are_known_in_order(t: Testing) -> None:
    await sign_up.delay(7)
    await report.delay(8)
    await t.run_until_idle()
    assert {job.task.partition(":")[2] for job in t.sent()} == {"sign_up", "welcome", "report", "resize"}
    assert [job.args for job in t.sent(welcome)] == [(7,)]


async def test_a_job_that_is_sent_by_name_is_known_without_its_code(t: Testing) -> None:
    with pytest.warns(UserWarning, match="no task"):
        await app.send("billing:charge", 7, _kwargs={"cents": 300}, queue="billing")
    (job,) = t.sent()
    assert (job.task, job.args, job.kwargs, job.queue) == ("billing:charge", (7,), {"cents": 300}, "billing")
    assert await app.queues.purge("billing") == 1


# assert_enqueued


async def test_a_job_that_waits_is_found_however_its_arguments_were_passed(t: Testing) -> None:
    for args, kwargs in (((7,), {}), ((), {"user_id": 7}), ((7, "hello"), {})):
        sent = await app.send(welcome.name, *args, _kwargs=kwargs)
        assert t.assert_enqueued(welcome, 7).id == sent.id
        assert t.assert_enqueued(welcome, _kwargs={"user_id": 7, "template": "hello"}).id == sent.id
        assert t.assert_enqueued(welcome).id == sent.id
        assert await sent.cancel()


MOMENT = datetime.now(UTC) + timedelta(days=2)


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"queue": "slow"}, {"queue": "mail"}),
        ({"priority": "low"}, {"priority": "normal"}),
        ({"delay": 60}, {"delay": 30}),
        ({"delay": timedelta(minutes=1)}, {"delay": 0}),
        ({"at": MOMENT}, {"at": MOMENT + timedelta(seconds=5)}),
        ({"key": "order-7"}, {"key": "order-8"}),
        ({"headers": {"request": "r-1"}}, {"headers": {"request": "r-2"}}),
        ({}, {"delay": 5}),
    ],
)
async def test_a_job_has_the_options_with_which_it_was_sent(
    t: Testing, options: dict[str, Any], other: dict[str, Any]
) -> None:
    sent = await welcome.options(**options).delay(7)
    assert t.assert_enqueued(welcome, 7, **options).id == sent.id
    for wrong in (other, {**options, **other}):
        with pytest.raises(AssertionError, match=f"{sent.id} tests.testing.shop:welcome"):
            t.assert_enqueued(welcome, 7, **wrong)


async def test_the_error_shows_what_was_expected_and_what_waits(t: Testing) -> None:
    with pytest.raises(AssertionError) as raised:
        t.assert_enqueued(welcome, 7, queue="mail")
    name = "tests.testing.shop:welcome"
    wanted = f"no job {name}(user_id=7, template='hello') with queue='mail' waits; "
    assert str(raised.value) == wanted + "no job waits"
    sent = await welcome.delay(8)
    with pytest.raises(AssertionError) as raised:
        t.assert_enqueued(welcome, 7, queue="mail")
    there = f"these jobs wait:\n  {sent.id} {name}(user_id=8, template='hello') SENT"
    assert str(raised.value) == wanted + there
    await t.run_until_idle()
    with pytest.raises(AssertionError, match=r"no job waits$"):
        t.assert_enqueued(welcome, 8)


async def test_a_job_that_waits_for_its_next_try_is_enqueued(t: Testing) -> None:
    result = await flaky.delay(1)
    await t.run_until_idle()
    assert t.assert_enqueued(flaky, 1).id == result.id


async def test_arguments_that_no_call_could_have_are_refused(t: Testing) -> None:
    with pytest.raises(InvalidArguments, match="user_id"):
        t.assert_enqueued(welcome, "seven")
    with pytest.raises(ConfigurationError, match=r"compares no 'user_id'.*_kwargs=\{'user_id': …\}"):
        t.assert_enqueued(welcome, user_id=7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigurationError, match=r"compares no 'queu': did you mean 'queue'\?"):
        t.assert_enqueued(welcome, queu="mail")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# What is left at the end


async def test_jobs_that_are_left_fail_the_test_and_are_named() -> None:
    block = testing(app)
    t = block.open()
    ready = await welcome.delay(7)
    failed = await flaky.delay(1)
    await welcome.options(delay=7200).delay(8)
    expected = await welcome.options(delay=60).delay(9)
    t.assert_enqueued(welcome, 9)
    with pytest.raises(AssertionError) as raised:
        await block.__aexit__(None, None, None)
    lines = str(raised.value).splitlines()
    assert lines[0] == "3 jobs are left at the end of the test:"
    assert f"  {ready.id} tests.testing.shop:welcome(user_id=7, template='hello') SENT" in lines
    assert f"  {failed.id} tests.testing.shop:flaky(failures=1) SENT" in lines
    assert any(re.search(r"user_id=8.* SCHEDULED, due in (2:00:00|1:59:5\d)$", line) for line in lines)
    assert not any(expected.id in line for line in lines)
    assert "t.run_until_idle()" in lines[-1]


async def test_a_job_that_failed_is_named_with_its_error(t: Testing) -> None:
    result = await flaky.delay(1)
    await t.run_until_idle()
    with pytest.raises(AssertionError) as raised:
        t.check_nothing_left()
    first, line, _ = str(raised.value).splitlines()
    assert first == "1 job is left at the end of the test:"
    failed = (
        r"flaky\(failures=1\) RETRY, due in 0:\d\d:\d\d; last error: ConnectionError: the mail server is away"
    )
    assert re.fullmatch(rf"  {result.id} tests.testing.shop:{failed}", line)
    assert await result.cancel()


async def test_jobs_may_be_left_if_the_test_says_so() -> None:
    async with testing(app, leave_jobs=True) as t:
        await welcome.delay(7)
        assert [job.task for job in t.left()] == [welcome.name]
    assert runs == []


async def test_a_test_that_fails_raises_its_own_error() -> None:
    async def test() -> None:
        async with testing(app):
            await welcome.delay(7)
            raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        await test()


async def test_many_jobs_that_are_left_are_counted(t: Testing) -> None:
    await welcome.map(range(100))
    with pytest.raises(AssertionError) as raised:
        t.check_nothing_left()
    assert await app.queues.purge("mail") == 100
    lines = str(raised.value).splitlines()
    assert (lines[0], lines[-2], len(lines)) == (
        "100 jobs are left at the end of the test:",
        "  and 80 more",
        23,
    )


# The block


@pytest.mark.parametrize("fails", [False, True], ids=["passes", "fails"])
async def test_afterwards_the_app_is_as_before_and_its_keys_are_gone(fails: bool) -> None:
    before = (app.settings, app.namespace, app.wiring, app.declared, "address" in vars(app))
    found: Found | None = None
    try:
        async with testing(app, leave_jobs=True) as t:
            found, inside = Found(app), app.namespace
            await welcome.delay(7)
            await t.run_until_idle()
            await flaky.delay(1)
            t.tick(5)
            assert inside.startswith("shop-test-")
            assert app.settings.redis_url == session_server().url
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert found is not None
    assert (app.settings, app.namespace, app.wiring, app.declared, "address" in vars(app)) == before
    async with testing(app):
        assert found.keys() == []


async def test_a_server_of_ones_own_may_be_used(redis_url: str) -> None:
    async with testing(app, redis_url=redis_url) as t:
        await welcome.delay(7)
        assert app.address.shown == redis_url
        assert await t.run_until_idle() == Summary(succeeded=1)


async def test_a_url_that_is_wrong_is_refused_at_the_block_and_the_app_is_as_before() -> None:
    before = app.namespace
    with pytest.raises(ConfigurationError, match=r"'http://example' is not understood"):
        testing(app, redis_url="http://example").open()
    assert app.namespace == before


async def test_code_without_a_loop_works_in_a_thread_of_the_test(t: Testing) -> None:
    sent = await asyncio.to_thread(welcome.sync.delay, 7)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert await asyncio.to_thread(sent.get, 1) == "sent 'hello' to user 7"
    assert [job.id for job in t.sent(welcome)] == [sent.id]


async def test_each_block_has_its_own_testing() -> None:
    block = testing(app)
    async with block:
        with pytest.raises(UsageError, match="entered already"):
            block.open()


def test_a_test_without_a_loop_does_the_same() -> None:
    with testing(app) as t:
        sent = welcome.sync.delay(7)
        t.assert_enqueued(welcome, 7, queue="mail")
        assert t.run_until_idle() == Summary(succeeded=1)
        assert sent.get(timeout=0) == "sent 'hello' to user 7"
        failed = flaky.sync.delay(1)
        t.run_until_idle()
        t.tick(60)
        t.kill_executor(during=flaky)
        assert t.run_until_idle() == Summary(succeeded=1)
        assert failed.get(timeout=0) == 2


async def test_in_a_loop_the_one_for_code_without_a_loop_warns(t: Testing) -> None:
    await welcome.delay(7)
    with pytest.warns(RuntimeWarning, match=r"t\.sync\.run_until_idle.*await t\.run_until_idle"):
        assert t.sync.run_until_idle() == Summary(succeeded=1)
