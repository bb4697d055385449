"""The databases of the history: each row once, sums that fit the rows, filters, pruning, versions."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fennelq.errors import HistoryRefused, InvalidFilter
from fennelq.manage.audit_entry import AuditEntry
from fennelq.manage.history import sql
from fennelq.manage.history.operations import Wanted
from fennelq.manage.history.row import Row
from fennelq.manage.history.schema import STEPS
from fennelq.manage.history.sql import DAY_MS, SqlStore
from fennelq.manage.history.store import FIRST, Gap, HistoryKeep, Place
from fennelq.manage.history.sums import HOUR_MS
from fennelq.model.query import parse
from tests.manage.history.conftest import Opened

NOON = 1_800_000_000_000
NOW = datetime.fromtimestamp(NOON / 1000, UTC)


def a_row(name: str = "1", status: str = "SUCCESS", ended: int = NOON, **more: Any) -> Row:
    facts: dict[str, Any] = {
        "queue": "mail",
        "task": "shop.tasks:welcome",
        "created": ended - 3000,
        "started": ended - 1000,
        "tries": 0,
        "starts": 1,
        "executor": "web-1.17",
        "args": '[[42],{"name":"Ada \\"L\\""}]',
    }
    facts |= more
    return Row(id=f"{facts['queue']}:{name}", status=status, ended=ended, **facts)


def dead(name: str = "1", ended: int = NOON, **more: Any) -> Row:
    facts: dict[str, Any] = {
        "error": "shop.errors.NoCard",
        "message": "no 100% card",
        "fingerprint": "3f9a21c0",
    }
    return a_row(name, "DEAD", ended, **facts | {"reason": "failed"} | more)


def gone(key: str = "1", status: str = "DEAD", ended: int = NOON) -> Row:
    """A job whose record was gone before it was read."""
    return Row(f"mail:{key}", "mail", status, ended)


def found(store: SqlStore, where: str = "", limit: int = 100) -> list[str]:
    return [row.id.partition(":")[2] for row in store.find(parse(where, NOW), limit)]


def counts(store: SqlStore) -> dict[tuple[int, str], int]:
    """(hours from noon on, status) → jobs."""
    buckets = store.chart(0, NOON + 100 * HOUR_MS, days=False, queue=None, task=None)
    noon = NOON // HOUR_MS
    return {(int(one.at.timestamp() * 1000) // HOUR_MS - noon, one.status): one.jobs for one in buckets}


def assert_sums_fit(store: SqlStore) -> None:
    of_all = "SELECT hour, status, n, run_ms, wait_ms FROM hours ORDER BY 1, 2"
    summed = "SELECT hour, status, sum(n), sum(run_ms), sum(wait_ms) FROM counts GROUP BY 1, 2 ORDER BY 1, 2"
    assert store.run(lambda cursor: cursor.run(of_all)) == store.run(lambda cursor: cursor.run(summed))
    rows = store.find(parse("", NOW), 1000)
    expected = Counter((row.ended // HOUR_MS - NOON // HOUR_MS, row.status) for row in rows)
    assert counts(store) == dict(expected)
    buckets = store.chart(0, NOON + 100 * HOUR_MS, days=False, queue=None, task=None)
    assert sum(one.run_seconds for one in buckets) == pytest.approx(sum(row.run_ms for row in rows) / 1000)
    assert sum(one.wait_seconds for one in buckets) == pytest.approx(sum(row.wait_ms for row in rows) / 1000)


# Writing


def test_a_row_comes_back_as_it_was_written(store: SqlStore) -> None:
    row = dead(
        due=NOON - 2000,
        tries=3,
        starts=4,
        key="order-17",
        traceback="T\nü",
        headers='{"tenant":"acme"}',
        events="[]",
    )
    assert store.write([row]) == 1
    assert store.get("mail:1") == row
    assert store.get("mail:2") is None


def test_hostile_texts_come_back_as_they_were_written(store: SqlStore) -> None:
    hostile = "\x1b[31m \u202e '; -- \" \\ \\u0000 \n {x} %s ? \U0001f600"
    row = dead(
        args=f'["{hostile}"]', message=hostile, traceback=hostile * 9000, executor=hostile, key=hostile
    )
    assert store.write([row]) == 1
    assert store.get("mail:1") == row


def test_a_row_that_is_written_again_counts_once(store: SqlStore) -> None:
    rows = [a_row("1"), dead("2"), gone("3")]
    assert [store.write(rows) for _ in range(3)] == [3, 0, 0]
    assert counts(store) == {(0, "SUCCESS"): 1, (0, "DEAD"): 2}
    assert_sums_fit(store)


def test_the_later_end_of_a_job_replaces_the_earlier_one(store: SqlStore) -> None:
    store.write([dead(starts=4)])
    success = a_row(ended=NOON + HOUR_MS, starts=5)
    assert store.write([success]) == 1
    assert store.get("mail:1") == success
    assert counts(store) == {(1, "SUCCESS"): 1}


def test_an_earlier_end_never_replaces_a_later_one(store: SqlStore) -> None:
    success = a_row(ended=NOON + HOUR_MS, starts=5)
    store.write([success])
    assert store.write([dead(starts=4)]) == 0
    assert store.write([gone()]) == 0
    assert store.get("mail:1") == success
    assert_sums_fit(store)


def test_the_number_of_starts_decides_when_the_clock_was_set_back(store: SqlStore) -> None:
    store.write([dead(starts=4, created=NOON - 9000)])
    success = a_row(ended=NOON - HOUR_MS, starts=5, created=NOON - 9000)
    assert store.write([success]) == 1
    assert store.write([dead(starts=4, created=NOON - 9000)]) == 0
    assert store.get("mail:1") == success


def test_a_later_job_with_the_same_id_replaces_the_former_one_however_often_it_started(
    store: SqlStore,
) -> None:
    store.write([a_row(starts=5)])
    later = dead(ended=NOON + DAY_MS, starts=1)
    assert store.write([later]) == 1
    assert store.get("mail:1") == later
    assert store.write([a_row(starts=5)]) == 0
    assert_sums_fit(store)


def test_of_two_ends_in_one_batch_the_later_one_is_written(store: SqlStore) -> None:
    success = a_row(ended=NOON + 1, starts=5)
    assert store.write([dead(starts=4), success]) == 1
    assert store.write([dead("2", starts=4), a_row("2", ended=NOON + 1, starts=5), dead("2", starts=4)]) == 1
    assert [row.status for row in store.find(parse("", NOW), 10)] == ["SUCCESS", "SUCCESS"]
    assert_sums_fit(store)


def test_a_record_that_is_read_after_all_completes_its_row(store: SqlStore) -> None:
    store.write([gone()])
    assert store.write([dead()]) == 1
    assert store.write([gone()]) == 0
    assert store.get("mail:1") == dead()
    assert_sums_fit(store)


def test_an_end_without_a_record_keeps_what_was_known_of_the_job(store: SqlStore) -> None:
    store.write([dead()])
    assert store.write([gone(status="CANCELLED", ended=NOON + 5000)]) == 1
    row = store.get("mail:1")
    assert row is not None
    assert (row.status, row.ended, row.task) == (
        "CANCELLED",
        NOON + 5000,
        "shop.tasks:welcome",
    )
    assert_sums_fit(store)


def test_many_rows_at_once(store: SqlStore) -> None:
    assert store.write([a_row(str(key), ended=NOON + key) for key in range(1300)]) == 1300
    assert store.write([a_row(str(key), ended=NOON + key) for key in range(1301)]) == 1
    assert store.facts().rows == 1301


def test_a_batch_that_fails_writes_nothing(store: SqlStore) -> None:
    bad = a_row("2")._replace(status=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"(?i)null"):
        store.write([a_row("1"), bad])
    assert found(store) == []
    assert store.write([a_row("1")]) == 1
    assert_sums_fit(store)


# Filters


@pytest.fixture
def shop(store: SqlStore) -> SqlStore:
    store.write(
        [
            a_row("old", ended=NOON - 48 * HOUR_MS, headers='{"tenant":"acme"}', key="order-1"),
            a_row("new", task="shop.jobs:welcome", queue="mail", executor="web-2.1", args='["50_%"]'),
            dead("dead", ended=NOON - 1000, executor="web-3", headers='{"tenant":"other"}'),
            a_row("gone", "CANCELLED", NOON - 2000, queue="sms", task="shop.jobs:text", reason="purged"),
            gone("bare", ended=NOON - 3000),
        ]
    )
    return store


FILTERS = {
    "": "new dead gone bare old",
    "state:success": "new old",
    "state:dead": "dead bare",
    "state:dead state:cancelled": "dead gone bare",
    "-state:dead": "new gone old",
    "task:welcome": "new dead old",
    "task:shop.tasks:welcome": "dead old",
    "-task:welcome": "gone bare",
    "task:text task:shop.jobs:welcome": "new gone",
    "task:unknown": "",
    "queue:sms": "gone",
    "-queue:sms": "new dead bare old",
    "since:24h": "new dead gone bare",
    "until:24h": "old",
    "error:NoCard": "dead",
    "error:shop.errors.NoCard": "dead",
    "error:Card": "",
    "-error:NoCard": "new gone bare old",
    "fp:3f9a21c0": "dead",
    "key:order-1": "old",
    "on:web-1": "gone old",
    "on:web-3": "dead",
    "on:web": "",
    "header:tenant=acme": "old",
    "-header:tenant=acme": "new dead gone bare",
    '"100% card"': "dead",
    '"50_%"': "new",
    '"5__%"': "",
    "no_100%": "",
    "acme": "old",
    "'Ada \"L\"'": "",
    '"\\"L\\""': "dead gone old",
    '-"\\"L\\""': "new bare",
    "id:mail:new": "new",
    "state:dead task:welcome since:24h card -queue:sms": "dead",
}
"""Filter → the jobs that it finds, in order."""


def test_a_filter_finds_the_latest_end_first(shop: SqlStore) -> None:
    assert {where: " ".join(found(shop, where)) for where in FILTERS} == FILTERS


def test_only_so_many_are_found(shop: SqlStore) -> None:
    assert found(shop, limit=2) == ["new", "dead"]


def test_all_rows_are_found_page_by_page(store: SqlStore) -> None:
    store.write([a_row(str(key), ended=NOON + key // 4) for key in range(10)])
    pages, place = list[str](), FIRST
    while page := store.find(parse("state:success", NOW), 3, place):
        pages += [row.id for row in page]
        place = Place(page[-1].ended, page[-1].id)
    assert pages == [f"mail:{key}" for key in range(9, -1, -1)]


def test_texts_of_a_filter_are_no_part_of_a_statement(shop: SqlStore) -> None:
    hostile = "'; DROP TABLE jobs; --"
    for where in (
        f'"{hostile}"',
        f'task:"{hostile}"',
        f'key:"{hostile}"',
        f'header:"a={hostile}"',
        f'on:"{hostile}"',
    ):
        assert found(shop, where) == []
    assert len(found(shop)) == 5


def test_texts_that_no_database_takes_find_nothing(shop: SqlStore) -> None:
    for text in ("\0", "a\0b"):
        for where in (f'"{text}"', f'task:"{text}"', f'key:"{text}"', f'header:"a={text}"'):
            assert found(shop, where) == []


def test_live_states_are_not_in_the_history(shop: SqlStore) -> None:
    with pytest.raises(InvalidFilter, match="the history has jobs that have ended"):
        found(shop, "state:running")


# Sums


def test_a_chart_has_hours_or_days_of_a_queue_or_a_task(shop: SqlStore) -> None:
    assert counts(shop) == {(0, "SUCCESS"): 1, (-1, "DEAD"): 2, (-1, "CANCELLED"): 1, (-48, "SUCCESS"): 1}
    days = shop.chart(0, NOON, days=True, queue=None, task=None)
    assert {one.at.hour for one in days} == {0}
    assert sum(one.jobs for one in days) == 5
    (one,) = shop.chart(0, NOON, days=False, queue="sms", task=None)
    assert (one.status, one.jobs, one.run_seconds, one.wait_seconds) == ("CANCELLED", 1, 1.0, 2.0)
    assert sum(one.jobs for one in shop.chart(0, NOON, days=False, queue=None, task="welcome")) == 3
    assert (
        shop.chart(NOON - HOUR_MS, NOON, days=False, queue=None, task="shop.tasks:welcome")[0].status
        == "DEAD"
    )


def test_facts(shop: SqlStore) -> None:
    shop.write([], [Gap("mail", 1, 2, 7), Gap("sms", 1, 2, 3)])
    shop.write([], [Gap("mail", 1, 2, 7), Gap("mail", 3, 4, 9)])
    facts = shop.facts()
    assert (facts.version, facts.rows, facts.missed) == (2, 5, 12)
    assert facts.oldest == datetime.fromtimestamp((NOON - 48 * HOUR_MS) / 1000, UTC)
    assert facts.newest == NOW
    assert facts.size > 0


def test_gaps_with_little_time_between_are_one_row(store: SqlStore) -> None:
    for second in range(1, 50):
        store.write([], [Gap("mail", NOON + second * 1000, NOON + second * 1000 + 500, second)])
    store.write([], [Gap("sms", NOON, NOON + 500, 1), Gap("mail", NOON + DAY_MS, NOON + DAY_MS + 1, 60)])
    store.write([], [Gap("mail", NOON + 1000, NOON + 1500, 1)])
    gaps = store.run(
        lambda cursor: cursor.run("SELECT queue, missed, since, until FROM gaps ORDER BY 1, 2 DESC")
    )
    assert [list(gap) for gap in gaps][:2] == [
        ["mail", 60, NOON + DAY_MS, NOON + DAY_MS + 1],
        ["mail", 49, NOON + 1000, NOON + 49_500],
    ]
    assert len(gaps) <= 4
    assert store.facts().missed == 61


def test_facts_of_an_empty_history(store: SqlStore) -> None:
    facts = store.facts()
    assert (facts.rows, facts.oldest, facts.newest, facts.missed) == (0, None, None, 0)


# Pruning


def test_each_end_is_kept_for_its_time(shop: SqlStore) -> None:
    shop.write([dead("long dead", ended=NOON - 48 * HOUR_MS)])
    pruned = shop.prune(HistoryKeep(24 * 3600.0, 96 * 3600.0), NOON, 100)
    assert (pruned.removed, pruned.more) == (1, False)
    assert found(shop) == ["new", "dead", "gone", "bare", "long dead"]
    assert shop.prune(HistoryKeep(24 * 3600.0, 24 * 3600.0), NOON, 100).removed == 1
    assert shop.prune(HistoryKeep(None, None), NOON + 10**12, 100).removed == 0


def test_the_oldest_go_first_when_there_are_too_many(shop: SqlStore) -> None:
    assert shop.prune(HistoryKeep(rows=3), NOON, 100).removed == 2
    assert found(shop) == ["new", "dead", "gone"]
    assert shop.prune(HistoryKeep(rows=3), NOON, 100).removed == 0


def test_a_step_removes_no_more_than_it_may(store: SqlStore) -> None:
    store.write([a_row(str(key), ended=NOON + key) for key in range(10)])
    steps = [store.prune(HistoryKeep(0.0), NOON + 100, 4) for _ in range(3)]
    assert [(step.removed, step.more) for step in steps] == [(4, True), (4, True), (2, False)]


def test_sums_outlive_the_jobs(store: SqlStore) -> None:
    store.write([a_row()])
    store.prune(HistoryKeep(1.0, 1.0), NOON + HOUR_MS, 100)
    assert (found(store), counts(store)) == ([], {(0, "SUCCESS"): 1})
    later = NOON + 401 * 24 * HOUR_MS
    store.prune(HistoryKeep(1.0, None), later, 100)
    store.prune(HistoryKeep(1.0, 402 * 86400.0), later, 100)
    assert counts(store) == {(0, "SUCCESS"): 1}
    store.prune(HistoryKeep(1.0, 1.0), later, 100)
    assert counts(store) == {}
    assert_sums_fit(store)


# Operations


def an_operation(key: str, minutes: int = 0, **given: Any) -> AuditEntry:
    usual: dict[str, Any] = {"who": "ada@web-1", "via": "cli", "what": "dlq replay", "target": "mail"}
    return AuditEntry(id=key, at=NOW + timedelta(minutes=minutes), **usual | given)


def ended_operation(key: str, minutes: int = 0, **given: Any) -> AuditEntry:
    end: dict[str, Any] = {
        "state": "done",
        "done": 2,
        "planned": 3,
        "outcome": "1 gone",
        "before": "a",
        "after": "b",
    }
    return an_operation(
        key, minutes, ended_at=NOW + timedelta(minutes=minutes + 1), filter="--all", **end | given
    )


def test_an_operation_is_read_as_it_was_written(store: SqlStore) -> None:
    written = [ended_operation("2", 5), an_operation("1")]
    store.put_operations(written)
    assert store.operations(Wanted(), None) == written
    assert store.newest_line() == NOON + 6 * 60_000


def test_the_end_of_an_operation_stays_when_its_begin_is_written_again(store: SqlStore) -> None:
    assert store.newest_line() == 0
    store.put_operations([an_operation("1")])
    store.put_operations([ended_operation("1")])
    store.put_operations([an_operation("1")])
    assert store.operations(Wanted(), None) == [ended_operation("1")]


def test_operations_are_found_by_time_user_and_name_the_newest_first(store: SqlStore) -> None:
    store.put_operations(
        [an_operation(str(n), n, who=f"{'ada' if n % 2 else 'bob'}@web-1") for n in range(1200)]
    )
    store.put_operations([an_operation("last", 2000, what="queue pause")])

    def found(limit: int | None = None, **given: Any) -> list[str]:
        return [entry.id for entry in store.operations(Wanted(**given), limit)]

    assert found(2) == ["last", "1199"]
    assert found(what="queue") == ["last"]
    assert found(what="dlq", limit=1) == ["1199"]
    assert len(found(who="ada")) == 601
    assert found(since_ms=NOON + 60_000, until_ms=NOON + 3 * 60_000) == ["3", "2", "1"]
    assert found(who="bob@web-1", until_ms=NOON) == ["0"]


def test_hostile_texts_of_operations_are_kept(store: SqlStore) -> None:
    hostile = an_operation("x'; DROP TABLE audit", target="\x1b[31m{0}%s?", what="dlq\u202e")
    store.put_operations([hostile, an_operation("nul", target="a\0b")])
    store.put_operations([an_operation("long", outcome="x" * (1 << 20))])
    found = {entry.id: entry for entry in store.operations(Wanted(), None)}
    assert found[hostile.id] == hostile
    assert (len(found), len(found["long"].outcome)) == (3, 1000)


def test_old_operations_are_removed_but_for_the_newest(store: SqlStore) -> None:
    store.put_operations([an_operation("1"), an_operation("2", 1)])
    keep, later = HistoryKeep(60.0, 60.0), NOON + 401 * 86_400_000
    store.prune(keep, NOON, 100)
    assert len(store.operations(Wanted(), None)) == 2
    store.prune(keep, later, 100)
    assert [entry.id for entry in store.operations(Wanted(), None)] == ["2"]


# Versions


def test_a_schema_is_made_once(store: SqlStore, opened: Opened) -> None:
    assert store.migrate() == (2, 2)
    assert opened().migrate() == (2, 2)


def test_a_newer_schema_is_refused_with_one_sentence(store: SqlStore, opened: Opened) -> None:
    store.run(lambda cursor: cursor.run("UPDATE fennelq_history SET version = 7"))
    for act in (opened().migrate, lambda: opened().find(parse("", NOW), 1), opened().facts):
        with pytest.raises(
            HistoryRefused, match=r"has version 7 of its tables, and this fennelq knows 2 at most: update"
        ):
            act()


def test_an_older_schema_is_read_after_its_migration_only(
    store: SqlStore, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write([a_row()])
    monkeypatch.setattr(sql, "STEPS", (*STEPS, ("ALTER TABLE jobs ADD COLUMN more TEXT",)))
    monkeypatch.setattr(sql, "VERSION", 3)
    later = opened()
    with pytest.raises(
        HistoryRefused,
        match=r"has version 2 of its tables, and this fennelq needs 3: run `fennelq history migrate`",
    ):
        later.facts()
    assert later.migrate() == (2, 3)
    assert later.facts().rows == 1


def test_a_history_without_operations_gets_their_table(opened: Opened) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "STEPS", STEPS[:1])
        patch.setattr(sql, "VERSION", 1)
        assert opened().migrate() == (0, 1)
        opened().write([a_row()])
    store = opened()
    assert store.migrate() == (1, 2)
    store.put_operations([an_operation("1")])
    assert (store.facts().rows, len(store.operations(Wanted(), None))) == (1, 1)


def test_a_step_that_fails_leaves_the_schema_as_it_was(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sql, "STEPS", (*STEPS, ("ALTER TABLE jobs ADD COLUMN more TEXT", "NONSENSE")))
        patch.setattr(sql, "VERSION", 3)
        with pytest.raises(Exception, match=r"(?i)syntax"):
            store.migrate()
    assert store.migrate() == (2, 2)
    assert store.write([a_row()]) == 1


def test_the_history_of_another_app_is_refused(store: SqlStore, opened: Opened) -> None:
    with pytest.raises(HistoryRefused, match="belongs to app 'shop', and this is 'bank'"):
        opened("bank").migrate()


def test_an_empty_database_says_how_to_begin(opened: Opened) -> None:
    with pytest.raises(HistoryRefused, match="is empty: start its recorder with `fennelq history run`"):
        opened().find(parse("", NOW), 1)
    assert opened().operations(Wanted(), None) == []


def test_a_connection_that_was_closed_is_made_anew(store: SqlStore) -> None:
    store.close()
    assert store.write([a_row()]) == 1
