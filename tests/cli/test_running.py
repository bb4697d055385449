"""`fennelq queue running`: which jobs run, on which executor, for how long, and how far they have come."""

from __future__ import annotations

import pytest

from fennelq import App, clock
from fennelq.broker import verbs
from fennelq.broker.keys import GROUP, LANES
from fennelq.broker.verb import Command, as_is
from fennelq.model.fields import LETTERS
from tests.cli.shop import Shop
from tests.cli.test_lists import in_pipe, on_terminal

KEY = "01a1efd7ac9df1e81f61335836"
DAY = 86_400
PROGRESS = b'[1,1,3,10,"\\u001b[2Jrows"]'


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """Three jobs run, and one waits. Their executor has the name of an attacker."""
    for n in range(3):
        shop.ok("enqueue", "welcome", str(n), "--job-id", f"{KEY}{n}")
    shop.ok("enqueue", "charge", "7", "--job-id", f"{KEY}3")
    shop.do(run_three)
    return shop


async def run_three(app: App) -> None:
    """Take two jobs of one queue and one of another."""
    for queue, free in (("mail", 2), ("default", 1)):
        keys = app.client.keys(queue)
        catch = await app.client.ask(
            verbs.runs.fetch(
                keys,
                consumer="web-1.7\x1b[2J",
                free=free,
                lanes=tuple(LANES.values()),
                lifetimes=app.lifetimes,
            )
        )
        for n, delivery in enumerate(catch.deliveries):
            begun = clock.wall_ms() - 1000 * (5 * DAY if queue == "mail" and n == 0 else 3 * DAY)
            run = f"web-1.7\x1b[2J {begun} 1"
            await app.client.ask(Command(["HSET", keys.record(delivery.key), LETTERS["run"], run], as_is))
    keys = app.client.keys("mail")
    record = keys.record(f"{KEY}0")
    await app.client.ask(Command(["HSET", record, LETTERS["progress"], PROGRESS], as_is))
    await app.client.ask(verbs.jobs.cancel(keys, [f"{KEY}1"], app.lifetimes, "wrong mail"))


async def fall_silent(app: App) -> None:
    """The executor has not renewed its lease of a job for some time."""
    keys = app.client.keys("default")
    ((entry, _),) = await app.client.ask(Command(["XRANGE", keys["s"], "-", "+"], as_is))
    words = ["XCLAIM", keys["s"], GROUP, "web-1.7\x1b[2J", 0, entry, "IDLE", 4 * DAY * 1000, "JUSTID"]
    await app.client.ask(Command(words, as_is))


pytestmark = pytest.mark.audit(unfinished=True)


def test_the_jobs_that_run_longest_come_first(busy: Shop) -> None:
    rows = busy.ok("queue", "running").rows
    assert {row[0] for row in rows[1:]} == {f"mail:{KEY}1", f"default:{KEY}3"}
    assert rows[0] == [
        f"mail:{KEY}0",
        "tasks:welcome",
        "web-1.7\\x1b[2J",
        "5 days",
        "1",
        "3 of 10 (30 %), \\x1b[2Jrows",
        "",
    ]
    assert rows[1][3:4] == ["3 days"]


def test_one_queue_and_a_limit(busy: Shop) -> None:
    assert [row[0] for row in busy.ok("queue", "running", "default").rows] == [f"default:{KEY}3"]
    answer = busy.ok("queue", "running", "-n", "1")
    assert [row[0] for row in answer.rows] == [f"mail:{KEY}0"]
    assert answer.err == "More jobs run: --limit lists more than 1.\n"
    assert busy.ok("queue", "running", "mail", "-n", "1").err == (
        "More jobs run in mail: --limit lists more than 1.\n"
    )
    assert busy.ok("queue", "running", "-n", "3").err == ""


def test_what_is_unusual_about_a_job_is_remarked(busy: Shop) -> None:
    busy.do(fall_silent)
    remarks = {row[0]: row[6] for row in busy.ok("queue", "running").rows}
    assert remarks == {
        f"mail:{KEY}0": "",
        f"mail:{KEY}1": "asked to stop: wrong mail",
        f"default:{KEY}3": "executor silent for 4 days",
    }


def test_programs_get_every_fact(busy: Shop) -> None:
    first, *others = busy.ok("queue", "running", "--json").json
    assert len(others) == 2
    assert {**first, "started_at": "", "seconds": 0, "silent": 0} == {
        "id": f"mail:{KEY}0",
        "queue": "mail",
        "task": "tasks:welcome",
        "owner": "web-1.7\x1b[2J",
        "started_at": "",
        "seconds": 0,
        "silent": 0,
        "tries": 1,
        "progress": {"done": 3, "total": 10, "note": "\x1b[2Jrows"},
        "stopping": None,
        "is_copy": False,
    }
    assert 5 * DAY <= first["seconds"] < 6 * DAY


def test_it_fits_terminals(busy: Shop) -> None:
    busy.do(fall_silent)
    assert on_terminal(busy, 60, "queue", "running", "mail") == [
        "ID                                TASK           FOR",
        f"mail:{KEY}0  tasks:welcome  5 days",
        f"mail:{KEY}1  tasks:welcome  3 days",
        "Not shown in 60 columns: executor, try, progress, remarks.",
    ]
    assert on_terminal(busy, 120, "queue", "running", "default") == [
        "ID                                   TASK          EXECUTOR        FOR     TRY  PROGRESS  REMARKS",
        f"default:{KEY}3  tasks:charge  web-1.7\\x1b[2J  3 days    1            executor silent for 4 days",
    ]


def test_nothing_that_runs_is_a_sentence_on_a_terminal_and_nothing_in_a_pipe(shop: Shop) -> None:
    assert on_terminal(shop, 60, "queue", "running") == ["No jobs run."]
    assert on_terminal(shop, 60, "queue", "running", "mail") == ["No jobs run in mail."]
    assert in_pipe(shop, "queue", "running") == []
    assert shop.ok("queue", "running", "--json").json == []
