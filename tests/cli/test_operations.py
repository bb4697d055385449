"""`fennelq job cancel --where`, `fennelq job run` and `fennelq op`."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.cli.exits import Exit
from fennelq.manage import acting
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, run_module

pytestmark = pytest.mark.audit(unfinished=True)


def send(shop: Shop, number: int) -> None:
    async def enqueue(app: object) -> None:
        tasks = sys.modules["tasks"]
        await tasks.app.enqueue([tasks.welcome.job(n) for n in range(number)])

    shop.do(enqueue)


def only(shop: Shop) -> str:
    """The id of the only operation."""
    [operation] = shop.ok("op", "list", "--json").json
    return str(operation["id"])


def crashed(shop: Shop, point: str, *words: str) -> int:
    """The exit code of a command whose process ends at this point."""
    environment = {"PYTHONPATH": str(PROJECT), "_FENNELQ_CRASH": point}
    return run_module("fennelq", *words, environment=environment, directory=shop.folder).code


def test_cancel_counts_asks_and_cancels_what_a_filter_finds(shop: Shop) -> None:
    send(shop, 3)
    shop.ok("enqueue", "greet", "Bob")
    cancel = ["job", "cancel", "--where", "task:welcome state:waiting"]
    assert shop.ok(*cancel, "--dry-run").out == "3 jobs would be cancelled\n"
    plan = shop.ok(*cancel, "--dry-run", "--json").json
    assert (plan["count"], plan["act"], len(plan["samples"])) == (3, "cancel", 3)
    assert plan["where"] == "state:waiting task:welcome"
    refused = shop.run(*cancel)
    assert (refused.code, refused.err) == (Exit.USAGE, "fennelq: Cancel 3 jobs? Add --yes to do it.\n")
    assert shop.ok(*cancel, "--yes", "--limit", "2").out == "2 jobs cancelled or asked to stop\n"
    done = shop.ok(*cancel, "--yes", "--json").json
    assert (done["cancelled"], done["state"]) == (1, "done")
    assert shop.ok(*cancel, "--yes").out == "0 jobs to cancel\n"
    assert shop.ok("job", "list").rows[0][1] == "tasks:greet"


def test_run_moves_jobs_that_are_due_later(shop: Shop) -> None:
    first = shop.ok("enqueue", "greet", "Bob", "--delay", "1h").out.strip()
    shop.ok("enqueue", "greet", "Eve", "--delay", "1h")
    assert shop.ok("job", "run", first).rows == [[first, "due now"]]
    again = shop.run("job", "run", first, "mail:unknown")
    assert (again.code, again.rows) == (
        Exit.NOT_FOUND,
        [[first, "not due later: SENT"], ["mail:unknown", "unknown"]],
    )
    assert shop.ok("job", "run", "--where", "task:greet", "--dry-run").out == "1 job would run now\n"
    assert shop.ok("job", "run", "--where", "Eve", "--yes").out == "1 job due now\n"
    assert shop.ok("job", "run", "--where", "Eve", "--yes", "--json").json["count"] == 0
    assert len(shop.ok("job", "list", "--where", "state:waiting").rows) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name jobs by their ids, or select them with --where"),
        (["mail:1", "--where", "x"], "but not both"),
        (["mail:1", "--dry-run"], "but not both"),
        (["--where", "state:dead"], "jobs in state dead cannot be run now, only retry, scheduled"),
    ],
)
def test_a_wrong_run_runs_nothing(shop: Shop, words: list[str], sentence: str) -> None:
    answer = shop.run("job", "run", *words)
    assert answer.code == Exit.USAGE
    assert sentence in " ".join(answer.err.split())


def test_operations_are_listed_and_shown(shop: Shop) -> None:
    assert Terminal("op", "list", folder=shop.folder).lines() == ["No operations in the last thirty days."]
    send(shop, 3)
    shop.ok("job", "cancel", "--where", "task:welcome since:1h", "--yes", "--reason", "too many")
    operation = only(shop)
    [row] = shop.ok("op", "list").rows
    assert row[:5] == [operation, "cancel", "done", "3", "3"]
    facts = dict(shop.ok("op", "show", operation).rows)
    assert (facts["id"], facts["reason"], facts["done"], facts["passed"]) == (operation, "too many", "3", "0")
    assert "since:" in facts["where"]
    assert shop.ok("op", "show", operation, "--json").json["state"] == "done"
    for columns in (60, 120):
        lines = Terminal("op", "list", folder=shop.folder, columns=columns, NO_COLOR="1").lines()
        assert lines[1].startswith(operation)
        assert all(len(line) <= columns for line in lines)


def test_an_operation_that_is_done_is_neither_stopped_nor_done_again(shop: Shop) -> None:
    send(shop, 3)
    shop.ok("job", "cancel", "--where", "task:welcome", "--yes")
    operation = only(shop)
    stopped = shop.run("op", "stop", operation)
    assert (stopped.code, stopped.out) == (Exit.FAILED, f"{operation}: done, 3 of 3 jobs\n")
    assert shop.ok("op", "resume", operation).out == "3 jobs cancelled or asked to stop\n"


@pytest.mark.parametrize("command", ["show", "stop", "resume"])
def test_an_unknown_operation_is_not_found(shop: Shop, command: str) -> None:
    answer = shop.run("op", command, "unknown")
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert "no operation 'unknown': `fennelq op list` shows them" in answer.err
    assert shop.run("op", command, "a b").code == Exit.USAGE


@pytest.mark.parametrize(
    "point",
    [
        "answered:op_begin:1",
        "before:cancel:1",
        "answered:cancel:1",
        "answered:cancel:2",
        "before:op_perform:3",
        "answered:op_perform:3",
        "answered:find:5",
    ],
)
def test_an_operation_survives_the_death_of_its_process(shop: Shop, server: Server, point: str) -> None:
    send(shop, 250)
    code = crashed(shop, point, "job", "cancel", "--where", "task:welcome", "--yes")
    assert code == 137
    operation = only(shop)
    if shop.ok("op", "show", operation, "--json").json["by"]:
        busy = shop.run("op", "resume", operation)
        assert busy.code == Exit.FAILED
        assert "is being performed by" in busy.err
        with server.client() as client:
            client.hset(AppKeys("shop").operation(operation), "beat", "1")
    shop.ok("op", "resume", operation)
    shown = shop.ok("op", "show", operation, "--json").json
    assert shown["state"] == "done"
    assert 150 <= shown["done"] <= 250
    assert shop.ok("job", "list").rows == []
    with server.client() as client:
        assert client.hget(queue_keys("shop", "mail")["stats"], "K") == b"250"


def test_ctrl_c_stops_an_operation_which_is_resumed_later(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A suite that runs in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    send(shop, 100)
    cancel, pressed = verbs.jobs.cancel, list[int]()

    def pressing(*args: Any) -> Any:
        if not pressed:
            pressed.append(1)
            os.kill(os.getpid(), signal.SIGINT)
        return cancel(*args)

    monkeypatch.setattr(acting, "MOST_JOBS", 5)
    monkeypatch.setattr(verbs.jobs, "cancel", pressing)
    answer = shop.run("job", "cancel", "--where", "task:welcome", "--yes")
    operation = only(shop)
    assert answer.code == Exit.INTERRUPTED
    assert re.match(
        rf"\n?Interrupted after \d+ of 100 jobs; `fennelq op resume {operation}` continues it", answer.err
    )
    shown = shop.ok("op", "show", operation, "--json").json
    assert shown["state"] == "stopped"
    assert 5 <= shown["done"] < 100
    assert shop.ok("op", "resume", operation).out == "100 jobs cancelled or asked to stop\n"
    with server.client() as client:
        assert client.hget(queue_keys("shop", "mail")["stats"], "K") == b"100"


def test_an_operation_that_another_process_has_stopped_says_how_to_go_on(shop: Shop, server: Server) -> None:
    send(shop, 150)
    assert crashed(shop, "answered:cancel:1", "job", "cancel", "--where", "task:welcome", "--yes") == 137
    operation = only(shop)
    assert shop.ok("op", "stop", operation).out == f"{operation}: stopped, 0 of 150 jobs\n"
    assert shop.ok("op", "resume", operation).out == "50 jobs cancelled or asked to stop\n"
    with server.client() as client:
        assert client.hget(queue_keys("shop", "mail")["stats"], "K") == b"150"
