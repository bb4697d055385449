"""`fennelq queue` and `fennelq info`."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fennelq import App, QueueInfo, clock
from fennelq.broker import verbs
from fennelq.broker.keys import LANES, executors_key
from fennelq.broker.verb import Command
from fennelq.cli.exits import Exit
from fennelq.cli.tables.queues import show_queues
from tests.cli.shop import TASKS, Shop
from tests.cli.terminal import Terminal
from tests.cli.test_commands import fennelq
from tests.cli.test_lists import on_terminal
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Process
from tests.kit.waiting import eventually


def test_list_counts_the_jobs_of_each_queue_by_place(shop: Shop) -> None:
    shop.kill(1)
    for words in (["1"], ["2", "--priority", "high"], ["3", "--delay", "1h"]):
        shop.ok("enqueue", "welcome", *words)
    assert shop.ok("queue", "list").rows == [
        ["default", "0", "0", "0", "0", "1"],
        ["mail", "2", "0", "1", "0", "0"],
    ]
    default, mail = shop.ok("queue", "list", "--json").json
    assert default["ended"]["died"] == 1
    assert mail["lanes"] == {"high": 1, "normal": 1}


def test_what_runs_is_not_counted_as_waiting(shop: Shop) -> None:
    for n in range(3):
        shop.ok("enqueue", "welcome", str(n))
    shop.do(take_two)
    assert shop.ok("queue", "list").rows[1] == ["mail", "1", "2", "0", "0", "0"]
    assert len(shop.ok("queue", "peek", "mail").rows) == 1
    assert shop.ok("queue", "purge", "mail", "--yes").out == "1 job cancelled\n"
    assert shop.ok("queue", "list").rows[1] == ["mail", "0", "2", "0", "0", "0"]
    shop.do(hand_back)
    shop.work()


async def take_two(app: App) -> None:
    """Be an executor that takes two jobs."""
    keys = app.client.keys("mail")
    await app.client.ask(
        verbs.runs.fetch(keys, consumer="me", free=2, lanes=tuple(LANES.values()), lifetimes=app.lifetimes)
    )


async def hand_back(app: App) -> None:
    """Be that executor as it stops."""
    keys = app.client.keys("mail")
    pending = await app.client.ask(verbs.executors.beat(keys, "me", 0, []))
    await app.client.ask(verbs.runs.release(keys, pending.stranded))


def test_peek_shows_what_comes_next(shop: Shop) -> None:
    ids = [
        shop.ok("enqueue", "welcome", *words).out.strip()
        for words in (["1"], ["2"], ["3", "--priority", "high"], ["4", "--delay", "1h"])
    ]
    assert [row[0] for row in shop.ok("queue", "peek", "mail").rows] == [ids[2], ids[0], ids[1]]
    assert [row[0] for row in shop.ok("queue", "peek", "mail", "-n", "1").rows] == [ids[2]]
    [later] = shop.ok("queue", "peek", "mail", "--scheduled", "--json").json
    assert (later["id"], later["arguments"], later["status"]) == (ids[3], [[4], {}], "SCHEDULED")
    assert shop.ok("queue", "peek", "mail", "--retry").rows == []
    assert shop.run("queue", "peek", "mail", "--retry", "--scheduled").code == Exit.USAGE


def test_purge_counts_first_and_needs_a_yes_in_a_pipe(shop: Shop) -> None:
    for words in (["1"], ["2"], ["3", "--delay", "1h"]):
        shop.ok("enqueue", "welcome", *words)
    assert shop.ok("queue", "purge", "mail", "--dry-run").out == "3 jobs would be cancelled\n"
    answer = shop.run("queue", "purge", "mail")
    assert answer.code == Exit.USAGE
    assert answer.err == "fennelq: Cancel 3 jobs in mail (2 waiting, 1 scheduled)? Add --yes to do it.\n"
    assert shop.ok("queue", "purge", "mail", "--yes", "--json").json == {"cancelled": 3}
    assert shop.ok("queue", "purge", "mail", "--yes").out == "0 jobs to cancel\n"
    assert shop.run("queue", "purge", "a b").code == Exit.USAGE


def test_purge_leaves_the_dead_and_other_queues_alone(shop: Shop) -> None:
    shop.kill(1)
    shop.ok("enqueue", "charge", "7")
    shop.ok("enqueue", "welcome", "1")
    shop.ok("queue", "purge", "default", "--yes")
    assert shop.ok("queue", "list").rows == [
        ["default", "0", "0", "0", "0", "1"],
        ["mail", "1", "0", "0", "0", "0"],
    ]


def test_purge_of_many_goes_on_to_the_end(shop: Shop) -> None:
    async def send(app: App) -> None:
        task = app.tasks["tasks:welcome"]
        await app.enqueue([task.job(n) for n in range(250)])

    shop.do(send)
    assert shop.ok("queue", "purge", "mail", "--yes").out == "250 jobs cancelled\n"


def test_info_shows_the_app_redis_and_the_executors(shop: Shop, redis_url: str) -> None:
    shop.ok("enqueue", "welcome", "1")
    given = shop.ok("info", "--json").json
    assert (given["app"], given["path"], given["redis"]) == ("shop", "tasks:app", redis_url)
    assert given["server"].startswith(("valkey ", "redis "))
    assert given["memory"] > 0
    assert {queue["name"]: queue["waiting"] for queue in given["queues"]} == {"default": 0, "mail": 1}
    assert given["executors"] == []
    shown = shop.ok("info").rows
    assert ["app", "shop"] in shown
    assert ["mail", "1", "0", "0", "0", "0"] in shown


WITHOUT_WORKER = "jobs wait in default, mail: no worker runs; start one with `fennelq worker`\n"


def test_jobs_that_wait_without_a_worker_are_named_below_the_table(shop: Shop) -> None:
    shop.ok("enqueue", "welcome", "1")
    shop.ok("enqueue", "charge", "1", "--delay", "1h")
    for command in (["queue", "list"], ["info"]):
        assert shop.ok(*command).err == WITHOUT_WORKER
    for queue in shop.ok("queue", "list", "--json").json:
        assert queue["waiting_because"] == ["no worker runs; start one with `fennelq worker`"]
    shop.work()
    shop.ok("queue", "purge", "default", "--yes")
    assert shop.ok("queue", "list").err == ""


def test_queues_and_tasks_that_no_worker_serves_are_named_below_the_table(shop: Shop) -> None:
    async def note(app: App) -> None:
        now = clock.wall_ms()
        old = b'[{"queue":"default","task":"tasks:charg","why":"unknown task \'tasks:charg\'"}]'
        facts = b'{"beat_ms":%d,"interval":60,"queues":["default"],"too_old_for":%b}' % (now, old)
        await app.client.ask(Command(["HSET", executors_key(app.namespace), "anna", facts], int))

    shop.ok("enqueue", "welcome", "1")
    shop.ok("enqueue", "charge", "1")
    shop.do(note)
    assert shop.ok("queue", "list").err.splitlines() == [
        "jobs wait in default: 1 of 1 executor cannot run some of them: unknown task 'tasks:charg'",
        "jobs wait in mail: no worker serves queue 'mail' (the running ones serve: default); "
        "start one with `fennelq worker -q mail`, or without -q for every queue",
    ]
    shop.work()


def test_info_distinguishes_executors_that_work_from_those_that_ended(shop: Shop) -> None:
    async def note(app: App) -> None:
        here = b'{"beat_ms":%d,"interval":1,"running":2,"concurrency":8,"stuck":1,"done":5,"queues":["mail"]}'
        names = {
            "a": here % clock.wall_ms(),
            "b": here % 1,
            "c": b'{"died":"SIGKILL","beat_ms":1}',
            "d": b"nonsense",
            "e": b'{"beat_ms":1e30,"queues":3}',
        }
        for name, facts in names.items():
            await app.client.ask(Command(["HSET", executors_key(app.namespace), name, facts], int))

    shop.do(note)
    states = {one["name"]: one["state"] for one in shop.ok("info", "--json").json["executors"]}
    assert states == {"a": "works", "b": "silent", "c": "ended: SIGKILL", "d": "silent", "e": "works"}
    [row] = [row for row in shop.ok("info").rows if row[0] == "a"]
    assert (row[1:6], row[7:]) == (["works", "2", "8", "1", "5"], ["mail", "", ""])


def test_a_queue_that_the_user_may_not_read_is_unknown_and_the_others_are_shown(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "few", "on", ">pw", "+@all", "&*", "~fq:{shop}*", "~fq:{shop/mail}*")
        )
        monkeypatch.setenv("FENNELQ_REDIS_URL", server.url.replace("redis://", "redis://few:pw@"))
        shop.ok("enqueue", "welcome", "1")
        for command in (["queue", "list"], ["info"]):
            shown = shop.ok(*command)
            assert ["default", "?", "?", "?", "?", "?"] in shown.rows
            assert ["mail", "1", "0", "0", "0", "0"] in shown.rows
            assert "queue default is unknown: Redis does not permit a command or a key" in shown.err
        default, mail = shop.ok("queue", "list", "--json").json
        assert (default["unknown"], mail["unknown"]) == (True, False)
        client.execute_command("ACL", "DELUSER", "few")


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "list"],
        ["queue", "running"],
        ["queue", "peek", "mail"],
        ["info"],
        ["dlq", "list"],
        ["job", "show", "mail:one"],
    ],
    ids=" ".join,
)
def test_a_user_who_may_only_look_can_do_so(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """The rights are those of the guide."""
    assert fennelq("enqueue", "welcome", "1", "--job-id", "one", folder=shop.folder).code == 0
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "viewer", "on", ">pw", "resetkeys", "%R~fq:{shop*"),
            *("+@read", "+@connection", "+time", "+info", "+evalsha_ro", "+eval_ro"),
        )
        monkeypatch.setenv("FENNELQ_REDIS_URL", server.url.replace("redis://", "redis://viewer:pw@"))
        shown = shop.ok(*words)
        assert "permit" not in shown.err
        assert "?" not in shown.out
        client.execute_command("ACL", "DELUSER", "viewer")


def test_programs_learn_since_when_jobs_wait_and_what_is_next(shop: Shop) -> None:
    shop.kill(1)
    shop.ok("enqueue", "welcome", "1")
    shop.ok("enqueue", "welcome", "2", "--delay", "1h")
    default, mail = shop.ok("queue", "list", "--json").json
    assert (default["waiting_since"], mail["newest_death"], default["next_due"]) == (None, None, None)
    moments = [default["newest_death"], mail["waiting_since"], mail["at"], mail["next_due"]]
    assert moments == sorted(moments)
    assert all(datetime.fromisoformat(moment).tzinfo for moment in moments)


# Watching


def test_a_watched_list_is_drawn_anew_until_ctrl_c(shop: Shop) -> None:
    terminal = Terminal("queue", "list", "--watch", folder=shop.folder, NO_COLOR="1")
    terminal.shows("mail           0        0")
    shop.ok("enqueue", "welcome", "1")
    terminal.shows("mail           1        0")
    terminal.shows("DONE/S  FAILED/S")
    terminal.type("\x03")
    assert terminal.code() == Exit.INTERRUPTED
    assert terminal.text.count("\x1b[H\x1b[2J") >= 2
    assert "Traceback" not in terminal.text


def test_programs_get_a_line_for_each_look_with_the_rates_since_the_one_before(
    shop: Shop, tmp_path: Path
) -> None:
    words = ["queue", "list", "-w", "--json"]
    with Process.module(
        "fennelq",
        *words,
        output=tmp_path / "lines",
        directory=shop.folder,
        environment={"PYTHONPATH": str(PROJECT)},
    ) as watching:
        eventually(lambda: watching.text.count("\n") >= 2, within=30)
        first, second = map(json.loads, watching.text.splitlines()[:2])
    assert [queue["name"] for queue in first["queues"]] == ["default", "mail"]
    assert [queue["rates"] for queue in first["queues"]] == [None, None]
    assert [queue["rates"] for queue in second["queues"]] == [{}, {}]
    assert first["at"] < second["at"]
    assert first["interval"] >= 1


def test_rates_are_shown_beside_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    empty: dict[str, Any] = {
        "waiting": 0,
        "running": 0,
        "scheduled": 0,
        "retry": 0,
        "dead": 0,
        "lanes": {},
        "ended": {},
    }
    queues = [QueueInfo(name=name, **empty) for name in ("a", "b")]
    show_queues(queues, {"a": {"succeeded": 1234.56, "retried": 0.25, "died": 0.5, "cancelled": 9.0}})
    assert [line.split("\t")[6:] for line in capsys.readouterr().out.splitlines()] == [
        ["1,234.6", "0.8"],
        ["", ""],
    ]


# Pausing


SINCE = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by [^@ ]+@\S+: the mail server is down"
WHY = "the mail server is down"


def test_pause_and_resume_say_what_is_paused(shop: Shop) -> None:
    paused = shop.ok("queue", "pause", "mail", "--only", "consume", "--why", WHY)
    assert re.fullmatch(rf"mail: consuming is paused {SINCE}\n", paused.out)
    assert paused.err == ""
    both = shop.ok("queue", "pause", "mail", "--why", WHY)
    assert re.fullmatch(rf"mail: consuming and enqueuing are paused {SINCE}\n", both.out)
    left = shop.ok("queue", "resume", "mail", "--only", "consume")
    assert re.fullmatch(rf"mail: enqueuing is paused {SINCE}\n", left.out)
    assert shop.ok("queue", "resume", "mail").out == "mail resumed\n"
    assert shop.ok("queue", "resume", "mail").out == "mail was not paused\n"


def test_pause_and_resume_print_json(shop: Shop) -> None:
    given = shop.ok("queue", "pause", "mail", "--only", "enqueue", "--why", WHY, "--json").json
    pause = given["paused"]
    assert (given["queue"], pause["consuming"], pause["enqueuing"], pause["why"], pause["ignored_by"]) == (
        "mail",
        False,
        True,
        WHY,
        [],
    )
    assert re.fullmatch(r"[^@]+@.+", pause["who"])
    assert clock.wall_ms() - 60_000 < datetime.fromisoformat(pause["since"]).timestamp() * 1000
    assert shop.ok("queue", "resume", "mail", "--json").json == {"queue": "mail", "paused": None}


def test_a_job_cannot_be_sent_to_a_paused_queue_and_the_error_says_why(shop: Shop) -> None:
    shop.ok("queue", "pause", "mail", "--only", "enqueue", "--why", WHY)
    answer = shop.run("enqueue", "welcome", "1")
    assert answer.code == Exit.FAILED
    assert re.fullmatch(
        rf"fennelq: queue 'mail' takes no jobs: enqueuing is paused {SINCE}\. "
        r"Run the command again after `fennelq queue resume mail`\n",
        answer.err,
    )
    shop.ok("queue", "resume", "mail")
    shop.ok("enqueue", "welcome", "1")


def test_list_info_and_job_show_what_is_paused_and_why(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    shop.ok("queue", "pause", "mail", "--only", "consume", "--why", WHY)
    ends = "; `fennelq queue resume mail` ends the pause"
    for command in (["queue", "list"], ["info"]):
        shown = shop.ok(*command)
        rows = [row for row in shown.rows if row[0] in ("default", "mail")]
        assert rows == [
            ["default", "0", "0", "0", "0", "0", ""],
            ["mail", "1", "0", "0", "0", "0", "consuming"],
        ]
        assert re.fullmatch(rf"queue mail: consuming is paused {SINCE}{ends}\n", shown.err)
    default, mail = shop.ok("queue", "list", "--json").json
    assert (default["paused"], mail["paused"]["consuming"]) == (None, True)
    because = shop.ok("job", "show", job, "--json").json["waiting_because"]
    assert re.fullmatch(rf"consuming of queue 'mail' is paused {SINCE}{ends}", because)
    assert because in shop.ok("job", "show", job).out
    shop.work()
    assert shop.ok("queue", "list").rows[1][1] == "1"
    shop.ok("queue", "resume", "mail")
    shop.work()
    assert shop.ok("queue", "list").rows[1] == ["mail", "0", "0", "0", "0", "0"]


def test_executors_that_ignore_the_pause_are_named_on_stderr(shop: Shop) -> None:
    async def an_old_executor(app: App) -> None:
        facts = f'{{"every_queue":true,"queues":["mail"],"beat_ms":{clock.wall_ms()}}}'
        await app.client.ask(Command(["HSET", executors_key("shop"), "web-1.7.aa", facts], bytes))

    shop.do(an_old_executor)
    warning = (
        "warning: executors with an earlier version of fennelq start the jobs of mail nevertheless: web-1.7.aa. "
        "Restart them with this version, or stop them"
    )
    assert shop.ok("queue", "pause", "mail", "--only", "consume").err.splitlines() == [warning]
    assert warning in shop.ok("queue", "list").err.splitlines()
    assert shop.ok("queue", "pause", "mail", "--json").json["paused"]["ignored_by"] == ["web-1.7.aa"]
    shop.ok("queue", "resume", "mail", "--only", "consume")
    assert "warning" not in shop.ok("queue", "list").err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["pause", "mial"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["resume", "mial"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["pause", "mail", "--only", "both"], Exit.USAGE, "'both' is not one of consume, enqueue"),
        (["pause", "mail", "--why", "a\nb"], Exit.USAGE, "on one line"),
        (["pause", "a b"], Exit.USAGE, "queue 'a b' is not valid"),
        (["pause"], Exit.USAGE, "QUEUE"),
    ],
)
def test_a_wrong_word_pauses_nothing(shop: Shop, words: list[str], code: Exit, sentence: str) -> None:
    answer = shop.run("queue", *words)
    assert (answer.code, sentence in answer.err) == (code, True), answer
    assert [queue["paused"] for queue in shop.ok("queue", "list", "--json").json] == [None, None]


BOUND = """
app.queue("mail", max_waiting=2)
"""


def test_a_bound_is_listed_and_a_job_that_is_refused_is_an_error(shop: Shop) -> None:
    (shop.folder / "tasks.py").write_text(TASKS + BOUND)
    shop.ok("enqueue", "welcome", "1")
    assert [row[6:] for row in shop.ok("queue", "list").rows] == [[""], ["50 % of 2"]]
    default, mail = shop.ok("queue", "list", "--json").json
    assert (default["max_waiting"], mail["max_waiting"], mail["when_full"]) == (None, 2, "raise")
    shop.ok("enqueue", "welcome", "2")
    answer = shop.run("enqueue", "welcome", "3")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert answer.err == (
        "fennelq: queue 'mail' is full: 2 jobs wait, and max_waiting is 2. Run the command again when the workers have "
        "caught up, start more workers, or, if the queue is paused, resume it (`fennelq queue resume mail`)\n"
    )
    shop.work()


def test_a_full_and_paused_queue_fits_into_a_narrow_terminal_and_its_sentence_breaks_at_spaces(
    shop: Shop,
) -> None:
    (shop.folder / "tasks.py").write_text(TASKS + BOUND)
    shop.ok("enqueue", "welcome", "1")
    shop.ok("queue", "pause", "mail", "--only", "consume", "--why", WHY)
    shown = on_terminal(shop, 60, "queue", "list")
    assert shown[:4] == [
        "QUEUE    WAITING  RUNNING  DEAD  FULL       PAUSED",
        "default        0        0     0",
        "mail           1        0     0  50 % of 2  consuming",
        "Not shown in 60 columns: scheduled, retry.",
    ]
    assert re.fullmatch(
        rf"queue mail: consuming is paused {SINCE}; `[^`]*` ends the pause", " ".join(shown[4:])
    )
    assert "`fennelq queue resume mail`" in "\n".join(shown[4:])
    shop.ok("queue", "purge", "mail", "--yes")
    shop.ok("queue", "resume", "mail")
