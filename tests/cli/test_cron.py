"""`fennelq cron`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.verb import Command, Word, as_is
from fennelq.cli.exits import Exit
from tests.cli.shop import TASKS, Answer, Shop

NIGHTLY = """
@app.cron("0 9 * * 1-5", tz="Europe/Paris", name="nightly", overlap="skip")
async def report(kind: str = "daily") -> str:
    return kind
"""


@pytest.fixture
def scheduled(shop: Shop) -> Shop:
    """A project whose code declares the schedule `nightly`, known to Redis because a worker has run."""
    (shop.folder / "tasks.py").write_text(TASKS + NIGHTLY)
    shop.work()
    return shop


def add(shop: Shop, *words: str, name: str = "mine") -> Answer:
    return shop.ok("cron", "add", "welcome", "7", "--name", name, *(words or ("--every", "1h")))


def shown(shop: Shop, name: str = "mine") -> dict[str, Any]:
    reported: dict[str, Any] = shop.ok("cron", "show", name, "--json").json
    return reported


# list and show


def test_list_prints_one_line_per_schedule_with_times_in_its_zone_and_in_words(scheduled: Shop) -> None:
    add(scheduled, "--cron", "0 9 * * *", "--tz", "America/New_York")
    mine, nightly = scheduled.ok("cron", "list").rows
    assert [mine[0], mine[1], mine[8]] == ["mine", "0 9 * * * America/New_York", "tasks:welcome"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT09:00:00.000-0[45]:00", mine[2])
    assert re.fullmatch(r"in \d+ h( \d+ min)?|in \d+ min|in \d+ s", mine[3])
    assert mine[4:8] == ["", "", "0", "active"]
    assert [nightly[0], nightly[1]] == ["nightly", "0 9 * * 1-5 Europe/Paris"]
    assert re.fullmatch(r"\S+T09:00:00.000\+0[12]:00", nightly[2])


def test_list_shows_when_it_last_ran(shop: Shop) -> None:
    add(shop)
    shop.ok("cron", "run", "mine")
    (row,) = shop.ok("cron", "list").rows
    assert re.fullmatch(r"\S+\+00:00", row[4])
    assert re.fullmatch(r"now|\d s ago", row[5])
    assert row[6] == "1"


def test_list_is_empty_when_there_is_none(shop: Shop) -> None:
    assert shop.ok("cron", "list").out == ""
    assert shop.ok("cron", "list", "--json").json == []


def test_a_task_that_the_app_does_not_have_is_pointed_out(shop: Shop) -> None:
    shop.ok("cron", "add", "other:task", "--every", "1h", "--name", "theirs", "--anyway")
    (row,) = shop.ok("cron", "list").rows
    assert row[8] == "other:task (not of this app)"


def test_show_prints_everything(shop: Shop) -> None:
    when = ["--cron", "0 9 * * *", "--tz", "Europe/Paris", "--overlap", "queue", "--catchup", "all:3"]
    limits = ["--jitter", "30s", "--start", "2026-01-01", "--end", "2099-01-01T12:00+00:00"]
    job = ["--queue", "slow", "--priority", "high", "--expires", "90s", "-k", "template=hi"]
    add(shop, *when, *limits, *job)
    reported = shown(shop)
    assert {
        name: reported[name] for name in reported if not name.startswith(("next", "start", "end", "last"))
    } == {
        "name": "mine",
        "state": "active",
        "source": "runtime",
        "service": None,
        "service_seen": None,
        "task": "tasks:welcome",
        "queue": "slow",
        "priority": "high",
        "arguments": [[7], {"template": "hi"}],
        "options": None,
        "expires": 90.0,
        "cron": "0 9 * * *",
        "every": None,
        "tz": "Europe/Paris",
        "overlap": "queue",
        "catchup": "all:3",
        "jitter": 30.0,
        "runs": 0,
        "waiting": 0,
        "skipped": 0,
        "error_count": 0,
    }
    assert datetime.fromisoformat(reported["end"]) == datetime(2099, 1, 1, 12, tzinfo=UTC)
    rows = shop.ok("cron", "show", "mine").rows
    assert ["cron", "0 9 * * *"] in rows
    assert ["arguments", '[[7],{"template":"hi"}]'] in rows
    (following,) = [row[1] for row in rows if row[0] == "next_run"]
    assert re.fullmatch(r"\S+T09:00:00.000\+0[12]:00 · in .+", following)


def test_show_prints_the_last_job_and_its_error(shop: Shop) -> None:
    shop.ok("cron", "add", "charge", "5", "--every", "1h", "--name", "mine")
    job = shop.ok("cron", "run", "mine").out.strip()
    shop.work()
    reported = shown(shop)
    assert (reported["last_job"], reported["last_status"], reported["runs"]) == (job, "DEAD", 1)
    assert reported["last_error"] == "tasks.CardRefused: no money for 5"
    assert ["last_status", "DEAD"] in shop.ok("cron", "show", "mine").rows


def test_what_a_terminal_would_obey_is_escaped(shop: Shop) -> None:
    shop.ok("cron", "add", "shout", "--every", "1h", "--name", "mine")
    shop.ok("cron", "run", "mine")
    shop.work()
    out = shop.ok("cron", "show", "mine").out
    assert "\x1b" not in out
    assert r"\x1b[2Jlook\tat\nme" in out


def test_a_schedule_that_only_a_later_version_can_read_is_left_out_and_named(shop: Shop) -> None:
    async def put(app: App) -> None:
        strange = b'{"name":"strange","shards":4}'
        await app.client.ask(verbs.schedules.schedule(AppKeys("shop"), "put", "strange", strange, 1))

    add(shop)
    shop.do(put)
    with capture_logs() as logged:
        assert [row[0] for row in shop.ok("cron", "list").rows] == ["mine"]
    assert [line["schedule"] for line in logged] == ["strange"]
    refused = shop.run("cron", "show", "strange")
    assert (refused.code, refused.err.startswith("fennelq: schedule 'strange' cannot be read")) == (
        Exit.FAILED,
        True,
    )
    assert shop.ok("cron", "remove", "strange", "--yes").out == "strange removed\n"


# add


def test_add_prints_the_name_and_when_it_runs_next(shop: Shop) -> None:
    answer = shop.ok("cron", "add", "welcome", "7", "--every", "90s")
    assert answer.out == "tasks.welcome\n"
    assert re.fullmatch(r"next run: \S+\+00:00 · in \d+ (s|min)\n|next run: \S+ · now\n", answer.err)
    assert shown(shop, "tasks.welcome")["every"] == 90.0


def test_add_again_changes_it(shop: Shop) -> None:
    add(shop)
    add(shop, "--every", "2h")
    assert len(shop.ok("cron", "list").rows) == 1
    assert shown(shop)["every"] == 7200.0


def test_arguments_are_given_one_by_one_or_all_at_once(shop: Shop) -> None:
    add(shop, "--every", "1h", "--args", '["hi"]')
    assert shown(shop)["arguments"] == [[7, "hi"], {}]
    refused = shop.run("cron", "add", "welcome", "--every", "1h", "--args", "7")
    assert (refused.code, "is not a JSON array" in refused.err) == (Exit.USAGE, True)


def test_what_was_added_is_shown_as_json(shop: Shop) -> None:
    reported = add(shop, "--every", "1h", "--json").json
    assert reported == {**shown(shop), "next_in": reported["next_in"]}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("7", "--cron", "0 9"), "cron expression '0 9' cannot be read: it has five fields"),
        (("7", "--cron", "0 9 * * *", "--tz", "Europe/Pariss"), "did you mean 'Europe/Paris'?"),
        (("7",), "give either a cron expression or an interval"),
        (("7", "--cron", "@daily", "--every", "1h"), "give either a cron expression or an interval"),
        (("7", "--every", "0"), "an interval is at least 0.01 s"),
        (("7", "--every", "1h", "--overlap", "maybe"), "overlap is allow, skip or queue"),
        (("7", "--every", "1h", "--catchup", "some"), "catchup is none, last or all:<n>"),
        (("seven", "--every", "1h"), "parameter 'user_id'"),
        (("--every", "1h"), "user_id"),
        (("7", "--every", "soon"), "is not a duration"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    shop: Shop, words: tuple[str, ...], reason: str
) -> None:
    answer = shop.run("cron", "add", "welcome", *words)
    assert answer.code == Exit.USAGE
    assert reason in " ".join(answer.err.replace("│", " ").split())
    assert shop.ok("cron", "list").out == ""


def test_a_task_that_does_not_exist_is_not_found(shop: Shop) -> None:
    answer = shop.run("cron", "add", "tasks:welcom", "7", "--every", "1h")
    assert (answer.code, answer.err) == (
        Exit.NOT_FOUND,
        "fennelq: unknown task 'tasks:welcom': did you mean 'tasks:welcome'?\n",
    )


def test_what_the_code_declares_cannot_be_changed_here(scheduled: Shop) -> None:
    answer = scheduled.run("cron", "add", "welcome", "7", "--every", "1h", "--name", "nightly")
    assert (answer.code, "declared in code" in answer.err) == (Exit.USAGE, True)


# pause, resume, run, remove


def test_pause_and_resume_also_what_the_code_declares(scheduled: Shop) -> None:
    add(scheduled)
    assert scheduled.ok("cron", "pause", "mine", "nightly").out == "mine paused\nnightly paused\n"
    assert [row[7] for row in scheduled.ok("cron", "list").rows] == ["paused", "paused"]
    assert shown(scheduled)["next_run"] is None
    assert scheduled.ok("cron", "resume", "nightly", "--json").json == {"resumed": ["nightly"]}
    assert (shown(scheduled, "nightly")["state"], shown(scheduled)["state"]) == ("active", "paused")


def test_run_prints_the_id_of_the_job(shop: Shop) -> None:
    add(shop)
    job = shop.ok("cron", "run", "mine").out.strip()
    assert re.fullmatch(r"mail:cron\.mine\.now\.[0-9a-f]{16}", job)
    assert shop.ok("cron", "run", "mine", "--json").json["id"] != job
    shop.work()
    assert shop.ok("job", "wait", job).out == '"hello 7"\n'


def test_run_can_wait_for_the_result(shop: Shop) -> None:
    add(shop)
    answer = shop.run("cron", "run", "mine", "--wait", "--timeout", "0.01")
    assert answer.code == Exit.TIMED_OUT


def test_remove_asks_for_a_yes_in_a_pipe(shop: Shop) -> None:
    add(shop)
    add(shop, name="other")
    answer = shop.run("cron", "remove", "mine", "other")
    assert (answer.code, answer.err) == (
        Exit.USAGE,
        "fennelq: Remove 2 schedules (mine, other) for good? Add --yes to do it.\n",
    )
    assert shop.ok("cron", "remove", "mine", "--yes").out == "mine removed\n"
    assert shop.ok("cron", "remove", "other", "--yes", "--json").json == {"removed": ["other"]}
    assert shop.ok("cron", "list").out == ""


def test_what_the_code_declares_cannot_be_removed_here_and_nothing_else_is(scheduled: Shop) -> None:
    add(scheduled)
    answer = scheduled.run("cron", "remove", "mine", "nightly", "--yes")
    assert answer.code == Exit.FAILED
    assert answer.err == (
        "fennelq: schedule 'nightly' is declared in code by tasks:shop, whose workers are running: "
        "remove it there, or pause it\n"
    )
    assert len(scheduled.ok("cron", "list").rows) == 2


def test_show_of_a_declared_schedule_prints_its_service_and_when_it_was_last_there(scheduled: Shop) -> None:
    reported = shown(scheduled, "nightly")
    assert (reported["source"], reported["service"]) == ("code", "tasks:shop")
    seen = datetime.fromisoformat(reported["service_seen"])
    assert abs(datetime.now(UTC) - seen) < timedelta(minutes=2)


def test_what_a_service_that_is_gone_has_declared_can_be_removed(scheduled: Shop) -> None:
    async def leave(app: App) -> None:
        long_ago = await app.client.ask(verbs.server.now()) - 61_000
        words: list[Word] = ["HSET", AppKeys("shop")["cron:sources"], "seen:tasks:shop", long_ago]
        await app.client.ask(Command(words, as_is))

    scheduled.do(leave)
    assert scheduled.ok("cron", "remove", "nightly", "--yes").out == "nightly removed\n"
    assert scheduled.ok("cron", "list").rows == []


@pytest.mark.parametrize("command", ["show", "pause", "resume", "run", "remove"])
def test_an_unknown_schedule_is_an_error_with_the_nearest_name(shop: Shop, command: str) -> None:
    add(shop)
    answer = shop.run("cron", command, "mien", *(["--yes"] if command == "remove" else []))
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert answer.err == "fennelq: no schedule 'mien': did you mean 'mine'?\n"


def test_of_several_names_one_of_which_is_unknown_none_is_touched(shop: Shop) -> None:
    add(shop)
    assert shop.run("cron", "pause", "mine", "nope").code == Exit.NOT_FOUND
    assert shown(shop)["state"] == "active"


# next


def test_next_previews_an_expression_without_an_app_or_a_server(folder: Path, shop: Shop) -> None:
    answer = shop.ok(
        "cron", "next", "30 2 * * *", "--tz", "Europe/Paris", "--from", "2026-03-27T12:00+01:00", "-n", "3"
    )
    assert [row[0] for row in answer.rows] == [
        "2026-03-28T02:30:00.000+01:00",
        "2026-03-29T03:00:00.000+02:00",
        "2026-03-30T02:30:00.000+02:00",
    ]


def test_next_begins_now_and_prints_it_in_words(shop: Shop) -> None:
    rows = shop.ok("cron", "next", "* * * * *").rows
    assert len(rows) == 10
    assert re.fullmatch(r"in \d+ s|now", rows[0][1])
    assert re.fullmatch(r"in \d+ min", rows[9][1])
    reported = shop.ok("cron", "next", "* * * * *", "-n", "1", "--json").json
    assert set(reported[0]) == {"at", "in"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("0 9",), "cron expression '0 9' cannot be read: it has five fields"),
        (("0 0 30 2 *",), "'0 0 30 2 *' never happens"),
        (("@daily", "--tz", "nowhere"), "'nowhere' is not a time zone: write an IANA name like Europe/Paris"),
    ],
)
def test_next_refuses_what_cannot_be_read(shop: Shop, words: tuple[str, ...], reason: str) -> None:
    answer = shop.run("cron", "next", *words)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert answer.err.startswith(f"fennelq: {reason}")
