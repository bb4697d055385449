"""`fennelq audit`, and what the commands that change something write for it."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import typer

from fennelq import App
from fennelq.broker.keys import AppKeys
from fennelq.broker.verb import Command
from fennelq.cli.command import Changing
from fennelq.cli.commands import COMMANDS, found
from fennelq.cli.exits import Exit
from fennelq.cli.steps import Steps
from fennelq.manage.audit import AwaitedOperation
from fennelq.manage.history.row import Row
from fennelq.manage.history.sqlite import SqliteStore
from tests.cli.shop import Shop
from tests.cli.test_lists import on_terminal
from tests.kit.server import Server

HERE = f"{getpass.getuser()}@{socket.gethostname()}"

READING = {
    "audit",
    "info",
    "cron list",
    "cron next",
    "cron show",
    "dlq list",
    "dlq show",
    "history search",
    "history stats",
    "job list",
    "job show",
    "job wait",
    "limit list",
    "queue list",
    "op list",
    "op show",
    "profile",
    "queue peek",
    "queue running",
    "top",
    "worker list",
    "worker show",
    "worker stacks",
}
"""Commands that change nothing. (The keys of `top` do: see `test_top_acts.py`.)"""
SERVING = {"api", "dev", "exporter", "grpc"}
"""Commands that change nothing, and end only when they are stopped. `test_dev.py` and `test_exporter.py` test what they
show."""
WORKING = {"enqueue", "history run", "token add", "token list", "token revoke", "web user"}
"""Commands that do what a program does as well: they send jobs, or record how jobs end. The record of a job shows that.
Those of `web` and `token` write a file. (`worker` and `web` are families whose first word is a command.)"""


def commands() -> dict[str, Callable[..., Any]]:
    """Every command: its words and its function."""
    every: dict[str, Callable[..., Any] | None] = {}
    for name in COMMANDS:
        one = found(name)
        if isinstance(one, typer.Typer):
            every |= {f"{name} {command.name}": command.callback for command in one.registered_commands}
        else:
            every[name] = one
    return {name: function for name, function in every.items() if function is not None}


def audited(shop: Shop, *words: str) -> dict[str, Any]:
    """The latest operation."""
    entry: dict[str, Any] = shop.ok("audit", *words, "-n", "1", "--json").json[0]
    return entry


EXAMPLES: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "dlq replay": (
        ("--queue", "default", "--limit", "1"),
        {"filter": "--queue default --limit 1", "planned": 1, "done": 1, "outcome": "replayed"},
    ),
    "dlq edit": (
        ("{dead}",),
        {
            "target": "{dead}",
            "planned": 1,
            "done": 1,
            "outcome": "replayed with other arguments",
            "before": '{"n":1}',
            "after": '{"n":2}',
        },
    ),
    "dlq import": (
        ("{file}", "--continue"),
        {
            "target": "{file}",
            "filter": "--continue",
            "planned": 1,
            "done": 0,
            "outcome": "sent; 1 skipped, because jobs with their ids exist already",
        },
    ),
    "dlq export": (("--with-secrets",), {"filter": "--with-secrets", "planned": 1, "done": 1}),
    "dlq purge": (("{dead}", "--yes"), {"target": "{dead}", "filter": "", "planned": 1, "done": 1}),
    "queue pause": (
        ("mail", "--only", "consume", "--why", "no server"),
        {
            "target": "mail",
            "filter": "--only consume --why 'no server'",
            "before": "not paused",
            "after": "consuming paused",
        },
    ),
    "queue resume": (("mail",), {"target": "mail", "before": "not paused", "after": "not paused"}),
    "queue purge": (("mail", "-y"), {"target": "mail", "planned": 2, "done": 2}),
    "job cancel": (
        ("mail:first", "mail:none"),
        {"target": "mail:first mail:none", "planned": 2, "done": 1, "outcome": "1 unknown"},
    ),
    "job run": (
        ("mail:first",),
        {"target": "mail:first", "planned": 1, "done": 0, "outcome": "1 not due later: SENT"},
    ),
    "job export": (
        ("--where", "state:dead header:token=x", "--with-secrets"),
        {"filter": "--where 'header:\"token=[redacted]\" state:dead' --with-secrets", "done": 0},
    ),
    "op stop": (("{operation}",), {"target": "{operation}", "outcome": "stopped, 0 of 2 jobs"}),
    "op resume": (
        ("{operation}",),
        {"target": "{operation}", "planned": 2, "done": 2, "outcome": "operation {operation} done"},
    ),
    "worker drain": (
        ("web.1", "--no-wait", "--yes"),
        {"target": "web.1", "filter": "--no-wait", "outcome": "web.1 drains: 0 jobs left"},
    ),
    "job retry": (("{dead}",), {"target": "{dead}", "planned": 1, "done": 1}),
    "cron add": (
        ("welcome", "7", "--every", "60", "--name", "news"),
        {"target": "welcome", "filter": "--every 60 --name news", "before": "", "after": "every 60 s"},
    ),
    "cron pause": (("report",), {"target": "report", "done": 1, "before": "active", "after": "paused"}),
    "cron resume": (("report",), {"target": "report", "done": 1, "before": "active", "after": "active"}),
    "cron run": (("report",), {"target": "report", "done": 1}),
    "cron remove": (("report", "--yes"), {"target": "report", "done": 1, "after": "removed"}),
    "limit set": (
        ("account", "3"),
        {"target": "account 3", "done": 1, "outcome": "in mail", "before": "5", "after": "3"},
    ),
    "history prune": (
        ("--keep", "1h", "--max-rows", "7", "--yes"),
        {"filter": "--keep 1h --max-rows 7", "done": 1},
    ),
    "history migrate": ((), {"before": "2", "after": "2"}),
    "limit reset": (("account",), {"target": "account", "done": 0, "outcome": "in mail"}),
}
"""Command → how it is called in `seeded`, and what is recorded. Add each new command that changes something."""


@pytest.fixture
def seeded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop with a dead job, two that wait, a schedule and a limit; it may have a history."""
    monkeypatch.setenv("FENNELQ_HISTORY_URL", f"sqlite://{shop.folder}/history.db")
    text = (shop.folder / "tasks.py").read_text().replace("import App", "import App, Limit")
    text = text.replace(
        '(queue="mail", retries=0)', '(queue="mail", retries=0, concurrency=Limit(5, name="account"))'
    )
    (shop.folder / "tasks.py").write_text(text)
    shop.ok("enqueue", "charge", "1", "--job-id", "dead")
    shop.work()
    for key in ("first", "second"):
        shop.ok("enqueue", "greet", "ada", "--job-id", key)
    shop.ok("cron", "add", "welcome", "7", "--every", "3600", "--name", "report")
    return shop


def prepared(shop: Shop, what: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What single commands need besides `seeded`."""
    if what == "dlq edit":
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", "sed -i s/1/2/")
    if what == "dlq import":
        shop.ok("dlq", "export", "--output", str(file := shop.folder / "dead.jsonl"))
        return {"file": str(file)}
    if what.startswith("op "):
        return {"operation": shop.do(_operation)}
    if what.startswith("history "):
        with closing(SqliteStore(shop.folder / "history.db", "shop")) as store:
            store.migrate()
            store.write([Row("mail:old", "mail", "SUCCESS", 17)])
    if what == "worker drain":
        monkeypatch.setattr("fennelq.manage.executors.executors.answer_of", _agrees)
        shop.do(_report)
    return {}


async def _operation(app: App) -> str:
    """The id of an operation that has begun and has done nothing yet."""
    plan = await app.operations.plan("cancel", "queue:mail task:greet")
    return (await app.operations.begin(plan)).id


def _agrees(*_: object) -> Any:
    """The answer of an executor that is asked to drain."""
    yield from ()
    return {"running": 0}


async def _report(app: App) -> None:
    facts = json.dumps({"queues": ["mail"], "running": 0, "concurrency": 1, "beat_ms": 10**13})
    await app.client.ask(Command(["HSET", AppKeys(app.namespace)["executors"], "web.1", facts], int))


def _filled(text: str, named: dict[str, str]) -> str:
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def test_every_command_is_one_that_reads_or_is_recorded() -> None:
    """A new command that changes something is declared with `changes=True`, and does it in `session.change`."""
    recorded = {name for name, function in commands().items() if isinstance(function, Changing)}
    assert recorded == set(EXAMPLES)
    assert set(commands()) == recorded | READING | SERVING | WORKING


@pytest.mark.parametrize("what", EXAMPLES)
def test_a_command_that_changes_something_is_recorded(
    seeded: Shop, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, facts = EXAMPLES[what]
    named = {"dead": "default:dead", **prepared(seeded, what, monkeypatch)}
    seeded.run(*what.split(), *(_filled(word, named) for word in words))
    entry = audited(seeded)
    expected = {
        name: _filled(value, named) if isinstance(value, str) else value for name, value in facts.items()
    }
    assert {name: entry[name] for name in expected} == expected
    assert (entry["what"], entry["who"], entry["via"], entry["state"]) == (what, HERE, "cli", "done")
    assert entry["at"] <= entry["ended_at"]


def test_an_operation_on_many_jobs_is_recorded_with_its_filter(seeded: Shop) -> None:
    seeded.ok("job", "cancel", "--where", "queue:mail task:greet", "--limit", "1", "--yes")
    entry = audited(seeded)
    assert (entry["what"], entry["planned"], entry["done"]) == ("job cancel", 1, 1)
    assert entry["filter"] == "--where 'queue:mail task:greet' --limit 1"
    assert entry["outcome"].startswith("operation ")


def test_new_arguments_are_recorded_without_secrets(seeded: Shop) -> None:
    seeded.run(
        "dlq", "replay", "default:dead", "--set", "n=2", "--set", "password=hunter2", "--set", "0=hunter3"
    )
    assert seeded.ok("audit", "--what", "dlq", "--json").json == []  # nothing fits, so nothing began
    seeded.ok("dlq", "replay", "default:dead", "--set", "n=2")
    assert audited(seeded)["filter"] == "--set n=2"


def test_a_replay_that_its_canary_stops_is_recorded_with_the_reason(seeded: Shop) -> None:
    seeded.ok("enqueue", "charge", "2", "--job-id", "other")
    seeded.work()
    answer = seeded.run("dlq", "replay", "--queue", "default", "--canary", "1", "--canary-timeout", "1ms")
    assert answer.code == Exit.FAILED
    entry = audited(seeded)
    assert (entry["planned"], entry["done"], entry["filter"]) == (
        2,
        1,
        "--queue default --canary 1 --canary-timeout 1ms",
    )
    assert "stopped: " in entry["outcome"]


def test_an_operation_is_recorded_before_it_is_done(seeded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Steps, work: Any) -> Any:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Steps, "run", run)
    seeded.run("queue", "purge", "mail", "--yes")
    entry = audited(seeded)
    assert (entry["what"], entry["state"], entry["planned"]) == ("queue purge", "interrupted", 2)


def test_an_operation_whose_process_crashes_is_not_finished(
    seeded: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object) -> None:
        """The process is gone before it writes the outcome."""

    monkeypatch.setattr(AwaitedOperation, "__aexit__", crash)
    seeded.ok("queue", "purge", "mail", "--yes")
    entry = audited(seeded)
    assert (entry["state"], entry["planned"], entry["done"]) == ("not finished", 2, None)
    assert (entry["what"], entry["target"], entry["ended_at"]) == ("queue purge", "mail", None)
    (row,) = seeded.ok("audit", "--what", "queue").rows
    assert row[-2:] == ["? of 2", "not finished"]


def test_an_operation_that_fails_is_recorded_with_its_error(seeded: Shop) -> None:
    assert seeded.run("queue", "pause", "nosuch").code == Exit.NOT_FOUND
    entry = audited(seeded)
    assert (entry["state"], entry["target"]) == ("failed", "nosuch")
    assert "queue 'nosuch' does not exist" in entry["outcome"]


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "replay", "--dry-run"),
        ("dlq", "export"),
        ("dlq", "purge", "--dry-run"),
        ("queue", "purge", "mail", "--dry-run"),
        ("queue", "purge", "mail"),  # without a terminal and without --yes
        ("job", "cancel", "--queue", "mail", "--dry-run"),
        ("dlq", "purge", "--task", "nosuch", "--yes"),
        ("job", "export"),
        ("job", "cancel", "--where", "queue:mail", "--dry-run"),
        ("job", "run", "--where", "queue:mail", "--yes"),
        ("cron", "remove", "report"),
    ],
    ids=" ".join,
)
def test_what_changes_nothing_is_not_recorded(seeded: Shop, words: tuple[str, ...]) -> None:
    before = seeded.ok("audit", "--json").json
    seeded.run(*words)
    assert seeded.ok("audit", "--json").json == before


def test_the_list_is_filtered(seeded: Shop) -> None:
    seeded.ok("queue", "pause", "mail")
    seeded.ok("queue", "resume", "mail")

    def whats(*words: str) -> list[str]:
        return [entry["what"] for entry in seeded.ok("audit", *words, "--json").json]

    assert whats() == ["queue resume", "queue pause", "cron add"]
    assert whats("--what", "queue") == ["queue resume", "queue pause"]
    assert whats("--what", "queue pause") == ["queue pause"]
    assert whats("--what", "que") == []
    assert whats("--limit", "1") == ["queue resume"]
    assert whats("--since", "2h") == whats()
    assert whats("--until", "2h") == []
    for who in (HERE, *HERE.split("@")):
        assert whats("--who", who) == whats()
    assert whats("--who", "someone-else") == []


def test_a_time_in_the_future_is_refused(shop: Shop) -> None:
    answer = shop.run("audit", "--since", "2999-01-01")
    assert (answer.code, "is in the future" in answer.err) == (Exit.USAGE, True)


def test_the_table_fits_the_terminal(seeded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    seeded.ok("queue", "pause", "mail", "--only", "consume", "--why", "the mail server is down")
    head, row, rest = on_terminal(seeded, 60, "audit", "--what", "queue")
    assert head.split() == ["AT", "WHO", "WHAT", "ON", "OUTCOME"]
    assert row.startswith("2026-11-18 10:00:00  ada@")
    assert "  queue pause  mail  not pa" in row
    assert rest == "Not shown in 60 columns: via, options."
    wide = on_terminal(seeded, 160, "audit", "--what", "queue")
    assert wide[0].split() == ["AT", "WHO", "VIA", "WHAT", "ON", "OPTIONS", "DONE", "OUTCOME"]
    assert "ada@" in wide[1]
    assert "not paused → consuming paused" in wide[1]


def test_an_empty_list_is_a_sentence(shop: Shop) -> None:
    assert on_terminal(shop, 100, "audit") == ["No operations yet."]
    assert on_terminal(shop, 100, "audit", "--what", "dlq") == ["No operation matches."]


@pytest.fixture
def denied(shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The shop, for a user of Redis who may not touch the record of operations."""
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "operator", "on", ">pw", "+@all", "&*", "~fq:{shop/*", "~fq:{shop}:[b-z]*"),
            *("~fq:{shop}:alive",),
        )
        monkeypatch.setenv("FENNELQ_REDIS_URL", server.url.replace("redis://", "redis://operator:pw@"))
        yield shop
        client.execute_command("ACL", "DELUSER", "operator")


def test_a_command_goes_on_where_redis_refuses_to_record_it(denied: Shop) -> None:
    denied.ok("enqueue", "welcome", "1", "--job-id", "first")
    answer = denied.ok("queue", "purge", "mail", "--yes")
    assert answer.out == "1 job cancelled\n"
    assert answer.err.startswith(
        "queue purge is not recorded for `fennelq audit`: Redis does not permit a command or a key"
    )
    assert "does not permit" in answer.err
    assert answer.err.count("\n") == 1


def test_the_record_is_bounded(seeded: Shop) -> None:
    async def fill(app: App) -> int:
        note = ["XADD", AppKeys(app.namespace)["audit"], "*", "id", "x", "phase", "begin"]
        for _ in range(110):
            await app.client.broker.converse(_all([Command(note, str)] * 100))
        async with app.audit.operation("dlq replay"):
            pass
        return int(await app.client.ask(Command(["XLEN", AppKeys(app.namespace)["audit"]], int)))

    assert 9_000 < seeded.do(fill) < 10_300


def _all(steps: list[Any]) -> Any:
    yield steps
