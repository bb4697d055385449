"""What listing commands print: on terminals of 60, 80 and 120 columns, in a pipe, and when there is nothing to list."""

from __future__ import annotations

import re

import pytest

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.keys import executors_key, queue_keys
from fennelq.broker.verb import Command
from fennelq.broker.verbs.times import Report
from fennelq.cli.tables.table import width
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.cli.test_commands import fennelq

KEY = "01a1efd7ac9df1e81f613358364"
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_PIPED_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TIME = "2026-11-18 10:00:00"


_WHY = "jobs wait in "
"""Sentences below a table of queues that no worker serves: shown in full at any width (`test_commands.py`)."""
_WHY_WRAPPED = re.compile(rf"^{_WHY}.*?`fennelq worker`\n", re.MULTILINE | re.DOTALL)


def on_terminal(shop: Shop, columns: int, *words: str, **environment: str) -> list[str]:
    """The lines on a terminal without colours; `info` also prints values of any length, which wrap."""
    terminal = Terminal(*words, folder=shop.folder, columns=columns, TZ="UTC", NO_COLOR="1", **environment)
    shown = _WHY_WRAPPED.sub("", "\n".join([*terminal.lines(), ""]))
    lines = [_TIME.sub(TIME, line) for line in shown.splitlines()]
    assert words == ("info",) or all(width(line) <= columns for line in lines), lines
    return lines


def in_pipe(shop: Shop, *words: str) -> list[str]:
    """The lines in a pipe, of a process that prints nothing else."""
    answer = fennelq(*words, folder=shop.folder)
    assert (answer.code, [line for line in answer.err.splitlines() if not line.startswith(_WHY)]) == (0, [])
    return [_PIPED_TIME.sub("TIME", line) for line in answer.out.splitlines()]


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A shop with two dead jobs and three that wait."""
    for n, task in enumerate(("charge", "shout")):
        shop.ok("enqueue", task, *(["7"] if task == "charge" else []), "--job-id", f"{KEY}{n}")
        shop.work()
    for n in range(2):
        shop.ok("enqueue", "welcome", str(n), "日本語のテンプレート", "--job-id", f"{KEY}{n}")
    shop.ok("enqueue", "welcome", "2", "--delay", "1h", "--job-id", "later")
    return shop


def test_dlq_list(busy: Shop) -> None:
    assert on_terminal(busy, 60, "dlq", "list") == [
        "ID                                    ERROR",
        "default:01a1efd7ac9df1e81f6133583641  ValueError",
        "default:01a1efd7ac9df1e81f6133583640  tasks.CardRefused",
        "Not shown in 60 columns: died, task, message.",
    ]
    assert on_terminal(busy, 80, "dlq", "list") == [
        "ID                                    TASK          ERROR          MESSAGE",
        "default:01a1efd7ac9df1e81f6133583641  tasks:shout   ValueError     \\x1b[2Jlook\\…",
        "default:01a1efd7ac9df1e81f6133583640  tasks:charge  ….CardRefused  no money for…",
        "Not shown in 80 columns: died.",
    ]
    assert on_terminal(busy, 120, "dlq", "list") == [
        "DIED                 ID                                    TASK          ERROR              MESSAGE",
        f"{TIME}  default:01a1efd7ac9df1e81f6133583641  tasks:shout   ValueError         \\x1b[2Jlook\\tat\\nme",
        f"{TIME}  default:01a1efd7ac9df1e81f6133583640  tasks:charge  tasks.CardRefused  no money for 7",
    ]
    assert in_pipe(busy, "dlq", "list") == [
        "TIME\tdefault:01a1efd7ac9df1e81f6133583641\ttasks:shout\tValueError\t\\x1b[2Jlook\\tat\\nme",
        "TIME\tdefault:01a1efd7ac9df1e81f6133583640\ttasks:charge\ttasks.CardRefused\tno money for 7",
    ]


def test_a_narrow_list_of_groups_shows_their_messages(busy: Shop) -> None:
    head, *rows, rest = on_terminal(busy, 60, "dlq", "list", "--group")
    assert head.split() == ["JOBS", "FINGERPRINT", "TASK", "ERROR", "MESSAGE"]
    assert sorted(row.split("  ")[-1] for row in rows) == ["\\x1b[2Jlook\\…", "no money for…"]
    assert rest == "Not shown in 60 columns: newest."


def test_queue_list(busy: Shop) -> None:
    busy.ok("enqueue", "welcome", "1", "--queue", "a-queue-with-a-rather-long-name")
    table = [
        "QUEUE                            WAITING  RUNNING  SCHEDULED  RETRY  DEAD",
        "a-queue-with-a-rather-long-name        1        0          0      0     0",
        "default                                0        0          0      0     2",
        "mail                                   2        0          1      0     0",
    ]
    assert on_terminal(busy, 60, "queue", "list") == [
        "QUEUE               WAITING  RUNNING  SCHEDULED  RETRY  DEAD",
        "a-queue-with-a-ra…        1        0          0      0     0",
        "default                   0        0          0      0     2",
        "mail                      2        0          1      0     0",
    ]
    assert on_terminal(busy, 80, "queue", "list") == table
    assert on_terminal(busy, 120, "queue", "list") == table
    assert in_pipe(busy, "queue", "list") == [
        "a-queue-with-a-rather-long-name\t1\t0\t0\t0\t0",
        "default\t0\t0\t0\t0\t2",
        "mail\t2\t0\t1\t0\t0",
    ]


def test_queue_peek(busy: Shop) -> None:
    assert on_terminal(busy, 60, "queue", "peek", "mail") == [
        "ID                                 TASK          ARGUMENTS",
        'mail:01a1efd7ac9df1e81f6133583640  …sks:welcome  [[0,"日本…',
        'mail:01a1efd7ac9df1e81f6133583641  …sks:welcome  [[1,"日本…',
        "Not shown in 60 columns: priority, tries, enqueued.",
    ]
    assert on_terminal(busy, 80, "queue", "peek", "mail") == [
        "ID                                 TASK          ENQUEUED             ARGUMENTS",
        f'mail:01a1efd7ac9df1e81f6133583640  …sks:welcome  {TIME}  [[0,"日本…',
        f'mail:01a1efd7ac9df1e81f6133583641  …sks:welcome  {TIME}  [[1,"日本…',
        "Not shown in 80 columns: priority, tries.",
    ]
    assert on_terminal(busy, 120, "queue", "peek", "mail") == [
        "ID                                 TASK           PRIORITY  TRIES  ENQUEUED             ARGUMENTS",
        f'mail:01a1efd7ac9df1e81f6133583640  tasks:welcome  normal        0  {TIME}  [[0,"日本語のテンプレート"],{{}}]',
        f'mail:01a1efd7ac9df1e81f6133583641  tasks:welcome  normal        0  {TIME}  [[1,"日本語のテンプレート"],{{}}]',
    ]
    assert in_pipe(busy, "queue", "peek", "mail") == [
        f'mail:01a1efd7ac9df1e81f613358364{n}\ttasks:welcome\tnormal\t0\tTIME\t\t[[{n},"日本語のテンプレート"],{{}}]'
        for n in range(2)
    ]


def test_cron_list(shop: Shop) -> None:
    shop.ok(
        *("cron", "add", "welcome", "7", "--cron", "0 9 * * 1-5", "--tz", "Europe/Paris"),
        *("--start", "2099-01-05", "--name", "a-report-of-every-order"),
    )
    days = re.compile(r"in \d\d,\d{3} days")

    def lines(columns: int) -> list[str]:
        shown = on_terminal(shop, columns, "cron", "list")
        return [days.sub("in 26,000 days", line.replace("2099-01-05 09:00:00", TIME)) for line in shown]

    assert lines(60) == [
        "NAME                     IN              RUNS  STATE",
        "a-report-of-every-order  in 26,000 days     0  active",
        "Not shown in 60 columns: when, next, task.",
    ]
    assert lines(120) == [
        "NAME                     WHEN                      NEXT                     IN              "
        "RUNS  STATE   TASK",
        f"a-report-of-every-order  0 9 * * 1-5 Europe/Paris  {TIME} CET  in 26,000 days  "
        "   0  active  tasks:welcome",
    ]
    [row] = in_pipe(shop, "cron", "list")
    assert days.sub("DAYS", row) == (
        "a-report-of-every-order\t0 9 * * 1-5 Europe/Paris\t2099-01-05T09:00:00.000+01:00\tDAYS"
        "\t\t\t0\tactive\ttasks:welcome"
    )


def test_cron_next(shop: Shop) -> None:
    words = ("cron", "next", "0 9 * * *", "-n", "2", "--from", "2099-01-05", "--tz", "UTC")
    shown = [re.sub(r"in \d\d,\d{3} days", "DAYS", line) for line in on_terminal(shop, 60, *words)]
    assert shown == ["NEXT                     IN", f"{TIME} UTC  DAYS", f"{TIME} UTC  DAYS"]


def test_the_executors_of_info(shop: Shop) -> None:
    async def note(app: App) -> None:
        facts = b'{"beat_ms":1,"interval":1,"running":2,"concurrency":32,"stuck":0,"done":1234567,"queues":["mail"],'
        facts += b'"run_times":{"count":7,"p50":0.0031,"p95":0.012},"wait_times":{"p95":"nonsense"}}'
        await app.client.ask(
            Command(["HSET", executors_key(app.namespace), "web-7f9c-12345-9d2f4c6b8a", facts], int)
        )

    shop.do(note)
    assert on_terminal(shop, 60, "info")[-3:] == [
        "EXECUTOR              STATE   RUNNING  OF       DONE  QUEUES",
        "…9c-12345-9d2f4c6b8a  silent        2  32  1,234,567  mail",
        "Not shown in 60 columns: stuck, seen, run p95.",
    ]
    assert on_terminal(shop, 120, "info")[-2:] == [
        "EXECUTOR                   STATE   RUNNING  OF  STUCK       DONE  SEEN                 QUEUES  "
        "RUN P95  WAIT P95",
        f"web-7f9c-12345-9d2f4c6b8a  silent        2  32      0  1,234,567  {TIME}  mail    12 ms",
    ]
    assert in_pipe(shop, "info")[-1] == (
        "web-7f9c-12345-9d2f4c6b8a\tsilent\t2\t32\t0\t1234567\tTIME\tmail\t12 ms\t"
    )


def test_the_times_of_tasks_in_info(shop: Shop) -> None:
    async def note(app: App) -> None:
        counts = {"tasks:welcome|r3": 20, "tasks:welcome|w0": 10, "tasks:charge|r18": 1}
        counts |= {"tasks:welcome|S": 19, "tasks:welcome|D": 1}
        report = Report("anna", "a1", 1, counts)
        await app.client.ask(verbs.times.meter(queue_keys(app.namespace, "default"), report, 60_000))

    shop.do(note)
    on_80 = on_terminal(shop, 80, "info")
    assert on_80[on_80.index("") + 5 :][:3] == [
        "TASK           RUNS  RUN P50  RUN P95  WAIT P50  WAIT P95",
        "tasks:welcome    20  7.5 ms   9.7 ms   0.5 ms    0.9 ms",
        "tasks:charge      1  ≥ 1 h    ≥ 1 h",
    ]
    assert shop.ok("info", "--json").json["times"] == [
        {
            "task": "tasks:welcome",
            "run": {"count": 20, "p50": 0.0075, "p95": 0.0097},
            "wait": {"count": 10, "p50": 0.0005, "p95": 0.00095},
            "ended": {"success": 19, "dead": 1},
        },
        {
            "task": "tasks:charge",
            "run": {"count": 1, "p50": 3600.0, "p95": 3600.0},
            "wait": {"count": 0, "p50": None, "p95": None},
            "ended": {},
        },
    ]


def test_the_answers_of_cancel(busy: Shop) -> None:
    terminal = on_terminal(busy, 60, "job", "cancel", f"mail:{KEY}0", f"default:{KEY}0")
    assert terminal == [
        "ID                                    ANSWER",
        "mail:01a1efd7ac9df1e81f6133583640     cancelled",
        "default:01a1efd7ac9df1e81f6133583640  too late: DEAD",
    ]


def test_show_is_aligned_and_its_times_are_local_on_a_terminal(busy: Shop) -> None:
    lines = on_terminal(busy, 120, "job", "show", f"default:{KEY}0")
    facts = lines.index(f"id           default:{KEY}0")
    assert lines[facts : facts + 5] == [
        "id           default:01a1efd7ac9df1e81f6133583640",
        "task         tasks:charge",
        "queue        default",
        "status       DEAD",
        "priority     normal",
    ]
    assert f"ended_at     {TIME}" in lines
    there = Terminal("job", "show", f"default:{KEY}0", folder=busy.folder, NO_COLOR="1", TZ="UTC-14").lines()
    here = Terminal("job", "show", f"default:{KEY}0", folder=busy.folder, NO_COLOR="1", TZ="UTC").lines()
    assert [line for line in there if line.startswith("ended_at")] != [
        line for line in here if line.startswith("ended_at")
    ]


EMPTY = [
    (("dlq", "list"), "No dead jobs."),
    (("dlq", "list", "--task", "charge"), "No dead job matches."),
    (("queue", "peek", "mail"), "No jobs waiting in mail."),
    (("queue", "peek", "mail", "--scheduled"), "No jobs scheduled in mail."),
    (("queue", "peek", "mail", "--retry"), "No jobs between two tries in mail."),
    (("cron", "list"), "No schedules: declare one with @app.cron, or run `fennelq cron add`."),
]


@pytest.mark.parametrize(("words", "sentence"), EMPTY, ids=[" ".join(words) for words, _ in EMPTY])
def test_an_empty_list_is_a_sentence_on_a_terminal_and_nothing_in_a_pipe(
    shop: Shop, words: tuple[str, ...], sentence: str
) -> None:
    assert on_terminal(shop, 100, *words) == [sentence]
    assert in_pipe(shop, *words) == []
    assert shop.ok(*words, "--json").json == []


def test_info_shows_that_there_are_no_workers(shop: Shop) -> None:
    assert on_terminal(shop, 60, "info")[-1] == "No workers: start one with `fennelq worker`."


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb"])
@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "list"),
        ("job", "show", f"default:{KEY}0"),
        ("info",),
        ("--help",),
        ("dlq", "--help"),
        ("dlq", "replay", "--help"),
        ("dlq", "nonsense"),
        ("dlq", "list", "--since", "nonsense"),
        ("worker", "--burst", "-p", "1"),
    ],
    ids=" ".join,
)
def test_without_colours_nothing_is_coloured(
    busy: Shop, words: tuple[str, ...], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(*variable.split("="))
    terminal = Terminal(*words, folder=busy.folder)
    terminal.code()
    assert terminal.text
    assert "\x1b" not in terminal.text


def test_with_colours_headings_are_bold(busy: Shop) -> None:
    assert "\x1b[1m" in "\n".join(Terminal("queue", "list", folder=busy.folder, TERM="xterm").lines())
    help_lines = Terminal("dlq", "list", "--help", folder=busy.folder, TERM="xterm").lines()
    assert "\x1b[1mOptions\x1b[0m:" in help_lines


def test_numbers_have_separators_for_people_only(shop: Shop) -> None:
    async def send(app: App) -> None:
        task = app.tasks["tasks:welcome"]
        await app.enqueue([task.job(n) for n in range(1200)])

    shop.do(send)
    assert on_terminal(shop, 60, "queue", "list")[-1] == "mail       1,200        0          0      0     0"
    assert on_terminal(shop, 60, "queue", "purge", "mail", "--dry-run") == ["1,200 jobs would be cancelled"]
    assert in_pipe(shop, "queue", "list")[-1] == "mail\t1200\t0\t0\t0\t0"
    assert in_pipe(shop, "queue", "purge", "mail", "--dry-run") == ["1200 jobs would be cancelled"]
    assert in_pipe(shop, "queue", "purge", "mail", "--yes") == ["1200 jobs cancelled"]
