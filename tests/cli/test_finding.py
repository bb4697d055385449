"""`fennelq job list` and `fennelq job export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fennelq.broker.keys import queue_keys
from fennelq.cli.exits import Exit
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.kit.server import Server

pytestmark = pytest.mark.audit(unfinished=True)


def fill(shop: Shop) -> list[str]:
    """A dead job, one that waits, and one that is scheduled; their ids."""
    [dead] = shop.kill(1)
    waiting = shop.ok("enqueue", "welcome", "42", "--job-id", "order-17").out.strip()
    later = shop.ok("enqueue", "greet", "Bob", "--delay", "1h").out.strip()
    return [dead, waiting, later]


def listed(shop: Shop, *words: str) -> list[str]:
    return [row[0] for row in shop.ok("job", "list", *words).rows]


def test_list_prints_the_jobs_that_meet_a_filter(shop: Shop) -> None:
    dead, waiting, later = fill(shop)
    assert listed(shop) == [dead, later, waiting]
    assert listed(shop, "--where", "state:dead") == [dead]
    assert listed(shop, "--where", "task:welcome 42") == [waiting]
    assert listed(shop, "--where", "-state:dead queue:mail") == [later, waiting]
    assert listed(shop, "--where", "state:running") == []
    assert listed(shop, "--limit", "2") == [dead, later]
    assert listed(shop, "--where", waiting) == [waiting]


def test_a_row_has_what_is_known(shop: Shop) -> None:
    fill(shop)
    rows = {row[2]: row for row in shop.ok("job", "list").rows}
    assert rows["dead"][1] == "tasks:charge"
    assert rows["dead"][3] == "1"
    assert rows["dead"][6:] == ["tasks.CardRefused", "[[0],{}]"]
    assert rows["waiting"][5:] == ["", "", "[[42],{}]"]
    assert rows["scheduled"][4] < rows["scheduled"][5]


def test_list_prints_documents_as_job_show_does(shop: Shop) -> None:
    fill(shop)
    jobs = shop.ok("job", "list", "--json").json
    shown = [shop.ok("job", "show", job["id"], "--json").json for job in jobs]
    for job, known in zip(jobs, shown, strict=True):
        del known["history"], known["waiting_because"], job["waiting_because"]
        assert {name: known[name] for name in job} == job
    assert shop.ok("job", "list", "--where", "state:running", "--json").json == []


def test_a_limit_that_is_reached_is_reported(shop: Shop) -> None:
    fill(shop)
    answer = shop.ok("job", "list", "--limit", "2")
    assert answer.err == "The first 2 jobs: there may be more. `fennelq job export` has all of them.\n"
    assert shop.ok("job", "list", "--limit", "4").err == ""


@pytest.mark.parametrize("command", ["list", "export"])
@pytest.mark.parametrize(
    ("where", "code", "sentence"),
    [
        ("taks:welcome", Exit.USAGE, "unknown filter word 'taks': did you mean 'task'?"),
        ("since:2099-01-01", Exit.USAGE, "is in the future"),
        ("wel.*", Exit.USAGE, "looks like a pattern"),
        ("state:success", Exit.USAGE, "state:success cannot be searched"),
        ("queue:mial", Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        ("-queue:mial", Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        ("mail:unknown", Exit.NOT_FOUND, "job mail:unknown has no record"),
        ("mial:unknown", Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
    ],
)
def test_a_wrong_filter_prints_nothing(
    shop: Shop, command: str, where: str, code: Exit, sentence: str
) -> None:
    fill(shop)
    answer = shop.run("job", command, "--where", where)
    assert (answer.code, answer.out) == (code, "")
    assert sentence in " ".join(answer.err.split())


def test_a_task_that_the_app_does_not_have_gets_a_note(shop: Shop) -> None:
    fill(shop)
    answer = shop.ok("job", "list", "--where", "task:welcom")
    assert answer.err == "fennelq: the app has no task 'welcom': did you mean 'welcome'?\n"


def test_an_export_has_a_line_for_each_job(shop: Shop, tmp_path: Path) -> None:
    dead, waiting, later = fill(shop)
    lines = [json.loads(line) for line in shop.ok("job", "export").out.splitlines()]
    assert [line["id"] for line in lines] == [dead, later, waiting]
    shown = shop.ok("job", "list", "--json").json
    assert lines == [{"v": 1, "app": "shop", **job, "redacted": False} for job in shown]
    file = tmp_path / "jobs.jsonl"
    answer = shop.ok("job", "export", "--where", "queue:mail", "-o", str(file))
    assert answer.err == f"2 jobs written to {file}\n"
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == [later, waiting]
    assert shop.run("job", "export", "-o", "/nowhere/x").code == Exit.FAILED
    one = shop.ok("job", "export", "--limit", "1").out
    assert one.count("\n") == 1


@pytest.mark.audit(skip="a queue and a record are damaged by hand")
def test_what_can_be_read_is_printed_and_the_rest_is_reported(shop: Shop, server: Server) -> None:
    _, waiting, later = fill(shop)
    with server.client() as client:
        client.set(queue_keys("shop", "default")["sched"], "what?")
        client.hset(queue_keys("shop", "mail").record(later.partition(":")[2]), "n", "many")
    answer = shop.run("job", "list", "--where", "-state:dead")
    assert [row[0] for row in answer.rows] == [waiting]
    assert answer.code == Exit.CONFIGURATION
    assert "has a problem with queue 'default'" in answer.err
    assert "1 job passed over, because the records cannot be read" in answer.err
    for words in ("cancel --dry-run", "run --dry-run"):
        answer = shop.run("job", *words.split(), "--where", "task:nobody")
        assert answer.code == Exit.FAILED
        assert "not all jobs are counted: Redis at" in answer.err
    shop.ok("job", "cancel", "--dry-run", "--where", "queue:mail")


def test_hostile_texts_are_escaped_and_cut(shop: Shop) -> None:
    shop.ok("enqueue", "greet", "\x1b[2J\u202e{x}" + "y" * 100_000)
    for columns in (60, 120):
        terminal = Terminal("job", "list", folder=shop.folder, columns=columns, NO_COLOR="1")
        lines = terminal.lines()
        assert all(len(line) <= columns for line in lines)
        assert "\x1b" not in "".join(lines)
    assert "\x1b" not in shop.ok("job", "list").out
    assert "\u202e" not in shop.ok("job", "list").out
    assert shop.ok("job", "export").out.count("\n") == 1


def test_nothing_to_list_is_a_sentence_on_a_terminal(shop: Shop) -> None:
    assert Terminal("job", "list", folder=shop.folder).lines() == ["No jobs."]
    assert Terminal("job", "list", "--where", "x", folder=shop.folder).lines() == ["No job matches."]
