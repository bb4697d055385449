"""`fennelq worker list`, `show`, `stacks` and `drain`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from fennelq.broker.keys import executors_key
from fennelq.cli.exits import Exit
from fennelq.manage.executors import asking
from fennelq.worker.executor import Executor
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.cli.test_lists import in_pipe, on_terminal
from tests.kit.server import Server
from tests.kit.waiting import eventually
from tests.kit.workers import running_aside

LONG = 30.0
HOSTILE = "\x1b[2J\u202e{x}"
FACTS: dict[str, Any] = {
    "host": "web",
    "pid": 812,
    "concurrency": 32,
    "running": 3,
    "stuck": 0,
    "done": 9,
    "uptime": 7500.5,
    "version": "0.1.0",
    "rss": 190 << 20,
    "lag": 0.004,
    "queues": ["mail", "reports"],
    "interval": 3600,
}


@pytest.fixture
def crew(shop: Shop, server: Server) -> Shop:
    """Five executors: one works, one is blocked, one is silent, one has ended, one has an earlier version."""
    longest = {"job": "mail:7", "task": "shop.tasks:report", "seconds": 75.2}
    blocked = {"at": f"/srv/shop/tasks.py:20 in {HOSTILE}", "job": f"shop:f (mail:{HOSTILE})", "seconds": 2.5}
    old = {name: FACTS[name] for name in ("host", "pid", "concurrency", "running", "queues", "interval")}
    report(server, "web.1.aaaaaa", {**FACTS, "longest": longest})
    report(server, "web.2.bbbbbb", {**FACTS, "running": 1, "blocked": blocked})
    report(server, "web.3.cccccc", FACTS, seconds_ago=3 * 3600 + 60)
    report(server, "web.4.dddddd", {**FACTS, "died": "SIGKILL"})
    report(server, "web.5.eeeeee", old)
    return shop


def report(server: Server, name: str, facts: dict[str, Any], *, seconds_ago: int = 0) -> None:
    with server.client() as client:
        seconds, micros = client.time()
        beat = (seconds - seconds_ago) * 1000 + micros // 1000
        client.hset(executors_key("shop"), name, orjson.dumps({**facts, "beat_ms": beat}))


@contextmanager
def worker(shop: Shop, **how: Any) -> Generator[Executor]:
    """An executor in this process. Its log would go between the lines of the commands."""
    with capture_logs(), running_aside(shop.app, **how) as executor:
        eventually(lambda: executor.state.listening and executor.state.connected, within=LONG)
        yield executor


# List


def test_list(crew: Shop) -> None:
    assert on_terminal(crew, 60, "worker", "list") == [
        "NAME          STATE    JOBS  NOW",
        "web.1.aaaaaa  works    3/32  shop.tasks:report 75 s +2",
        r"web.2.bbbbbb  blocked  1/32  2.5 s at tasks.py:20 in \x1b[2…",
        "web.3.cccccc  silent   3/32  last seen 3 h 1 min ago",
        "web.5.eeeeee  works    3/32",
        "Not shown in 60 columns: lag, rss, up, queues, version,",
        "host, pid.",
        "1 executor ended within the last hour: add --all.",
    ]
    facts = "4.0 ms 190 MiB 2 h 5 min mail, reports 0.1.0 web 812"
    heading, *rows, note = on_terminal(crew, 120, "worker", "list")
    assert heading.split() == [
        "NAME",
        "STATE",
        "JOBS",
        "NOW",
        "LAG",
        "RSS",
        "UP",
        "QUEUES",
        "VERSION",
        "HOST",
        "PID",
    ]
    assert [" ".join(row.split()) for row in rows] == [
        f"web.1.aaaaaa works 3/32 shop.tasks:report 75 s +2 {facts}",
        f"web.2.bbbbbb blocked 1/32 2.5 s at tasks.py:20 in \\x1… {facts}",
        f"web.3.cccccc silent 3/32 last seen 3 h 1 min ago {facts}",
        "web.5.eeeeee works 3/32 mail, reports web 812",
    ]
    assert note == "1 executor ended within the last hour: add --all."
    ended = [line for line in crew.ok("worker", "list", "--all").rows if line[0] == "web.4.dddddd"]
    assert ended[0][1] == "ended: SIGKILL"


def test_the_lists_in_json(crew: Shop) -> None:
    shown = crew.ok("worker", "list", "--json").json
    assert [(one["name"], one["state"]) for one in shown] == [
        ("web.1.aaaaaa", "works"),
        ("web.2.bbbbbb", "blocked"),
        ("web.3.cccccc", "silent"),
        ("web.5.eeeeee", "works"),
    ]
    assert shown[0]["longest"]["seconds"] == 75.2
    assert len(crew.ok("worker", "list", "--all", "--json").json) == 5


def test_without_all_the_executors_that_have_ended_are_counted(crew: Shop) -> None:
    assert crew.ok("worker", "list").err == "1 executor ended within the last hour: add --all.\n"
    assert crew.ok("worker", "list", "--all").err == ""


def test_without_executors_the_list_is_a_sentence(shop: Shop) -> None:
    assert on_terminal(shop, 60, "worker", "list") == ["No executors: start a worker with `fennelq worker`."]
    assert in_pipe(shop, "worker", "list") == []
    assert shop.ok("worker", "list", "--json").json == []


def test_facts_that_are_nonsense_are_listed_as_far_as_possible(shop: Shop, server: Server) -> None:
    nonsense = dict.fromkeys(FACTS, HOSTILE) | {"queues": [HOSTILE] * 100, "blocked": 7, "longest": HOSTILE}
    report(server, HOSTILE + "n" * (1 << 20), nonsense)
    report(
        server, "big", {**FACTS, "version": "v" * (1 << 20), "uptime": -1e300, "rss": 10**18, "lag": 1e300}
    )
    for columns in (60, 120):
        terminal = Terminal("worker", "list", folder=shop.folder, columns=columns, NO_COLOR="1")
        assert not any(set(line) & {"\x1b", "\u202e"} for line in terminal.lines())
        assert len(terminal.text) < 2000
    shown = shop.ok("worker", "show", "big").out
    assert "\x1b" not in shown


def test_show(crew: Shop) -> None:
    shown = dict(line.split("\t") for line in in_pipe(crew, "worker", "show", "web.2"))
    assert shown["state"] == "blocked"
    assert shown["jobs"] == "1/32"
    assert shown["blocked"] == (
        "2.5 s at /srv/shop/tasks.py:20 in \\x1b[2J\\u202e{x}, by shop:f (mail:\\x1b[2J\\u202e{x})"
    )
    assert crew.ok("worker", "show", "web.1", "--json").json["longest"]["job"] == "mail:7"
    assert "shop.tasks:report (mail:7), 75 s" in crew.ok("worker", "show", "web.1").out


# Names


@pytest.mark.parametrize("command", ["show", "stacks", "drain"])
def test_names_are_checked(crew: Shop, command: str) -> None:
    unknown = crew.run("worker", command, "web.2.bbbbbc")
    assert (unknown.code, unknown.out) == (Exit.NOT_FOUND, "")
    assert unknown.err == "fennelq: no executor 'web.2.bbbbbc': did you mean 'web.2.bbbbbb'?\n"
    several = crew.run("worker", command, "web")
    assert (several.code, several.out) == (Exit.USAGE, "")
    assert "begin with 'web': web.1.aaaaaa, web.2.bbbbbb, web.5.eeeeee. Write more of the name" in several.err


# The command and its commands


def test_options_before_a_command_are_refused(crew: Shop) -> None:
    answer = crew.run("worker", "-p", "3", "list")
    assert answer.code == Exit.USAGE
    assert "write --processes after the command: fennelq worker list --processes" in " ".join(
        answer.err.split()
    )


def test_the_worker_itself_takes_no_arguments(shop: Shop) -> None:
    answer = shop.run("worker", "nonsense")
    assert answer.code == Exit.USAGE
    assert "nonsense" in answer.err


# Stacks


def test_stacks_show_what_blocks_the_loop(shop: Shop) -> None:
    held, release = threading.Event(), threading.Event()

    @shop.app.task(name="shop:block")
    async def block() -> None:
        held.set()
        release.wait(60)

    with worker(shop) as executor:
        try:
            job = shop.ok("enqueue", "shop:block").out.strip()
            assert held.wait(LONG)
            shown = shop.ok("worker", "stacks", executor.name).out
            every = shop.ok("worker", "stacks").out
            (document,) = shop.ok("worker", "stacks", "--json").json
        finally:
            release.set()
    for text in (shown, every):
        assert text.splitlines()[0] == executor.name
        (heading,) = [line for line in text.splitlines() if line.startswith("event loop ")]
        assert f": shop:block ({job}), " in heading
        assert f"  {__file__}:" in text
        assert " in block\n" in text
    assert document["executor"] == executor.name
    assert {one["kind"] for one in document["stacks"]} == {"loop", "thread", "task"}


def test_stacks_that_are_the_same_are_printed_once(shop: Shop) -> None:
    release = threading.Event()

    @shop.app.task(name="shop:hold")
    def hold() -> None:
        release.wait(60)

    with worker(shop, concurrency=8) as executor:
        try:
            for _ in range(7):
                shop.ok("enqueue", "shop:hold")
            eventually(lambda: executor.slots.taken == 7, within=LONG)
            shown = shop.ok("worker", "stacks", executor.name).out
        finally:
            release.set()
    headings = [line for line in shown.splitlines() if line.startswith("7 threads: shop:hold (")]
    assert len(headings) == 1
    assert headings[0].endswith(" and 2 more")


def test_stacks_without_an_executor(shop: Shop) -> None:
    answer = shop.run("worker", "stacks")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert answer.err == "fennelq: no executor runs; start a worker with `fennelq worker`\n"


def test_stacks_of_many_executors_need_a_name(shop: Shop, server: Server) -> None:
    for number in range(11):
        report(server, f"web.{number}", FACTS)
    answer = shop.run("worker", "stacks")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "11 executors run: add the name of one" in answer.err


def test_of_several_executors_those_that_do_not_answer_are_named(crew: Shop) -> None:
    with worker(crew) as executor:
        answer = crew.run("worker", "stacks")
    assert answer.code == Exit.FAILED
    assert answer.out.splitlines()[0] == executor.name
    assert "executor web.1.aaaaaa does not listen" in answer.err
    assert "executor web.5.eeeeee has an earlier version of fennelq (unknown)" in answer.err


def test_an_executor_that_does_not_answer_is_a_failure(crew: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "WITHIN", 0.2)
    for words in (("stacks", "web.3"), ("drain", "web.3", "--yes")):
        answer = crew.run("worker", *words)
        assert (answer.code, answer.out) == (Exit.FAILED, "")
        assert "executor web.3.cccccc did not answer within 0.2 s, and has not reported" in answer.err
    ended = crew.run("worker", "drain", "web.4", "--yes")
    assert (ended.code, ended.err) == (Exit.FAILED, "fennelq: executor web.4.dddddd has ended: SIGKILL\n")


# Drain


def test_drain_asks_first(crew: Shop) -> None:
    answer = crew.run("worker", "drain", "web.1")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert answer.err == (
        "fennelq: Drain web.1.aaaaaa, which runs 3 jobs now? No executor takes its place. Add --yes to do it.\n"
    )
    assert "A new executor takes its place." in crew.run("worker", "drain", "web.1", "--replace").err


@pytest.mark.parametrize(
    ("grace", "says"),
    [
        ("-1", "is not a duration"),
        ("nan", "is not a duration"),
        ("inf", "is not a duration"),
        ("soon", "is not a duration"),
        ("9" * 400, "is not a duration"),
        ("20000d", "use the seconds that running jobs get, from 0 to ten years"),
    ],
)
def test_a_grace_period_that_makes_no_sense_is_refused(crew: Shop, grace: str, says: str) -> None:
    answer = crew.run("worker", "drain", "web.1", f"--grace={grace}", "--yes")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert says in " ".join(answer.err.replace("│", " ").split())


def test_drain_waits_until_the_executor_has_ended(shop: Shop) -> None:
    held, release = threading.Event(), threading.Event()

    @shop.app.task(name="shop:hold")
    def hold() -> str:
        held.set()
        release.wait(60)
        return "held"

    with worker(shop) as executor:
        try:
            job = shop.ok("enqueue", "shop:hold").out.strip()
            assert held.wait(LONG)
            first = shop.ok("worker", "drain", executor.name, "--yes", "--no-wait", "--grace", "10m")
            assert first.out == f"{executor.name} drains: 1 job left\n"
            eventually(lambda: shop.ok("worker", "list").rows[0][1] == "draining", within=LONG)
            second = Terminal("worker", "drain", executor.name, "--yes", folder=shop.folder)
            second.shows(f"{executor.name} drains: 1 job left", within=LONG)
            release.set()
            assert second.code() == 0
            assert f"{executor.name} is drained" in second.text
        finally:
            release.set()
    assert shop.ok("worker", "list", "--all").out == ""
    assert shop.ok("job", "wait", job).out == '"held"\n'


def test_drain_in_json(shop: Shop) -> None:
    with worker(shop) as executor:
        shown = shop.ok("worker", "drain", executor.name, "--yes", "--json").json
    assert shown == {"name": executor.name, "running": 0, "ended": True}


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"died": "SIGKILL"}, "was not drained, it has ended: SIGKILL."),
        ({"beat_ms": 1}, "does not report any more, before it was drained."),
    ],
)
def test_an_executor_that_dies_while_it_drains_is_a_failure(
    shop: Shop, server: Server, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], sentence: str
) -> None:
    name = "web.1"
    report(server, name, FACTS)

    def agrees(*_: object) -> Any:
        with server.client() as client:
            client.hset(executors_key("shop"), name, orjson.dumps({**FACTS, "beat_ms": 1, **facts}))
        yield from ()
        return {"running": 3}

    monkeypatch.setattr("fennelq.manage.executors.executors.answer_of", agrees)
    answer = shop.run("worker", "drain", name, "--yes")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert sentence in answer.err
    assert "Other executors take over its jobs when their leases have run out" in answer.err


def test_ctrl_c_leaves_the_executor_draining(shop: Shop) -> None:
    release = threading.Event()

    @shop.app.task(name="shop:hold")
    def hold() -> None:
        release.wait(60)

    with worker(shop) as executor:
        try:
            shop.ok("enqueue", "shop:hold")
            eventually(lambda: executor.slots.taken == 1, within=LONG)
            terminal = Terminal(
                "worker", "drain", executor.name, "--yes", "--grace", "10m", folder=shop.folder
            )
            terminal.shows("drains: 1 job left", within=LONG)
            os.kill(terminal.pid, signal.SIGINT)
            assert terminal.code() == Exit.INTERRUPTED
            assert f"{executor.name} goes on draining" in terminal.text
            assert "Traceback" not in terminal.text
        finally:
            release.set()
