"""`fennelq job` and `fennelq enqueue`."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.keys import LANES
from fennelq.cli.exits import Exit
from tests.cli.shop import Answer, Shop
from tests.kit.workers import running


def arguments(shop: Shop, *words: str) -> object:
    """What `enqueue` with these words sent."""
    job = shop.ok("enqueue", *words).out.strip()
    return shop.ok("job", "show", job, "--json").json["arguments"]


# Sending


def test_enqueue_prints_the_id(shop: Shop) -> None:
    answer = shop.ok("enqueue", "tasks:welcome", "42")
    assert answer.out.startswith("mail:")
    assert answer.out.count("\n") == 1
    assert shop.ok("enqueue", "tasks:welcome", "42", "--json").json["deduplicated"] is False


CALLS: list[tuple[list[str], object]] = [
    (["welcome", "42"], [[42], {}]),
    (["welcome", "42", "bye"], [[42, "bye"], {}]),
    (["welcome", "--kwargs", "template=bye", "42"], [[42], {"template": "bye"}]),
    (["welcome", "-k", '{"user_id": 42, "template": "bye"}'], [[], {"user_id": 42, "template": "bye"}]),
    (["welcome", "-k", "user_id=42", "-k", "template=bye"], [[], {"user_id": 42, "template": "bye"}]),
    (["welcome", "--", "-5"], [[-5], {}]),
    (["greet", "Bob"], [["Bob"], {}]),
    (["greet", '"Bob"'], [["Bob"], {}]),
    (["greet", "42"], [["42"], {}]),
    (["greet", "42", "2026-01-02T03:04:05"], [["42", "2026-01-02T03:04:05"], {}]),
    (["greet", "Bob", "null"], [["Bob", None], {}]),
]


@pytest.mark.parametrize(("words", "sent"), CALLS)
def test_arguments_are_read_as_the_task_is_annotated(shop: Shop, words: list[str], sent: object) -> None:
    assert arguments(shop, *words) == sent


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["welcome", "Bob"], Exit.USAGE, "parameter 'user_id'"),
        (["welcome"], Exit.USAGE, "missing a required argument: 'user_id'"),
        (["welcome", "1", "2", "3"], Exit.USAGE, "too many positional arguments"),
        (["welcome", "1", "-k", "tempalte=x"], Exit.USAGE, "tempalte"),
        (["welcome", "1", "-k", "template"], Exit.USAGE, "neither name=value nor"),
        (["welcome", "1", "-k", "{nonsense"], Exit.USAGE, "not a JSON object"),
        (["welcom", "1"], Exit.NOT_FOUND, "unknown task 'welcom'"),
        (["tasks:welcom", "1"], Exit.NOT_FOUND, "did you mean 'tasks:welcome'?"),
        (["welcome", "1", "--delay", "soon"], Exit.USAGE, "is not a duration"),
        (["welcome", "1", "--at", "soon"], Exit.USAGE, "is not a point in time"),
        (["welcome", "1", "--queue", "a b"], Exit.USAGE, "queue 'a b' is not valid"),
        (["welcome", "1", "--priority", "urgent"], Exit.USAGE, "'urgent' is not one of high, normal, low"),
        (["welcome", "1", "--delay", "1", "--at", "2026-01-01"], Exit.CONFIGURATION, "exclude each other"),
    ],
)
def test_a_wrong_call_sends_nothing(shop: Shop, words: list[str], code: Exit, sentence: str) -> None:
    answer = shop.run("enqueue", *words)
    assert answer.code == code
    assert sentence in " ".join(answer.err.split())
    assert all(row[1:] == ["0"] * 5 for row in shop.ok("queue", "list").rows)


def test_options_decide_how_it_runs(shop: Shop) -> None:
    job = shop.ok(
        *("enqueue", "welcome", "1", "--queue", "slow", "--priority", "high", "--job-id", "first"),
        *("--delay", "1h30m", "--expires", "2h", "--key", "once"),
    ).out.strip()
    facts = shop.ok("job", "show", job, "--json").json
    assert (job, facts["queue"], facts["priority"]) == ("slow:first", "slow", "high")
    assert (facts["status"], facts["key"]) == ("SCHEDULED", "welcome:once")
    assert facts["due_at"] < facts["expires_at"]


def test_a_second_call_with_the_same_key_is_reported_as_such(shop: Shop) -> None:
    first = shop.ok("enqueue", "welcome", "1", "--key", "once")
    second = shop.ok("enqueue", "welcome", "1", "--key", "once")
    assert second.out == first.out
    assert second.err == "no new job: an earlier call with the same key or id has created this one\n"
    assert shop.run("enqueue", "welcome", "2", "--job-id", "x").code == 0
    assert shop.run("enqueue", "welcome", "3", "--job-id", "x").code == Exit.FAILED


def test_a_task_this_app_does_not_have_is_sent_with_the_option_anyway(shop: Shop) -> None:
    job = shop.ok(
        "enqueue", "other:task", "1", "two", "-k", "x=3", "--queue", "other", "--anyway"
    ).out.strip()
    assert shop.ok("job", "show", job, "--json").json["arguments"] == [[1, "two"], {"x": 3}]


# Looking


def test_show_prints_what_is_known(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    facts = dict(shop.ok("job", "show", job).rows)
    assert (facts["id"], facts["task"], facts["status"], facts["arguments"]) == (
        job,
        "tasks:welcome",
        "SENT",
        "[[42],{}]",
    )
    assert shop.run("job", "show", "mail:unknown").code == Exit.NOT_FOUND


def test_show_of_a_dead_job_prints_the_reason(shop: Shop) -> None:
    [job] = shop.kill(1)
    shown = shop.ok("job", "show", job).out
    assert "status\tDEAD" in shown
    assert "message\tno money for 0" in shown
    assert "Traceback" in shown


# Waiting


def test_wait_prints_the_result(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    shop.work()
    assert shop.ok("job", "wait", job).out == '"hello 42"\n'
    assert shop.ok("job", "wait", job, "--json").json == {
        "id": job,
        "status": "SUCCESS",
        "result": "hello 42",
    }


def test_wait_for_a_job_that_failed_fails(shop: Shop) -> None:
    [job] = shop.kill(1)
    answer = shop.run("job", "wait", job)
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert answer.err == f"fennelq: job {job} failed after 1 try: tasks.CardRefused: no money for 0\n"
    facts = shop.run("job", "wait", job, "--json")
    assert (facts.code, facts.json["status"]) == (Exit.FAILED, "DEAD")


def test_wait_gives_up_after_its_timeout(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    answer = shop.run("job", "wait", job, "--timeout", "100ms")
    assert answer.code == Exit.TIMED_OUT
    assert "has not ended after 0.1 s" in answer.err
    assert shop.run("job", "wait", "mail:unknown").code == Exit.NOT_FOUND


# Cancelling and retrying


def test_cancel_ends_jobs_that_have_not_started(shop: Shop) -> None:
    first, second = (shop.ok("enqueue", "welcome", str(n)).out.strip() for n in range(2))
    assert shop.ok("job", "cancel", first, second).rows == [[first, "cancelled"], [second, "cancelled"]]
    answer = shop.run("job", "wait", first)
    assert (answer.code, answer.err) == (Exit.FAILED, f"fennelq: job {first} was cancelled (cancelled)\n")


def test_cancel_names_the_jobs_that_were_too_late_or_unknown(shop: Shop) -> None:
    [dead] = shop.kill(1)
    answer = shop.run("job", "cancel", dead)
    assert (answer.code, answer.rows) == (Exit.FAILED, [[dead, "too late: DEAD"]])
    answer = shop.run("job", "cancel", dead, "mail:unknown", "--json")
    assert answer.code == Exit.NOT_FOUND
    assert answer.json[1] == {"id": "mail:unknown", "done": False, "answer": "unknown"}


def test_cancel_stops_a_job_that_runs_and_waits_for_its_end(shop: Shop) -> None:
    async def run(app: App) -> tuple[list[str], Answer]:
        begun = asyncio.Event()

        @app.task(name="tasks:linger")
        async def linger() -> None:
            begun.set()
            await asyncio.sleep(60)

        async with running(app):
            result, waiting = await linger.delay(), await linger.options(delay=60).delay()
            await begun.wait()
            ids = [result.id, waiting.id]
            return ids, await asyncio.to_thread(shop.run, "job", "cancel", *ids, "--reason", "too slow")

    with capture_logs():
        ids, answer = shop.do(run)
    assert (answer.code, answer.rows) == (Exit.OK, [[job, "cancelled"] for job in ids])
    assert shop.ok("job", "show", ids[0], "--json").json["reason"] == "too slow"


def test_cancel_names_a_job_that_goes_on_and_show_says_why_it_stops(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    shop.do(take_all)
    answer = shop.run("job", "cancel", job, "--wait", "0", "--reason", "too slow")
    assert (answer.code, answer.rows) == (Exit.FAILED, [[job, "asked to stop"]])
    assert ["stopping", "too slow"] in shop.ok("job", "show", job).rows
    shop.do(hand_back)
    shop.work()
    assert shop.ok("job", "show", job, "--json").json["status"] == "CANCELLED"


async def take_all(app: App) -> None:
    """Be an executor that takes the jobs of `mail`."""
    fetch = verbs.runs.fetch(
        app.client.keys("mail"), consumer="me", free=9, lanes=tuple(LANES.values()), lifetimes=app.lifetimes
    )
    await app.client.ask(fetch)


async def hand_back(app: App) -> None:
    """Be that executor, and stop."""
    keys = app.client.keys("mail")
    entries = await app.client.ask(verbs.queues.waiting(keys, "s", "0-0", 100))
    await app.client.ask(verbs.runs.release(keys, [(entry.lane, entry.entry) for entry in entries]))


def test_cancel_selects_jobs_by_options(shop: Shop) -> None:
    for number in range(3):
        shop.ok("enqueue", "welcome", str(number))
    shop.ok("enqueue", "greet", "Bob", "--delay", "1h")
    mail = ["job", "cancel", "--queue", "mail"]
    assert shop.ok(*mail, "--dry-run").out == "4 jobs would be cancelled\n"
    assert shop.ok(*mail, "--older-than", "1h", "--yes").out == "0 jobs to cancel\n"
    answer = shop.run(*mail, "--task", "welcome")
    assert (answer.code, answer.err) == (Exit.USAGE, "fennelq: Cancel 3 jobs? Add --yes to do it.\n")
    assert (
        shop.ok(*mail, "--task", "welcome", "--limit", "2", "--yes").out
        == "2 jobs cancelled or asked to stop\n"
    )
    assert shop.ok("job", "cancel", "--status", "scheduled", "--yes", "--json").json == {"cancelled": 1}
    assert shop.ok("job", "cancel", "--all", "--yes").out == "1 job cancelled or asked to stop\n"
    assert shop.ok("job", "cancel", "--all", "--dry-run", "--json").json == {"count": 0}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], Exit.USAGE, "name jobs by their ids, or select them with --queue, --task, --status"),
        (
            ["mail:1", "--queue", "mail"],
            Exit.USAGE,
            "name jobs by their ids, or select them with options, but not",
        ),
        (["mail:1", "--all"], Exit.USAGE, "but not both"),
        (["mail:1", "--dry-run"], Exit.USAGE, "but not both"),
        (["nonsense"], Exit.USAGE, "'nonsense' is not a job id"),
        (["--queue", "mial"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["--status", "dead"], Exit.USAGE, "'dead' is not one of SCHEDULED, SENT, EXECUTING, RETRY"),
        (["--older-than", "soon"], Exit.USAGE, "is not a duration"),
        (["--limit", "0", "--all"], Exit.USAGE, "--limit"),
        (["--queue", "mail", "--reason", ""], Exit.CONFIGURATION, "reason '' is not valid"),
        (["mail:1", "--reason", "expired"], Exit.CONFIGURATION, "use another word"),
    ],
)
def test_a_wrong_cancel_cancels_nothing(shop: Shop, words: list[str], code: Exit, sentence: str) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    answer = shop.run("job", "cancel", *words)
    assert answer.code == code
    assert sentence in " ".join(answer.err.split())
    assert shop.ok("job", "show", job, "--json").json["status"] == "SENT"


def test_retry_brings_a_dead_job_back(shop: Shop) -> None:
    [dead] = shop.kill(1)
    assert shop.ok("job", "retry", dead).rows == [[dead, "replayed"]]
    assert shop.ok("job", "show", dead, "--json").json["status"] == "SENT"
    again = shop.run("job", "retry", dead)
    assert (again.code, again.rows) == (Exit.FAILED, [[dead, "not dead: SENT"]])
    assert shop.run("job", "retry", "mail:unknown").code == Exit.NOT_FOUND


def test_show_prints_why_a_job_does_not_run(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    because = "no worker runs; start one with `fennelq worker`"
    assert ["waiting_because", because] in shop.ok("job", "show", job).rows
    assert shop.ok("job", "show", job, "--json").json["waiting_because"] == because
    shop.work()
    assert shop.ok("job", "show", job, "--json").json["waiting_because"] is None


def test_show_names_the_task_that_the_workers_do_not_have(shop: Shop) -> None:
    job = shop.ok("enqueue", "tasks:welcom", "42", "--anyway").out.strip()
    shop.work()
    shown = shop.ok("job", "show", job, "--json").json
    assert shown["history"][0]["what"] == "unknown_task"
    assert shown["history"][0]["more"] == "unknown task 'tasks:welcom': did you mean 'tasks:welcome'?"
    assert shop.run("job", "wait", job, "--timeout", "0.05").code == Exit.TIMED_OUT
    shop.ok("job", "cancel", job)
