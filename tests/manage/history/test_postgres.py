"""What only PostgreSQL does: its sentences, its lock, and its index of texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fennelq.errors import HistoryRefused, HistoryUnavailable
from fennelq.manage.history.postgres import PostgresStore
from fennelq.manage.history.sql import Cursor
from fennelq.manage.history.where import condition_of
from fennelq.model.query import parse
from tests.kit.postgres import Postgres
from tests.manage.history.test_store import NOON, NOW, a_row

SECRET = "hunter22"


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.new_url()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url, "shop")
    store.migrate()
    yield store
    store.close()


REFUSED = {
    "a user that does not exist": ("user=fennelq", "user=other", 'role "other" does not exist'),
    "a database that does not exist": ("/postgres?", "/other?", 'database "other" does not exist'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_waiting_does_not_help_when_the_url_is_wrong(url: str, case: str) -> None:
    right, wrong, problem = REFUSED[case]
    with pytest.raises(HistoryRefused) as caught:
        PostgresStore(url.replace(right, wrong), "shop").migrate()
    assert f"refuses the connection: {problem}: correct history_url" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["&nonsense=1", f"&password=%zz{SECRET}"])
def test_a_url_that_is_not_valid_is_refused_without_its_password(url: str, wrong: str) -> None:
    with pytest.raises(HistoryRefused, match=r"is not a valid URL .*: correct history_url") as caught:
        PostgresStore(url + wrong, "shop").migrate()
    assert SECRET not in str(caught.value)


def test_a_server_that_is_away_is_waited_for() -> None:
    with pytest.raises(HistoryUnavailable, match="cannot be reached: ") as caught:
        PostgresStore("postgresql://shop:hunter22@/history?host=/nowhere", "shop").migrate()
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_role_without_rights_is_refused(postgres_server: Postgres, url: str, store: PostgresStore) -> None:
    postgres_server.execute("DROP ROLE IF EXISTS reader")
    postgres_server.execute("CREATE ROLE reader LOGIN")
    schema = url.rpartition("%3D")[2]
    postgres_server.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
    with pytest.raises(HistoryRefused, match="does not allow this user to do that: grant the rights"):
        PostgresStore(url.replace("user=fennelq", "user=reader"), "shop").facts()


def test_a_database_that_is_read_only_is_waited_for(url: str, store: PostgresStore) -> None:
    store.run(lambda cursor: cursor.run("SET default_transaction_read_only = on"))
    with pytest.raises(HistoryUnavailable, match="it is read-only: connect to the primary server"):
        store.write([a_row()])
    assert store.write([a_row()]) == 1


def test_a_recorder_that_hangs_does_not_stop_the_others_without_a_word(
    url: str, store: PostgresStore
) -> None:
    hanging = PostgresStore(url, "shop")
    with hanging.run(lambda cursor: hanging.transaction(cursor)):
        store.run(lambda cursor: cursor.run("SELECT set_config('lock_timeout', '50ms', false)"))
        with pytest.raises(HistoryUnavailable, match="holds its lock for too long: look for one that hangs"):
            store.write([a_row()])
    hanging.close()
    assert store.write([a_row()]) == 1
    timeouts = (
        "SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"
    )
    assert [list(row) for row in store.run(lambda cursor: cursor.run(timeouts))] == [["10s", "1min"]]


def plan(store: PostgresStore, where: str, *without: str) -> str:
    """How the server finds the newest rows, although the table is so small that reading all of it is cheaper."""
    condition = condition_of(parse(where, NOW), store.has, lambda _: [])
    statement = f"EXPLAIN SELECT * FROM jobs WHERE {condition.sql} ORDER BY ended DESC LIMIT 50"

    def ask(cursor: Cursor) -> str:
        for way in ("seqscan", *without):
            cursor.run(f"SET enable_{way} = off")
        return "\n".join(line for (line,) in cursor.run(statement, condition.values))

    shown = store.run(ask)
    store.close()
    return shown


@pytest.mark.parametrize(
    ("where", "index"),
    [
        ("task:shop.tasks:welcome", "jobs_by_task"),
        ("state:dead", "jobs_by_status"),
        ("fp:3f9a21c0", "jobs_by_fingerprint"),
        ("since:1d", "jobs_by_end"),
    ],
)
def test_the_newest_rows_are_found_in_an_index_in_their_order(
    store: PostgresStore, where: str, index: str
) -> None:
    shown = plan(store, where, "sort", "bitmapscan")
    assert index in shown
    assert "Sort" not in shown


def test_texts_have_an_index_where_trigrams_are_installed(
    postgres_server: Postgres, url: str, store: PostgresStore
) -> None:
    assert "jobs_by_text" not in plan(store, '"no card"', "indexscan")
    store.write([a_row("1", args='["50_%"]'), a_row("2", args='["50ab"]'), a_row("3", args='["a\\\\b"]')])
    postgres_server.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public")
    try:
        assert [store.migrate(), store.migrate()] == [(2, 2), (2, 2)]
        assert "jobs_by_text" in plan(store, '"no card"', "indexscan")
        found = {
            where: [row.id for row in store.find(parse(where, NOW), 9)]
            for where in ('"50_%"', '"50"', r'"a\\b"')
        }
        assert found == {'"50_%"': ["mail:1"], '"50"': ["mail:1", "mail:2"], r'"a\\b"': ["mail:3"]}
        assert store.write([a_row("4", ended=NOON + 1)]) == 1
    finally:
        postgres_server.execute("DROP EXTENSION pg_trgm CASCADE")
