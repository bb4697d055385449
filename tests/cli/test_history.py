"""`fennelq history`, and what `job show` and `job list` take from the history."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.verb import Command
from fennelq.cli.exits import Exit
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.cli.test_commands import fennelq
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "history.db"


@pytest.fixture
def recorded(shop: Shop, path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop with a history: one job has succeeded, one is dead, one was cancelled."""
    monkeypatch.setenv("FENNELQ_HISTORY_URL", f"sqlite://{path}")
    assert record(shop) == {"recorded": 0, "read": 0, "missed": 0, "pruned": 0}
    shop.ok("enqueue", "welcome", "1", "--job-id", "done")
    shop.ok("enqueue", "charge", "2", "--job-id", "dead")
    shop.work()
    shop.ok("enqueue", "greet", "ada", "--job-id", "cancelled")
    shop.ok("job", "cancel", "mail:cancelled", "--reason", "not needed")
    assert record(shop)["recorded"] == 3
    return shop


def record(shop: Shop) -> dict[str, int]:
    with capture_logs():
        found: dict[str, int] = shop.ok("history", "run", "--once", "--json").json
    return found


def forget_records(shop: Shop) -> None:
    """Their records have expired."""

    async def forget(app: App) -> None:
        for queue, key in (("mail", "done"), ("mail", "cancelled"), ("default", "dead")):
            keys = queue_keys("shop", queue)
            await app.client.ask(Command(["DEL", keys.record(key), keys.result(key)], int))

    shop.ok("dlq", "purge", "--all", "--yes")
    shop.do(forget)


def ids(shop: Shop, *words: str) -> list[str]:
    return [job["id"] for job in shop.ok(*words, "--json").json]


def test_search_lists_the_latest_end_first(recorded: Shop) -> None:
    assert ids(recorded, "history", "search")[0] == "mail:cancelled"
    assert set(ids(recorded, "history", "search")) == {"mail:done", "default:dead", "mail:cancelled"}
    assert ids(recorded, "history", "search", "state:dead task:charge error:CardRefused") == ["default:dead"]
    assert ids(recorded, "history", "search", "greet") == []
    assert ids(recorded, "history", "search", "ada") == ["mail:cancelled"]
    assert ids(recorded, "history", "search", "--limit", "1") == ["mail:cancelled"]
    assert recorded.ok("history", "search", "task:none").rows == []
    (row,) = recorded.ok("history", "search", "state:success").rows
    assert (row[0], row[1], row[2], row[7]) == ("mail:done", "tasks:welcome", "success", "[[1],{}]")


def test_search_needs_no_redis(recorded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNELQ_REDIS_URL", "redis://127.0.0.1:1")
    assert fennelq("history", "search", "state:dead", folder=recorded.folder).out.startswith("default:dead\t")


def test_a_wrong_filter_is_one_sentence(recorded: Shop) -> None:
    answer = recorded.run("history", "search", "stat:dead")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "did you mean 'state'?" in answer.err
    assert "the history has jobs that have ended" in recorded.run("history", "search", "state:running").err


def test_stats_show_what_there_is_and_a_chart(recorded: Shop) -> None:
    stats = recorded.ok("history", "stats", "--json").json
    assert (stats["rows"], stats["missed"], stats["version"]) == (3, 0, 2)
    assert {(one["status"], one["jobs"]) for one in stats["chart"]} == {
        ("SUCCESS", 1),
        ("DEAD", 1),
        ("CANCELLED", 1),
    }
    (row,) = [row for row in recorded.ok("history", "stats").rows if len(row) > 2]
    assert row[1:4] == ["1", "1", "1"]
    assert (
        recorded.ok("history", "stats", "--by", "hour", "--queue", "mail", "--json").json["chart"][0]["jobs"]
        == 1
    )
    assert recorded.ok("history", "stats", "--task", "charge", "--json").json["chart"][0]["status"] == "DEAD"
    assert recorded.ok("history", "stats", "--task", "none", "--json").json["chart"] == []


@pytest.mark.parametrize("columns", [60, 120])
def test_tables_fit_a_terminal(recorded: Shop, columns: int) -> None:
    for words in (("history", "search"), ("history", "stats", "--by", "hour")):
        lines = Terminal(*words, folder=recorded.folder, columns=columns, NO_COLOR="1").lines()
        rows = [line for line in lines if not line.startswith(("where", "Not shown"))]
        assert rows
        assert all(len(line) <= columns for line in rows), rows


def test_a_job_whose_record_has_expired_is_shown_from_the_history(recorded: Shop) -> None:
    forget_records(recorded)
    dead = recorded.ok("job", "show", "default:dead").facts
    assert dead["story"] == "It died after 1 try: tasks.CardRefused: no money for 2."
    assert (dead["status"], dead["arguments"]) == ("DEAD", "[[2],{}]")
    assert "CardRefused" in recorded.ok("job", "show", "default:dead").out
    assert recorded.ok("job", "show", "mail:cancelled", "--json").json["reason"] == "not needed"
    answer = recorded.run("job", "show", "mail:none")
    assert (answer.code, answer.err) == (
        Exit.NOT_FOUND,
        "fennelq: job mail:none has no record: it was never sent, or it ended too long ago\n",
    )


def test_a_list_of_jobs_has_those_in_lists_and_those_of_the_history(recorded: Shop) -> None:
    recorded.ok("enqueue", "welcome", "3", "--job-id", "waits")
    assert ids(recorded, "job", "list") == ["default:dead", "mail:waits"]
    assert ids(recorded, "job", "list", "--where", "state:success state:waiting") == [
        "mail:waits",
        "mail:done",
    ]
    assert ids(recorded, "job", "list", "--where", "state:success state:waiting", "-n", "1") == ["mail:waits"]
    assert ids(recorded, "job", "list", "--where", "state:cancelled task:greet") == ["mail:cancelled"]
    forget_records(recorded)
    assert ids(recorded, "job", "list", "--where", "id:mail:done") == ["mail:done"]
    answer = recorded.run("job", "list", "--where", "id:mail:none")
    assert answer.code == Exit.NOT_FOUND
    assert "job mail:none has no record" in answer.err


def test_an_export_of_jobs_has_those_in_lists_and_those_of_the_history(recorded: Shop) -> None:
    def exported(*words: str) -> list[str]:
        return [json.loads(line)["id"] for line in recorded.ok("job", "export", *words).out.splitlines()]

    assert exported("--where", "state:success") == ["mail:done"]
    assert set(exported("--where", "state:success state:cancelled")) == {"mail:done", "mail:cancelled"}
    assert exported("--where", "state:success state:cancelled", "--limit", "1") == ["mail:cancelled"]
    assert exported("--where", "state:dead") == ["default:dead"]
    assert set(exported("--where", "id:mail:done id:default:dead")) == {"mail:done", "default:dead"}


def test_without_a_history_a_filter_of_ended_jobs_says_how_to_get_one(shop: Shop) -> None:
    answer = shop.run("job", "list", "--where", "state:success")
    assert answer.code == Exit.USAGE
    assert "set history_url and use `fennelq history`" in answer.err
    answer = shop.run("history", "search")
    assert answer.code == Exit.CONFIGURATION
    assert "this app has no history: set history_url" in answer.err


def test_prune_asks_and_removes(recorded: Shop) -> None:
    answer = recorded.run("history", "prune", "--keep", "0s")
    assert answer.code == Exit.USAGE
    assert "Remove the old ones of 3 jobs from sqlite://" in answer.err
    assert recorded.ok("history", "prune", "--keep", "0s", "--yes", "--json").json == {"removed": 2}
    assert ids(recorded, "history", "search") == ["default:dead"]
    bounded = recorded.ok("history", "prune", "--keep-dead", "forever", "--max-rows", "1", "--yes")
    assert bounded.out == "0 jobs removed\n"


def test_migrate_reports_the_versions(recorded: Shop, path: Path) -> None:
    assert recorded.ok("history", "migrate").out == "version 2 already\n"
    with sqlite3.connect(path) as connection:
        for table in ("fennelq_history", "jobs", "counts", "hours", "gaps", "audit"):
            connection.execute(f"DROP TABLE {table}")
    assert recorded.ok("history", "migrate").out == "version 2, new\n"
    assert recorded.ok("history", "migrate", "--json").json == {"before": 2, "version": 2}


@pytest.mark.parametrize(
    "words", [("run", "--once"), ("search",), ("stats",), ("prune", "--yes"), ("migrate",)], ids=" ".join
)
def test_a_newer_database_is_one_sentence(recorded: Shop, path: Path, words: tuple[str, ...]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE fennelq_history SET version = 7")
    with capture_logs():
        answer = recorded.run("history", *words)
    assert answer.code == Exit.CONFIGURATION
    assert answer.out == ""
    assert f"fennelq: the history in sqlite://{path} has version 7 of its tables" in answer.err


def test_a_database_that_is_away_is_one_sentence(recorded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("FENNELQ_HISTORY_URL", "postgresql://ada:secret@127.0.0.1:1/shop")
    answer = fennelq("history", "search", folder=recorded.folder)
    assert answer.code == Exit.UNAVAILABLE
    assert "the history in postgresql://ada:***@127.0.0.1:1/shop cannot be reached" in answer.err
    assert "secret" not in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "--only", "dead,lost"), "'lost' is not an end: write success, dead, cancelled"),
        (("run", "--sample", "2"), "'2' is not a share: write a number from 0 to 1"),
        (("run", "--keep", "never"), "'never' is not a duration"),
        (("stats", "--by", "week"), "'week' is not one of hour, day"),
        (("prune", "--max-rows", "0"), "greater than or equal to 1"),
    ],
)
def test_wrong_options_are_explained(recorded: Shop, words: tuple[str, ...], sentence: str) -> None:
    answer = recorded.run("history", *words)
    assert answer.code == Exit.USAGE
    assert sentence in " ".join(answer.err.split()).replace("│ ", "")


def test_a_recorder_records_until_a_signal_ends_it(recorded: Shop, spawn: Spawner, path: Path) -> None:
    recorder = spawn("fennelq", "history", "run", "--app-dir", str(recorded.folder), "--app", "tasks")
    recorder.wait_for("history_started")
    recorded.ok("enqueue", "welcome", "5", "--job-id", "later")
    recorded.work()
    eventually(lambda: "mail:later" in ids(recorded, "history", "search"))
    recorder.term()
    recorder.wait_for("history_stopped")
    assert recorder.returncode() == 0


@pytest.mark.parametrize("url", ["mysql://h/d", "sqlite://h.db", "sqlite:///folder/", "history.db"])
def test_a_wrong_url_is_refused_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("FENNELQ_HISTORY_URL", url)
    answer = shop.run("history", "search")
    assert answer.code == Exit.CONFIGURATION
    assert "history_url" in answer.err
    assert "FENNELQ_HISTORY_URL" in answer.err


def test_the_audit_lists_operations_that_redis_has_forgotten(recorded: Shop, path: Path) -> None:
    record(recorded)
    before = recorded.ok("audit", "--json").json
    assert [entry["what"] for entry in before] == ["job cancel"]

    async def forget(app: App) -> None:
        await app.client.ask(Command(["DEL", AppKeys("shop")["audit"]], int))

    recorded.do(forget)
    assert recorded.ok("audit", "--json").json == before
    recorded.ok("queue", "pause", "mail")
    assert [entry["what"] for entry in recorded.ok("audit", "--json").json] == ["queue pause", "job cancel"]
    assert [entry["what"] for entry in recorded.ok("audit", "--limit", "1", "--json").json] == ["queue pause"]
    assert [entry["what"] for entry in recorded.ok("audit", "--what", "job", "--json").json] == ["job cancel"]
    path.write_bytes(b"no database at all" * 100)
    answer = recorded.ok("audit", "--json")
    assert [entry["what"] for entry in answer.json] == ["queue pause"]
    assert "Only what Redis keeps: the history in" in answer.err
