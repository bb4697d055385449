"""The recorder: every end becomes one row, whatever happens to it, to the database and to Redis."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.errors import BrokerUnavailable, ConfigurationError, HistoryRefused, HistoryUnavailable
from fennelq.manage.history import recorder as module
from fennelq.manage.history.choice import Choice
from fennelq.manage.history.looking import job_story
from fennelq.manage.history.recorder import Recorder
from fennelq.manage.history.recording import HistoryRecorder
from fennelq.manage.history.row import Row
from fennelq.manage.history.sqlite import SqliteStore
from fennelq.manage.history.store import Gap, HistoryKeep
from fennelq.model.job import JobFailure, Status
from fennelq.model.outcome import died, succeeded
from tests.broker.desk import DEAD, DONE, LIFETIMES, Desk, a_job
from tests.kit.server import Server
from tests.kit.waiting import aeventually

pytestmark = pytest.mark.audit(unfinished=True)

SECRET = "hunter22-and-more"
CALL = b'[[42],{"note":"for Ada"}]'


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with Desk.opened(server) as desk:
        yield desk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
async def app(server: Server, path: Path) -> AsyncIterator[App]:
    async with App("shop", redis_url=server.url, history_url=f"sqlite://{path}", default_queue="mail") as app:
        yield app
    await app.history.close()


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, "shop")
    yield store
    store.close()


@pytest.fixture
async def recorder(app: App, store: SqliteStore) -> Recorder:
    """One that has looked once, so that ends are written down for it."""
    recorder = Recorder(app, store)
    await recorder.drain()
    return recorder


def end(desk: Desk, key: str = "1", outcome: Any = DONE, **given: Any) -> None:
    desk.enqueue(a_job(key, **{"args": CALL} | given))
    desk.finish(desk.take(), outcome)


def statuses(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        return {
            job.partition(":")[2]: status for job, status in connection.execute("SELECT id, status FROM jobs")
        }


def counted(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as connection:
        return dict(
            connection.execute("SELECT status, sum(n) FROM counts GROUP BY status HAVING sum(n) <> 0")
        )


async def test_every_end_becomes_a_row(recorder: Recorder, desk: Desk, app: App, path: Path) -> None:
    end(desk, "done")
    end(desk, "none", succeeded(b"", 0))
    end(desk, "dead", DEAD)
    desk.enqueue(a_job("cancelled", args=CALL))
    desk.cancel("cancelled", why="not needed")
    await recorder.drain()
    assert statuses(path) == {"done": "SUCCESS", "none": "SUCCESS", "dead": "DEAD", "cancelled": "CANCELLED"}
    assert counted(path) == {"SUCCESS": 2, "DEAD": 1, "CANCELLED": 1}
    assert desk.entries("ends") == []
    cancelled = await app.history.info("mail:cancelled")
    assert cancelled is not None
    assert cancelled.reason == "not needed"


async def test_a_row_has_what_the_record_has(recorder: Recorder, desk: Desk, app: App) -> None:
    desk.release(
        desk.executing(
            a_job("1", args=CALL, options=b'{"h":{"tenant":"acme"}}', idempotency="=app:welcome:k")
        )
    )
    desk.finish(desk.take("berta"), DEAD)
    record = await app.jobs.info("mail:1")
    await recorder.drain()
    info = await app.history.info("mail:1")
    assert record is not None
    assert info is not None
    same = (
        "id",
        "queue",
        "task",
        "status",
        "tries",
        "deliveries",
        "reason",
        "error",
        "enqueued_at",
        "started_at",
        "ended_at",
        "key",
        "headers",
    )
    assert {name: getattr(info, name) for name in same} == {name: getattr(record, name) for name in same}
    story = job_story(app.sync.history, "mail:1")
    assert story is not None
    assert [event.what for event in story.events] == ["stopped"]
    assert "`fennelq job retry" not in story.story.sentence


async def test_arguments_are_recorded_and_then_emptied(recorder: Recorder, desk: Desk, app: App) -> None:
    end(desk, args=b'[[],{"note":"for Ada"}]')
    await recorder.drain()
    info = await app.history.info("mail:1")
    assert info is not None
    assert info.arguments == b'[[],{"note":"for Ada"}]'
    assert desk.record()["a"] == ""


async def test_secrets_are_not_recorded(
    recorder: Recorder, desk: Desk, app: App, store: SqliteStore, path: Path
) -> None:
    call = orjson.dumps([[], {"password": SECRET, "note": "for Ada"}])
    failure = JobFailure("shop.NoCard", f"refused {SECRET}", f"…, in pay\n    pay({SECRET!r})", "failed")
    headers = orjson.dumps({"h": {"authorization": SECRET, "tenant": "acme"}})
    desk.release(desk.executing(a_job("1", args=call, options=headers)))
    desk.finish(desk.take(), died(failure, 1, LIFETIMES.failure_ms))
    await recorder.drain()
    info = await app.history.info("mail:1")
    assert info is not None
    assert info.error is not None
    assert info.arguments == b'[[],{"password":"[redacted]","note":"for Ada"}]'
    assert info.error.message == "refused [redacted]"
    assert dict(info.headers) == {"authorization": "[redacted]", "tenant": "acme"}
    store.close()
    await app.history.close()
    for file in path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("text", ["\0 \ud800 \u202e", "x" * (1 << 20)], ids=["hostile", "large"])
async def test_hostile_and_large_texts_are_recorded(
    recorder: Recorder, desk: Desk, app: App, text: str
) -> None:
    message = text.encode("utf-8", "replace").decode()
    call = b'[[],{"note":"\\u0000 \\ud800 \x7f"}]'
    end(desk, args=call, outcome=died(JobFailure("Bad", message, message), 1, LIFETIMES.failure_ms))
    await recorder.drain()
    info = await app.history.info("mail:1")
    assert info is not None
    assert info.error is not None
    assert len(info.error.message) == min(len(message.replace("\0", "\\x00")), 65_536)


@pytest.mark.parametrize("secret", ["a/b+c==/d", 'pa"ss-word', "ge\u00e4ndert", "back\\slash"])
async def test_secrets_are_not_recorded_in_lines_of_what_happened(
    recorder: Recorder, desk: Desk, app: App, path: Path, secret: str
) -> None:
    desk.release(desk.executing(a_job("1", args=orjson.dumps([[], {"password": secret}]))))
    desk.redis.rpush(
        desk.keys.history("1"), orjson.dumps({"at": 1, "what": "failed", "more": f"refused {secret}"})
    )
    desk.redis.rpush(
        desk.keys.history("1"), r'{"at":2,"what":"failed","more":"refused a\/b+c==\/d"}', "damaged"
    )
    desk.finish(desk.take(), DEAD)
    await recorder.drain()
    story = job_story(app.sync.history, "mail:1")
    assert story is not None
    assert [event.what for event in story.events] == ["stopped", "failed", "failed"]
    assert story.events[1].more == "refused [redacted]"
    assert secret not in repr(story)


async def test_secrets_are_not_recorded_in_keys(recorder: Recorder, desk: Desk, app: App) -> None:
    call = orjson.dumps([[], {"password": SECRET}])
    end(desk, args=call, idempotency=f"=app:welcome:for {SECRET}")
    await recorder.drain()
    info = await app.history.info("mail:1")
    assert info is not None
    assert info.key == "welcome:for [redacted]"


async def test_a_later_job_with_the_same_id_is_recorded(recorder: Recorder, desk: Desk, app: App) -> None:
    desk.release(desk.executing(a_job("daily", args=CALL)))
    desk.finish(desk.take())
    await recorder.drain()
    desk.redis.delete(desk.keys.record("daily"), desk.keys.result("daily"), desk.keys.history("daily"))
    end(desk, "daily", DEAD)
    await recorder.drain()
    info = await app.history.info("mail:daily")
    assert info is not None
    assert (info.status, info.deliveries) == (Status.DEAD, 1)


async def test_a_job_that_is_gone_leaves_a_row(recorder: Recorder, desk: Desk, app: App) -> None:
    end(desk, outcome=DEAD)
    desk.do(verbs.dead.forget, [desk.entries("dlq")[0][0]])
    await recorder.drain()
    info = await app.history.info("mail:1")
    assert info is not None
    assert (info.status, info.queue, info.task, info.error) == (Status.DEAD, "mail", "", None)
    assert info.ended_at is not None


async def test_a_job_that_dies_and_succeeds_after_a_replay_has_one_row(
    recorder: Recorder, desk: Desk, path: Path
) -> None:
    end(desk, outcome=DEAD)
    await recorder.drain()
    assert statuses(path) == {"1": "DEAD"}
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]], {})
    await recorder.drain()
    assert statuses(path) == {"1": "DEAD"}
    desk.finish(desk.take())
    await recorder.drain()
    assert (statuses(path), counted(path)) == ({"1": "SUCCESS"}, {"SUCCESS": 1})


async def test_ends_that_are_read_late_and_in_another_order_change_nothing(
    recorder: Recorder, app: App, store: SqliteStore, desk: Desk, path: Path
) -> None:
    end(desk, outcome=DEAD)
    stuck = desk.do(verbs.ends.ends_take, "stuck", 40)
    assert len(stuck.entries) == 1
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]], {})
    desk.finish(desk.take())
    await recorder.drain()
    later = Recorder(app, store, abandoned=0.0)
    await later.look()
    assert desk.entries("ends") == []
    assert (statuses(path), counted(path)) == ({"1": "SUCCESS"}, {"SUCCESS": 1})


class Crash(BaseException):
    """As if the process was killed here."""


class Crashing(SqliteStore):
    """Its process dies when rows are written: before, or after that."""

    after = False

    def write(self, rows: Sequence[Row], gaps: Sequence[Gap] = ()) -> int:
        if self.after:
            super().write(rows, gaps)
        raise Crash


@pytest.mark.parametrize("after", [False, True])
async def test_what_a_recorder_had_when_it_was_killed_is_recorded_by_another(
    recorder: Recorder, app: App, desk: Desk, store: SqliteStore, path: Path, after: bool
) -> None:
    for key in "12":
        end(desk, key)
    end(desk, "3", DEAD)
    crashing = Crashing(path, "shop")
    crashing.after = after
    with pytest.raises(Crash):
        await Recorder(app, crashing).look()
    crashing.close()
    assert len(statuses(path)) == (3 if after else 0)
    other = Recorder(app, store, abandoned=0.0)
    while await other.look():
        pass
    assert statuses(path) == {"1": "SUCCESS", "2": "SUCCESS", "3": "DEAD"}
    assert counted(path) == {"SUCCESS": 2, "DEAD": 1}
    assert [desk.record(key)["a"] for key in "12"] == ["", ""]
    assert other.progress.missed == 0


async def test_a_recorder_that_is_cancelled_leaves_nothing_behind(
    recorder: Recorder, app: App, desk: Desk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = asyncio.Event(), threading.Event()
    loop, write = asyncio.get_running_loop(), SqliteStore.write

    def slow(store: SqliteStore, rows: Sequence[Row], gaps: Sequence[Gap] = ()) -> int:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(10)
        return write(store, rows, gaps)

    monkeypatch.setattr(SqliteStore, "write", slow)
    end(desk)
    before = asyncio.all_tasks()
    hosted = HistoryRecorder(app)
    task = asyncio.create_task(hosted.run())
    await begun.wait()
    task.cancel()
    loop.call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    assert desk.redis.xlen(desk.keys["ends"]) == 1


async def test_large_records_are_read_and_written_in_parts(
    recorder: Recorder, app: App, desk: Desk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    write = SqliteStore.write

    def counted(store: SqliteStore, rows: Sequence[Row], gaps: Sequence[Gap] = ()) -> int:
        parts.append(sum(len(row.args or "") for row in rows))
        return write(store, rows, gaps)

    monkeypatch.setattr(SqliteStore, "write", counted)
    megabyte = orjson.dumps([[], {"note": "x" * (1 << 20)}])
    jobs = [a_job(str(number), args=megabyte) for number in range(24)]
    desk.enqueue(*jobs)
    while taken := desk.take():
        desk.finish(taken)
    await recorder.drain()
    assert len(statuses(path)) == 24
    assert len(parts) >= 3
    assert max(parts) < 12 << 20
    assert (desk.entries("ends"), desk.record("7")["a"]) == ([], "")


async def test_draining_without_redis_is_an_error(store: SqliteStore) -> None:
    async with App("shop", redis_url="redis://127.0.0.1:1", enqueue_timeout=0.1) as app:
        with pytest.raises(BrokerUnavailable):
            await Recorder(app, store).drain()


async def test_several_recorders_share_the_work(app: App, desk: Desk, path: Path) -> None:
    stores = [SqliteStore(path, "shop") for _ in range(3)]
    recorders = [Recorder(app, store) for store in stores]
    await recorders[0].drain()
    for number in range(200):
        end(desk, str(number), DEAD if number % 5 == 0 else DONE)
    await asyncio.gather(*(recorder.drain() for recorder in recorders))
    assert counted(path) == {"SUCCESS": 160, "DEAD": 40}
    assert len(statuses(path)) == 200
    assert sum(recorder.progress.recorded for recorder in recorders) == 200
    for store in stores:
        store.close()


# Choices


async def test_only_some_ends_are_recorded(
    recorder: Recorder, app: App, store: SqliteStore, desk: Desk, path: Path
) -> None:
    end(desk, "1")
    end(desk, "2", DEAD)
    await Recorder(app, store, Choice(only={Status.DEAD})).drain()
    assert statuses(path) == {"2": "DEAD"}
    assert desk.entries("ends") == []
    assert desk.record("1")["a"] == ""


async def test_of_a_sample_all_dead_jobs_are_recorded(
    recorder: Recorder, app: App, store: SqliteStore, desk: Desk, path: Path
) -> None:
    for number in range(40):
        end(desk, f"s{number}")
        end(desk, f"d{number}", DEAD)
    await Recorder(app, store, Choice(sample=0.5)).drain()
    found = counted(path)
    assert found["DEAD"] == 40
    assert 5 <= found["SUCCESS"] <= 35


# Gaps


async def test_a_gap_is_reported_with_its_size(
    recorder: Recorder, app: App, store: SqliteStore, desk: Desk
) -> None:
    for key in "12345":
        end(desk, key)
    desk.redis.xtrim(desk.keys["ends"], maxlen=1, approximate=False)
    with capture_logs() as lines:
        await recorder.drain()
    (line,) = [line for line in lines if line["event"] == "history_gap"]
    assert (line["queue"], line["missed"]) == ("mail", 4)
    assert recorder.progress.missed == 4
    assert (await app.history.stats()).missed == 4
    with capture_logs() as lines:
        await Recorder(app, store).drain()
    assert lines == []
    assert (await app.history.stats()).missed == 4


async def test_a_gap_that_a_killed_recorder_has_found_is_written_by_the_next(
    recorder: Recorder, app: App, store: SqliteStore, desk: Desk, path: Path
) -> None:
    end(desk, "1")
    desk.redis.delete(desk.keys["ends"])
    with pytest.raises(Crash):
        await Recorder(app, Crashing(path, "shop")).look()
    await Recorder(app, store).drain()
    assert (await app.history.stats()).missed == 1


async def test_a_queue_that_appears_later_is_recorded(
    recorder: Recorder, server: Server, desk: Desk, path: Path
) -> None:
    with Desk.opened(server, "sms") as other:
        other.broker.send_all([verbs.queues.note_queues("shop", ["sms"])])
        await recorder.drain()
        other.enqueue(a_job("1"))
        other.finish(other.take())
        await recorder.drain()
    assert statuses(path) == {"1": "SUCCESS"}


async def test_a_damaged_queue_does_not_stop_the_others(
    recorder: Recorder, server: Server, desk: Desk, path: Path
) -> None:
    desk.broker.send_all([verbs.queues.note_queues("shop", ["broken"])])
    desk.redis.set("fq:{shop/broken}:ends", "x", ex=60)
    end(desk)
    await recorder.drain()
    assert statuses(path) == {"1": "SUCCESS"}
    desk.redis.delete("fq:{shop/broken}:ends")


async def test_a_gap_that_grows_with_each_look_is_logged_now_and_then(
    recorder: Recorder, app: App, desk: Desk, path: Path
) -> None:
    with capture_logs() as lines:
        for _ in range(10):
            desk.redis.hincrby(desk.keys["stats"], "S", 1)
            await recorder.drain()
    assert [line["missed"] for line in lines if line["event"] == "history_gap"] == [1]
    assert (await app.history.stats()).missed == 10
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT missed FROM gaps").fetchall() == [(10,)]


async def test_damaged_entries_do_not_stop_the_others(
    recorder: Recorder, desk: Desk, app: App, path: Path
) -> None:
    damaged = (b"\xff\xfe Sx", b"17" + b"9" * 30 + b" Sx", "²² Sx".encode(), b"1800000000000 Sx\0", b"1 S{x}")
    for text in damaged:
        desk.redis.xadd(desk.keys["ends"], {"e": text})
    end(desk, "1")
    await recorder.drain()
    assert statuses(path) == {"1": "SUCCESS"}
    assert desk.entries("ends") == []


@pytest.mark.parametrize("damaged", ["9e18", "-9e18", "nan", "1e400", "x"])
async def test_a_damaged_time_in_a_record_spoils_no_list_and_no_chart(
    recorder: Recorder, desk: Desk, app: App, damaged: str
) -> None:
    for key in "12":
        end(desk, key)
        desk.redis.hset(desk.keys.record(key), mapping={"c": damaged, "u": damaged, "r": f"anna {damaged} 1"})
    end(desk, "3")
    await recorder.drain()
    assert {job.id: job.enqueued_at is None for job in await app.history.find()} == {
        "mail:1": True,
        "mail:2": True,
        "mail:3": False,
    }
    assert sum(hour.jobs for hour in await app.history.chart()) == 3


# The database


class Refusing(SqliteStore):
    """Takes no row with arguments that contain `bad`."""

    def write(self, rows: Sequence[Row], gaps: Sequence[Gap] = ()) -> int:
        if any("bad" in (row.args or "") for row in rows):
            raise sqlite3.DataError("it does not fit")
        return super().write(rows, gaps)


async def test_a_row_that_the_database_refuses_is_recorded_without_its_details(
    recorder: Recorder, app: App, desk: Desk, path: Path
) -> None:
    end(desk, "1")
    end(desk, "2", args=b'[[],{"note":"bad"}]')
    end(desk, "3", DEAD)
    store = Refusing(path, "shop")
    await Recorder(app, store).drain()
    store.close()
    assert statuses(path) == {"1": "SUCCESS", "2": "SUCCESS", "3": "DEAD"}
    info = await app.history.info("mail:2")
    assert info is not None
    assert info.task == ""


class Full(SqliteStore):
    """On a disk that is full, until `space` is True."""

    space = False

    def connect(self) -> Any:
        connection = super().connect()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if not self.space:
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection


class ReadOnly(SqliteStore):
    """A file that this user may not write, until `space` is True."""

    space = False

    def connect(self) -> Any:
        if self.space:
            return super().connect()
        return sqlite3.connect(
            f"file:{self.path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )


class Busy(SqliteStore):
    """Another process writes, until `space` is True."""

    space = False
    other: Any = None

    def connect(self) -> Any:
        connection = super().connect()
        connection.execute("PRAGMA busy_timeout = 1")
        if self.other is None and not self.space:
            self.other = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self.other.execute("BEGIN IMMEDIATE")
        if self.space and self.other is not None:
            self.other.close()
        return connection


@asynccontextmanager
async def running(recorder: Recorder) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(recorder.run())
    try:
        yield task
    finally:
        recorder.stop()
        await asyncio.wait_for(task, 30)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Full, "the disk is full: free some space, or keep fewer jobs with --keep or --max-rows"),
        (ReadOnly, "the file is read-only for this user: change its permissions, or those of its folder"),
        (Busy, "another process writes to it for too long: look for one that has it open"),
    ],
)
async def test_a_recorder_waits_until_the_database_can_be_used(
    recorder: Recorder,
    app: App,
    desk: Desk,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    problem: str,
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    for number in range(300):
        end(desk, str(number))
    store = kind(path, "shop")
    other = Recorder(app, store)
    with capture_logs() as lines:
        async with running(other):
            await aeventually(lambda: any(line["event"] == "history_waits" for line in lines))
            assert desk.redis.xlen(desk.keys["ends"]) > 200
            store.space = True
            await aeventually(lambda: len(statuses(path)) == 300, within=20)
    (waits,) = [line for line in lines if line["event"] == "history_waits"]
    assert waits["problem"] == f"the history in sqlite://{path} cannot be used: {problem}"
    assert sum(line["event"] == "history_goes_on" for line in lines) == 1
    assert counted(path) == {"SUCCESS": 300}
    store.close()


async def test_a_recorder_that_waits_can_be_stopped_and_keeps_the_stream(
    app: App, store: SqliteStore, desk: Desk, path: Path, recorder: Recorder
) -> None:
    end(desk)
    desk.redis.pexpire(desk.keys["ends"], 60_000)
    other = Recorder(app, ReadOnly(path, "shop"))
    with capture_logs() as lines:
        async with running(other):
            await aeventually(lambda: any(line["event"] == "history_waits" for line in lines))
            await aeventually(lambda: desk.ttl(desk.keys["ends"]) > 60_000)
    await Recorder(app, store, abandoned=0.0).drain()
    assert statuses(path) == {"1": "SUCCESS"}


async def test_a_folder_that_cannot_be_made_is_one_sentence(app: App, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SqliteStore(tmp_path / "file" / "history.db", "shop")
    with pytest.raises(
        HistoryUnavailable,
        match=r"^the history in sqlite:///.*history.db cannot be used: (Not a directory|File exists)$",
    ):
        store.migrate()


async def test_a_file_that_is_no_database_is_refused(app: App, path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(HistoryRefused, match="is not a database of SQLite: set history_url to another file"):
        await Recorder(app, SqliteStore(path, "shop")).run()


async def test_a_newer_database_ends_the_recorder(recorder: Recorder, app: App, store: SqliteStore) -> None:
    store.run(lambda cursor: cursor.run("UPDATE fennelq_history SET version = 7"))
    with pytest.raises(HistoryRefused, match="has version 7"):
        await Recorder(app, store).run()


async def test_only_this_user_may_read_the_file(recorder: Recorder, desk: Desk, path: Path) -> None:
    end(desk)
    await recorder.drain()
    assert {file.stat().st_mode & 0o777 for file in path.parent.glob("history.db*")} == {0o600}


async def test_without_a_setting_there_is_no_history(server: Server) -> None:
    async with App("shop", redis_url=server.url) as app:
        with pytest.raises(ConfigurationError, match="this app has no history: set history_url"):
            await app.history.find()


# Redis


def begun(desk: Desk) -> bool:
    """Whether a recorder has looked."""
    return bool(desk.redis.exists(desk.keys["ends"]))


async def test_a_recorder_goes_on_when_redis_is_back(
    recorder: Recorder, app: App, desk: Desk, server: Server, path: Path
) -> None:
    end(desk, "1")
    async with running(recorder):
        await aeventually(lambda: statuses(path) == {"1": "SUCCESS"})
        server.kill()
        await asyncio.to_thread(server.start)
        await aeventually(lambda: begun(desk), tolerate=(redis.ConnectionError,), within=20)
        with Desk.opened(server) as again:
            end(again, "2")
        await aeventually(lambda: len(statuses(path)) == 2, within=20)


async def test_old_rows_are_removed_while_ends_are_recorded(
    recorder: Recorder,
    app: App,
    store: SqliteStore,
    desk: Desk,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PRUNED_AT_ONCE", 10)
    store.write([Row(f"mail:old{number}", "mail", "SUCCESS", number) for number in range(25)])
    pruning = Recorder(app, store, keep=HistoryKeep(3600.0, 3600.0))
    end(desk, "new")
    async with running(pruning):
        await aeventually(lambda: statuses(path) == {"new": "SUCCESS"})
    assert pruning.progress.pruned == 25


# Operations


async def test_operations_are_copied_and_outlive_redis(recorder: Recorder, app: App, server: Server) -> None:
    async with app.audit.operation("queue purge", target="mail", planned=3) as operation:
        await recorder.drain()
        (begun,) = await app.history.operations()
        assert (begun.state, begun.target) == ("not finished", "mail")
        operation.ended(3, before="a", after="b")
    async with app.audit.operation("queue pause", who="ada@web-1"):
        pass
    await recorder.drain()
    written = await app.audit.list()
    with server.client() as client:
        client.delete(AppKeys("shop")["audit"])
    assert await app.history.operations() == written
    assert [entry.what for entry in await app.history.operations(who="ada")] == ["queue pause"]
    assert [entry.done for entry in await app.history.operations(what="queue purge", limit=1)] == [3]


async def test_a_line_of_the_audit_that_cannot_be_copied_does_not_stop_the_record_of_jobs(
    recorder: Recorder, desk: Desk, app: App, path: Path, server: Server
) -> None:
    with server.client() as client:
        client.xadd(AppKeys("shop")["audit"], {"id": "x"}, id=f"{(1 << 64) - 2}-0")
    end(desk)
    with capture_logs() as logs:
        await recorder.drain()
    assert statuses(path) == {"1": "SUCCESS"}
    assert [line["table"] for line in logs if line["event"] == "trouble"] == ["audit"]
