"""`fennelq job` and `fennelq enqueue`."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from fennelq import App, Event, JobInfo, Status
from fennelq.broker import verbs
from fennelq.broker.keys import LANES
from fennelq.cli import output
from fennelq.cli.exits import Exit
from fennelq.cli.story import table as story_table
from fennelq.cli.tables.table import width
from fennelq.model.runs import Traces
from fennelq.model.story import story
from tests.cli.shop import Answer, Shop
from tests.cli.terminal import Terminal
from tests.kit.proxy import Proxy
from tests.kit.spawn import PROJECT, Spawner
from tests.kit.workers import running, running_aside


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
        (["welcome", "1", "--key", "k", "--dedupe", "once"], Exit.USAGE, "'once' is not one of until_start"),
        (["welcome", "1", "--key", "k", "--on-duplicate", "skip"], Exit.USAGE, "'skip' is not one of return"),
        (["welcome", "1", "--key", "k", "--debounce-wait", "2"], Exit.CONFIGURATION, 'dedupe="debounce"'),
        (["welcome", "1", "--dedupe", "until_done"], Exit.CONFIGURATION, "this call has no key"),
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
    assert (facts["status"], facts["key"]) == ("SCHEDULED", "once")
    assert facts["due_at"] < facts["expires_at"]


def test_a_second_call_with_the_same_key_is_reported_as_such(shop: Shop) -> None:
    first = shop.ok("enqueue", "welcome", "1", "--key", "once")
    second = shop.ok("enqueue", "welcome", "1", "--key", "once")
    assert second.out == first.out
    assert second.err == "no new job: an earlier call with the same key or id has created this one\n"
    assert shop.run("enqueue", "welcome", "2", "--job-id", "x").code == 0
    assert shop.run("enqueue", "welcome", "3", "--job-id", "x").code == Exit.FAILED


def test_a_debounced_call_replaces_the_arguments_of_the_job_that_waits(shop: Shop) -> None:
    mode = ("--key", "k", "--dedupe", "debounce", "--debounce-wait", "1h", "--max-wait", "3h")
    before = datetime.now(UTC)
    job = shop.ok("enqueue", "welcome", "1", *mode).out.strip()
    assert shop.ok("enqueue", "welcome", "2", *mode, "--json").json == {"id": job, "deduplicated": True}
    facts = shop.ok("job", "show", job, "--json").json
    assert (facts["arguments"], facts["key"], facts["dedupe"]) == ([[2], {}], "k", "debounce")
    due, due_by = (datetime.fromisoformat(facts[name]) for name in ("due_at", "due_by"))
    assert [round((moment - before).total_seconds() / 3600) for moment in (due, due_by)] == [1, 3]


def test_a_call_may_hold_its_key_for_a_time_and_say_what_a_duplicate_does(shop: Shop) -> None:
    mode = ("--key", "k", "--dedupe", "throttle", "--ttl", "1h")
    job = shop.ok("enqueue", "welcome", "1", *mode).out.strip()
    assert shop.ok("enqueue", "welcome", "2", *mode).out.strip() == job
    refused = shop.run("enqueue", "welcome", "2", *mode, "--on-duplicate", "raise")
    assert (refused.code, refused.out) == (Exit.FAILED, "")
    assert job in refused.err
    assert shop.ok("job", "show", job, "--json").json["arguments"] == [[1], {}]
    other = ("--key", "other", "--dedupe", "until_start", "--on-duplicate", "replace")
    job = shop.ok("enqueue", "welcome", "1", *other).out.strip()
    assert shop.ok("enqueue", "welcome", "2", *other).out.strip() == job
    assert shop.ok("job", "show", job, "--json").json["arguments"] == [[2], {}]


def test_a_task_this_app_does_not_have_is_sent_with_the_option_anyway(shop: Shop) -> None:
    job = shop.ok(
        "enqueue", "other:task", "1", "two", "-k", "x=3", "--queue", "other", "--anyway"
    ).out.strip()
    info = shop.do(lambda app: app.jobs.info(job))
    assert info is not None
    assert info.arguments == b'[[1,"two"],{"x":3}]'
    # The name of the text is unknown here: it may be a password.
    assert shop.ok("job", "show", job, "--json").json["arguments"] == [[1, "[redacted]"], {"x": 3}]


# Looking


def test_show_prints_what_is_known(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    facts = shop.ok("job", "show", job).facts
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


# The story


KILLED = JobInfo(
    id="mail:0199c0de7f21",
    task="tasks:welcome",
    queue="mail",
    status=Status.SUCCESS,
    tries=1,
    deliveries=2,
    enqueued_at=datetime(2026, 5, 18, 14, 2, 16, tzinfo=UTC),
    started_at=datetime(2026, 5, 18, 14, 2, 46, tzinfo=UTC),
    ended_at=datetime(2026, 5, 18, 14, 3, 2, tzinfo=UTC),
)
RECOVERED = Event(
    datetime(2026, 5, 18, 14, 2, 46, tzinfo=UTC),
    "recovered",
    "web-3.812.9f2a1c",
    datetime(2026, 5, 18, 14, 2, 17, tzinfo=UTC),
    "SIGKILL",
)
STORY = story(KILLED, [RECOVERED], datetime(2026, 5, 18, 15, tzinfo=UTC), Traces("web-1.77.51c0de"))


def on_screen(monkeypatch: pytest.MonkeyPatch, columns: int, term: str = "xterm") -> None:
    """What is printed from now on goes to such a terminal, in Greenwich."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(output, "moment", "{:%Y-%m-%d %H:%M:%S}".format)
    for name, value in {"COLUMNS": str(columns), "TERM": term, "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def test_the_story_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_screen(monkeypatch, 60)
    story_table.opening(KILLED, STORY)
    assert capsys.readouterr().out.splitlines() == [
        "It succeeded on web-1.77.51c0de in its second run, which",
        "took 16 s. Executor web-3.812.9f2a1c was killed (SIGKILL)",
        "during the first run; when its lease had run out,",
        "web-1.77.51c0de took the job over.",
        "",
        "RUN  EXECUTOR       BEGAN                TOOK  OUTCOME",
        "  1  …3.812.9f2a1c  2026-05-18 14:02:17  29 s  lost: SIGKILL",
        "  2  …-1.77.51c0de  2026-05-18 14:02:46  16 s  succeeded",
        "",
        "2026-05-18 14:02:16  Sent to queue 'mail'",
        "2026-05-18 14:02:17  First run begins on web-3.812.9f2a1c,",
        "                     1.0 s after it was sent",
        "2026-05-18 14:02:46  Taken over after 29 s, because its",
        "                     executor was killed (SIGKILL)",
        "2026-05-18 14:02:46  Second run begins on web-1.77.51c0de",
        "2026-05-18 14:03:02  Succeeded after 16 s",
    ]


@pytest.mark.parametrize(("term", "full", "empty"), [("xterm", "█", "·"), ("dumb", "#", ".")])
def test_each_run_has_a_bar_on_a_wide_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], term: str, full: str, empty: str
) -> None:
    on_screen(monkeypatch, 120, term)
    story_table.opening(KILLED, STORY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:6] == [
        "RUN  EXECUTOR          BEGAN                TOOK  OUTCOME        SENT TO END",
        f"  1  web-3.812.9f2a1c  2026-05-18 14:02:17  29 s  lost: SIGKILL  {full * 20}{empty * 10}",
        f"  2  web-1.77.51c0de   2026-05-18 14:02:46  16 s  succeeded      {empty * 19}{full * 11}",
    ]


def test_in_a_pipe_each_part_of_the_story_is_a_line_with_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    story_table.opening(KILLED, STORY)
    assert capsys.readouterr().out.splitlines() == [
        f"story\t{STORY.sentence}",
        "run\t1\tweb-3.812.9f2a1c\t2026-05-18T14:02:17.000Z\t29\tlost: SIGKILL",
        "run\t2\tweb-1.77.51c0de\t2026-05-18T14:02:46.000Z\t16\tsucceeded",
        "happened\t2026-05-18T14:02:16.000Z\tSent to queue 'mail'",
        "happened\t2026-05-18T14:02:17.000Z\tFirst run begins on web-3.812.9f2a1c, 1.0 s after it was sent",
        "happened\t2026-05-18T14:02:46.000Z\tTaken over after 29 s, because its executor was killed (SIGKILL)",
        "happened\t2026-05-18T14:02:46.000Z\tSecond run begins on web-1.77.51c0de",
        "happened\t2026-05-18T14:03:02.000Z\tSucceeded after 16 s",
    ]


@pytest.mark.parametrize("columns", [60, 120])
def test_hostile_names_neither_control_a_terminal_nor_break_its_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    on_screen(monkeypatch, columns)
    hostile = "\x1b[2J\u202e" + "x" * 300
    event = RECOVERED._replace(owner=hostile, more=hostile)
    hostile_story = story(KILLED, [event], datetime(2026, 5, 18, 15, tzinfo=UTC), Traces(hostile))
    story_table.opening(KILLED, hostile_story)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() and width(line) <= columns for line in lines), lines


def test_show_begins_with_the_story_and_ends_with_the_result(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    shop.work()
    answer = shop.ok("job", "show", job)
    assert answer.out.startswith("story\tIt succeeded on ")
    assert answer.facts["result"] == '"hello 42"'
    found = shop.ok("job", "show", job, "--json").json
    assert found["story"]["sentence"] == answer.facts["story"]
    assert [run["outcome"] for run in found["story"]["runs"]] == ["succeeded"]
    assert found["story"]["lines"][0]["text"] == "Sent to queue 'mail'"
    assert found["result"] == "hello 42"


def test_a_long_result_is_cut(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "1", "x" * 5000).out.strip()
    shop.work()
    result = shop.ok("job", "show", job).facts["result"]
    assert (len(result), result[1995:]) == (2020, "xxxxx… (5,004 characters)")
    assert len(shop.ok("job", "show", job, "--json").json["result"]) == 5002


# Following a job


def test_following_prints_what_happens_and_ends_with_the_job(shop: Shop, spawn: Spawner) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    words = ("job", "show", job, "--follow")
    following = spawn("fennelq", *words, environment={"PYTHONPATH": str(PROJECT)}, directory=shop.folder)
    following.wait_for("arguments\t", within=60)
    with capture_logs(), running_aside(shop.app):
        assert following.returncode(60) == Exit.OK, following.text
    lines = following.text.splitlines()
    assert lines[0] == "story\tIt has not begun yet: no worker runs; start one with `fennelq worker`."
    assert lines[-1] == 'result\t"hello 42"'
    assert lines[-2].startswith("story\tIt succeeded on ")
    happened = [line.split("\t")[2] for line in lines if line.startswith("happened\t")]
    assert happened[0] == "Sent to queue 'mail'"
    assert happened[-2].startswith("First run begins on ")
    assert happened[-1].startswith("Succeeded after ")


def test_following_a_job_that_has_ended_exits_as_its_end(shop: Shop) -> None:
    [dead] = shop.kill(1)
    answer = shop.run("job", "show", dead, "--follow")
    assert answer.code == Exit.FAILED
    assert answer.out.splitlines()[-1].startswith(
        "story\tIt died after 1 try: tasks.CardRefused: no money for 0. "
    )
    records = [
        json.loads(line) for line in shop.run("job", "show", dead, "--follow", "--json").out.splitlines()
    ]
    assert [list(record) for record in records[:-1]] == [["id", "happened"]] * 3
    assert records[-1]["story"]["lines"] == [record["happened"] for record in records[:-1]]
    assert shop.run("job", "show", "mail:unknown", "--follow").code == Exit.NOT_FOUND


def test_following_ends_with_ctrl_c(shop: Shop) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    terminal = Terminal("job", "show", job, "--follow", folder=shop.folder)
    terminal.shows("[[1],{}]", within=60)
    terminal.type("\x03")
    assert terminal.code() == Exit.INTERRUPTED
    sentence = f"Interrupted: job {job} goes on; `fennelq job show {job} --follow` follows it again."
    assert sentence in " ".join(terminal.text.split())
    assert "Traceback" not in terminal.text


def test_following_survives_an_outage_of_redis(shop: Shop, proxy: Proxy) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    environment = {"FENNELQ_REDIS_URL": proxy.url, "FENNELQ_ENQUEUE_TIMEOUT": "1"}
    terminal = Terminal("job", "show", job, "--follow", folder=shop.folder, columns=400, **environment)
    terminal.shows("[[1],{}]", within=60)
    proxy.refuse()
    terminal.shows("The command goes on when Redis is reachable again", within=60)
    proxy.up()
    shop.work()
    terminal.shows('"hello 1"', within=60)
    assert terminal.code() == 0


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
    assert shop.ok("job", "cancel", "--status", "scheduled", "--yes", "--json").json["cancelled"] == 1
    assert shop.ok("job", "cancel", "--all", "--yes").out == "1 job cancelled or asked to stop\n"
    assert shop.ok("job", "cancel", "--all", "--dry-run", "--json").json["count"] == 0


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
        (["mail:1", "--limit", "1"], Exit.USAGE, "but not both"),
        (["--queue", "mail", "--wait", "1s"], Exit.USAGE, "--wait is for jobs that are named by their ids"),
        (["nonsense"], Exit.USAGE, "'nonsense' is not a job id"),
        (["--queue", "mial"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["--status", "dead"], Exit.USAGE, "'dead' is not one of SCHEDULED, SENT, EXECUTING, RETRY"),
        (["--older-than", "soon"], Exit.USAGE, "is not a duration"),
        (["--limit", "0", "--all"], Exit.USAGE, "--limit"),
        (["--queue", "mail", "--where", "task:welcome"], Exit.USAGE, "--where stands alone"),
        (["--where", "taks:welcome"], Exit.USAGE, "unknown filter word 'taks': did you mean 'task'?"),
        (["--where", "queue:mial"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (
            ["--where", "state:dead"],
            Exit.USAGE,
            "jobs in state dead cannot be cancelled, only limited, retry",
        ),
        (["--where", "state:success"], Exit.USAGE, "jobs in state success cannot be cancelled"),
        (["--where", "mail:1"], Exit.USAGE, "name these jobs by their ids"),
        (
            ["--where", ""],
            Exit.USAGE,
            "an empty filter selects every job of the app: write one, or pass --all",
        ),
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
