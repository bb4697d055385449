"""Texts that would control the terminal of an operator, or its table, are escaped and cut in every listing.

Clients refuse most of these texts. So they are written to Redis directly, as a program that is not fennelq may do it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker.keys import GROUP, AppKeys, queue_keys
from fennelq.broker.verb import Command, Word
from fennelq.cli import acting, output
from fennelq.cli.exits import Exit
from fennelq.cli.story import table as story_table
from fennelq.cli.tables import schedules as schedule_table
from fennelq.cli.tables.table import width
from fennelq.manage.executors.profile import ExecutorProfile
from fennelq.manage.history.row import Row
from fennelq.manage.history.url import open_store
from fennelq.model.fields import LETTERS
from tests.cli.shop import Answer, Shop
from tests.cli.terminal import Terminal
from tests.cli.test_audit import READING

EVIL = (
    "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\u2066\u200b\r\nnew\tline\x00\x7f\x85\u2028{tag}:/|%s'\"`$(id)`"
    "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}\N{REGIONAL INDICATOR SYMBOL LETTER A}日本語\u0301"
)
LONG = EVIL + "A" * (1 << 20)
LINE = EVIL.replace("\n", "").replace("\r", "").replace("\u2028", "").replace("\x85", "")
"""As EVIL, but in one line."""

CALLS: dict[str, list[tuple[str, ...]]] = {
    "audit": [()],
    "cron list": [()],
    "cron next": [("@daily", "-n", "1")],
    "cron show": [(EVIL,), ("nightly",)],
    "dlq export": [()],
    "dlq list": [(), ("--group",)],
    "dlq show": [("default:dead",)],
    "history search": [()],
    "history stats": [()],
    "info": [()],
    "job export": [()],
    "job list": [()],
    "job show": [("default:dead",), ("mail:ready",), ("mail:later",), ("mail:running",), ("mail:evil",)],
    "job wait": [("default:dead", "--timeout", "1")],
    "limit list": [()],
    "op list": [()],
    "op show": [("evil",)],
    "profile": [("living",)],
    "queue list": [()],
    "queue peek": [("mail",), ("mail", "--scheduled")],
    "queue running": [(), ("mail",)],
    "top": [("--once",)],
    "worker list": [("--all",)],
    "worker show": [("living",)],
    "worker stacks": [("living",)],
}
"""Command → how it is called in `evil`. Add each new command that reads."""
SHOWN = "31m\\u202eevil"
"""Is in the output of every command that shows a text of `spoil`."""
PLAIN = {"cron next", "history stats", "job wait", "queue list"}
TABLES = {
    "audit",
    "cron list",
    "dlq list",
    "history search",
    "job list",
    "limit list",
    "op list",
    "profile",
    "queue list",
    "queue peek",
    "queue running",
    "top",
    "worker list",
}
FILES = {"dlq export", "job export"}
"""Write whole jobs, a JSON object per line."""
READ = READING | FILES


def stacks_of_evil(*_: object) -> Any:
    """The answer of the executor `living`."""
    yield from ()
    stack = {"kind": EVIL, "name": LONG, "job": EVIL, "seconds": 1, "frames": [EVIL, LONG]}
    blocked = {"at": LONG, "job": EVIL, "seconds": 2}
    return {"version": EVIL, "blocked": blocked, "stacks": [stack, stack, {**stack, "frames": [LINE]}]}


def profile_of_evil(*_: object) -> Any:
    """The profile of the executor `living`."""
    yield from ()
    report = {
        "version": EVIL,
        "seconds": 1,
        "samples": 3,
        "jobs": {EVIL: 1, LONG: 2},
        "tasks": [EVIL, LONG],
        "places": [[EVIL, LONG, 7], [LONG, EVIL, 8], EVIL],
        "stacks": [[0, 2, 1, [0, 1]], [1, 1, 0, [1, 2]], EVIL, [EVIL]],
    }
    return ExecutorProfile.of("living", report)


@pytest.fixture
def evil(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop in which every text that a person can meet is hostile."""
    monkeypatch.setenv("FENNELQ_HISTORY_URL", f"sqlite://{shop.folder}/history.db")
    shop.ok("enqueue", "charge", "1", "--job-id", "dead")
    shop.work()
    shop.ok("enqueue", "welcome", "1", "--job-id", "running")
    shop.ok("enqueue", "welcome", "1", "--job-id", "ready")
    shop.ok("enqueue", "welcome", "1", "--job-id", "later", "--delay", "1h")
    shop.ok("cron", "add", "welcome", "7", "--every", "1h", "--name", "nightly")
    shop.do(spoil)
    shop.do(record)
    monkeypatch.setattr("fennelq.manage.executors.executors.answer_of", stacks_of_evil)
    monkeypatch.setattr("fennelq.manage.executors.executors.profile_of", profile_of_evil)
    return shop


async def spoil(app: App) -> None:
    """Write hostile texts to everything that `evil` has made."""
    mail, default, of_app = queue_keys("shop", "mail"), queue_keys("shop", "default"), AppKeys("shop")
    failure = json.dumps({"type": EVIL, "message": LONG, "traceback": LONG, "reason": EVIL, "tries": 1})
    facts = {"queues": [EVIL], "running": EVIL, "done": EVIL, "beat_ms": EVIL, "version": EVIL, "died": EVIL}
    living = {
        "queues": ["mail", EVIL],
        "beat_ms": 10**13,
        "too_old_for": [{"queue": "mail", "why": EVIL}],
        "running": 2,
        "concurrency": 3,
        "version": EVIL,
        "host": LONG,
        "longest": {"job": EVIL, "task": LONG, "seconds": 9},
        "blocked": {"at": LONG, "job": EVIL, "seconds": 2, "ago": 1},
    }
    operation = {
        "act": EVIL,
        "where": f'task:"{LINE}"',
        "who": LINE,
        "reason": LONG,
        "by": EVIL,
        "problem": LONG,
    }
    operation |= {"state": EVIL, "until": "1", "begun": "1"}
    named = {"last_error": LONG, "source": EVIL, "paused": EVIL}
    commands: list[list[Word]] = [
        *(spoiled(mail.record(key), failure) for key in ("ready", "later", "running")),
        spoiled(default.record("dead"), failure),
        ["XGROUP", "CREATE", mail["s"], GROUP, "0"],
        ["XREADGROUP", "GROUP", GROUP, EVIL, "COUNT", "1", "STREAMS", mail["s"], ">"],
        ["HSET", mail.record("running"), LETTERS["status"], "X", LETTERS["run"], f"{LINE} 1 1"],
        ["RPUSH", mail.history("ready"), json.dumps({"at": 1, "what": EVIL, "owner": EVIL, "more": LONG})],
        ["XADD", default["dlq"], "*", "i", "dead", "t", EVIL, "e", EVIL, "m", LONG, "y", EVIL],
        ["SET", mail["paused"], f"c\n{LINE}\n1\n{LONG}"],
        ["HSET", mail["limits"], f"c:{EVIL}", "3"],
        ["HSET", of_app["executors"], EVIL, json.dumps(facts), "living", json.dumps(living)],
        ["ZADD", of_app["ops"], "1", "evil"],
        ["HSET", of_app.operation("evil"), *flat(**operation)],
        ["SADD", of_app["queues"], EVIL],
        ["SADD", of_app["cron:names"], EVIL],
        ["HSET", of_app.schedule(EVIL), *[word for pair in named.items() for word in pair]],
        ["HSET", of_app.schedule("nightly"), "last_error", LONG, "last_error_at", "1"],
        [
            "XADD",
            of_app["audit"],
            "*",
            *flat(id="x", phase="begin", who=LINE, via=EVIL, what=EVIL, target=LONG),
        ],
        ["XADD", of_app["audit"], "*", *flat(id="x", phase="end", state=EVIL, outcome=LONG, before=EVIL)],
    ]
    for words in commands:
        await app.client.ask(Command(words, bool))
    definition = await app.client.ask(
        Command(["HGET", of_app.schedule("nightly"), "definition"], bytes.decode)
    )
    hostile = definition.replace("tasks:", json.dumps(EVIL)[1:-1])
    for name in ("nightly", EVIL):
        await app.client.ask(Command(["HSET", of_app.schedule(name), "definition", hostile], int))


async def record(app: App) -> None:
    """Write a hostile row to the history, as an earlier version or another program may have done it."""
    store = open_store(app)
    store.migrate()
    texts = {"task": EVIL, "error": EVIL, "message": LONG, "traceback": LONG, "reason": EVIL, "key": EVIL}
    more = {"args": json.dumps([[LONG], {EVIL: EVIL}]), "headers": json.dumps({EVIL: LONG}), "executor": EVIL}
    events = json.dumps([{"at": 1, "what": EVIL, "owner": EVIL, "more": LONG}])
    clean: dict[str, Any] = {name: text.replace("\x00", "") for name, text in (texts | more).items()}
    row = Row("mail:evil", "mail", "DEAD", 10**12, starts=1, created=1, started=2, events=events)
    store.write([row._replace(**clean)])
    store.close()


def spoiled(record: str, failure: str) -> list[Word]:
    """Makes a record hostile."""
    fields = {
        "task": EVIL,
        "arguments": json.dumps([[], {"name": LONG, EVIL: [EVIL]}]),
        "options": json.dumps({"h": {EVIL: LONG}}),
        "failure": failure,
        "reason": LONG,
        "idempotency": f"={EVIL}:{EVIL}",
        "stopping": EVIL,
        "progress": json.dumps([1, 1, 1, 2, LONG]),
        "history": "1",
    }
    return ["HSET", record, *flat(**{LETTERS[name]: value for name, value in fields.items()})]


def flat(**fields: str) -> list[Word]:
    return [word for pair in fields.items() for word in pair]


def unsafe(text: str, allowed: str = "\n") -> set[str]:
    """The characters that a terminal could obey, or that hide or reverse the others."""
    return {c for c in set(text) if not c.isprintable() and c not in allowed}


def ran(shop: Shop, *words: str) -> Answer:
    with capture_logs():
        answer = shop.run(*words)
    assert answer.code in (Exit.OK, Exit.FAILED, Exit.NOT_FOUND), answer._replace(out=answer.out[:2000])
    assert unsafe(answer.err) == set()
    assert len(answer.err) < 100_000
    return answer


def test_every_command_that_reads_has_an_example() -> None:
    assert set(CALLS) == READ


@pytest.mark.audit(skip="the keys are hostile")
@pytest.mark.parametrize("command", CALLS)
def test_in_a_pipe_and_as_json_nothing_is_obeyed(evil: Shop, command: str) -> None:
    for words in CALLS[command]:
        piped = ran(evil, *command.split(), *words)
        assert SHOWN in piped.out or command in PLAIN or words == (EVIL,), piped.out[:2000]
        assert unsafe(piped.out, "\n\t") == set()
        assert all("\t\t\t\t\t\t\t\t" not in line for line in piped.out.splitlines())
        if command not in FILES:
            assert len(piped.out) < 200_000
        as_json = ran(evil, *command.split(), *words, "--json")
        assert unsafe(as_json.out) == set()
        if as_json.out and command not in FILES:
            json.loads(as_json.out)


@pytest.mark.audit(skip="the keys are hostile")
@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize("command", CALLS)
def test_on_a_terminal_nothing_is_obeyed_and_tables_fit(
    evil: Shop, command: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def yes(stream: Any) -> bool:
        return True

    for module in (acting, output, schedule_table, story_table):
        monkeypatch.setattr(module, "is_terminal", yes)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    for words in CALLS[command]:
        shown = ran(evil, *command.split(), *words)
        assert unsafe(shown.out) == set()
        if command in TABLES:
            assert all(width(line) <= columns for line in shown.out.splitlines()), shown.out
        if command not in FILES:
            assert len(shown.out) < 200_000


@pytest.mark.audit(skip="the keys are hostile")
def test_a_real_terminal_gets_no_control_character(evil: Shop) -> None:
    for command in ("dlq list", "dlq list --group", "job list", "queue list", "op list", "audit", "info"):
        terminal = Terminal(*command.split(), folder=evil.folder, columns=120, NO_COLOR="1")
        terminal.code()
        assert terminal.text
        assert unsafe(terminal.text, "\r\n") == set()


@pytest.mark.audit(skip="the keys are hostile")
def test_words_of_the_command_line_are_escaped_as_well(evil: Shop) -> None:
    for words in (
        ("job", "show", EVIL),
        ("queue", "peek", EVIL),
        ("dlq", "list", "--task", EVIL),
        ("dlq", "list", "--since", EVIL),
        ("cron", "pause", EVIL),
        ("limit", "set", EVIL, "3"),
        ("enqueue", EVIL, EVIL),
        ("queue", "pause", "mail", "--why", EVIL),
        ("audit", "--who", EVIL, "--what", EVIL),
        ("job", "list", "--where", EVIL),
        ("job", "cancel", "--where", f"task:{LINE}", "--yes"),
        ("op", "show", EVIL),
        ("worker", "show", EVIL),
        ("worker", "drain", EVIL, "--yes"),
        ("dlq", "list", "--where", EVIL),
        ("dlq", "purge", "--where", f"task:{LINE}", "--yes"),
        ("dlq", "replay", "--set", EVIL),
        ("dlq", "replay", "--map", EVIL),
        ("dlq", "import", EVIL),
    ):
        answer = evil.run(*words)
        assert unsafe(answer.out + answer.err, "\n\t") == set(), words
