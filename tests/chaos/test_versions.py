"""A rolling deploy: workers of an earlier version and of this one, side by side on one Redis.

`earlier/` holds the wheel of the version before keys, fields and scripts were declared by name: one that reads what
this version writes, and writes what this version reads. Replace it when a release changes what is in Redis.

A sender of the earlier version wakes no executor of this one: its scripts send no messages to sleepers. So until
all senders are new, an executor that sleeps finds such jobs when it looks, at least once in 5 seconds. The workers of
the earlier version block until a job arrives, whichever version has sent it.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson
import pytest

from fennelq.broker.keys import queue_keys
from tests.chaos import jobs, scale
from tests.chaos.account import Call, account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import Fleet, Worker
from tests.chaos.load import everyday, send, some
from tests.chaos.sleepers import LOOK, asleep
from tests.chaos.test_limits import left_of_limits, of_accounts, overlaps
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Process, Spawner
from tests.kit.waiting import eventually

WHEEL: Final = next((Path(__file__).parent / "earlier").glob("*.whl"))

pytestmark = [pytest.mark.timeout(scale.of(300, long=600))]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the earlier version. A process that starts there imports that version."""
    folder = tmp_path_factory.mktemp("earlier")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture
def both(fleet: Fleet, earlier: Path) -> Mapping[str, Worker]:
    """A worker of each version, on one Redis."""
    return {"earlier": fleet.start(directory=earlier), "this": fleet.start()}


def test_workers_of_two_versions_run_each_others_jobs(
    both: Mapping[str, Worker], fleet: Fleet, server: Server, ledger: Ledger, spawn: Spawner, earlier: Path
) -> None:
    number, dice = scale.of(400, long=10_000), scale.dice("two versions")
    sent = dict(send(server.url, lambda app: [everyday(app, dice) for _ in range(number)]))
    sent |= _sent_by(spawn, earlier, server, number)
    pids = {version: worker.executors()[0].pid for version, worker in both.items()}
    assert "fennelq.worker.process" in both["earlier"].executors()[0].process.cmdline(), (
        "it is another version"
    )
    for worker in both.values():
        sent |= send(server.url, some(20, jobs.work, 50))
        fleet.kill(worker.executors()[0])
    drained(server, within=60)
    fleet.stop()
    it = account(server, sent, ledger, budget=fleet.budget)
    it.sound()
    assert (it.enqueued, it.done) == (2 * number + 40, 2 * number + 40)
    assert set(pids.values()) <= {row.pid for row in ledger.read()}, "each version has run jobs"


def test_an_executor_that_sleeps_finds_jobs_of_an_earlier_sender_when_it_looks(
    fleet: Fleet, server: Server, ledger: Ledger, spawn: Spawner, earlier: Path, figure: Figure
) -> None:
    fleet.start()
    eventually(lambda: asleep(server), within=30, what="the executor sleeps")
    sent_earlier = _sent_by(spawn, earlier, server, 20)
    sent = time.monotonic()
    drained(server, within=LOOK + scale.SLACK)
    fleet.stop()
    starts = [row.at - sent for row in ledger.read() if row.kind == "start"]
    figure("T10", f"sent by an earlier version: {len(starts)} jobs started after {max(starts):.2f} s")
    assert ledger.starts() == dict.fromkeys(sent_earlier, 1)
    assert max(starts) <= LOOK + scale.SLACK


def test_a_worker_of_an_earlier_version_takes_jobs_of_this_one_at_once(
    fleet: Fleet, server: Server, ledger: Ledger, earlier: Path, figure: Figure
) -> None:
    fleet.start(directory=earlier)
    began = time.monotonic()
    sent = send(server.url, some(20, jobs.work, 1))
    drained(server, within=LOOK + scale.SLACK)
    fleet.stop()
    starts = [row.at - began for row in ledger.read() if row.kind == "start"]
    figure("T10", f"taken by an earlier version: {len(starts)} jobs started after {max(starts):.2f} s")
    assert ledger.starts() == dict.fromkeys(sent, 1)
    assert max(starts) < scale.AT_ONCE


@pytest.mark.parametrize(
    ("died_in", "replayed_by"),
    [
        ("earlier", "this"),
        pytest.param(
            *("this", "earlier"),
            marks=pytest.mark.audit(
                skip="the earlier version keeps no index of the dead: it is counted anew later"
            ),
        ),
    ],
)
def test_a_job_that_died_in_one_version_is_shown_and_replayed_by_the_other(
    died_in: str,
    replayed_by: str,
    fleet: Fleet,
    server: Server,
    ledger: Ledger,
    spawn: Spawner,
    earlier: Path,
) -> None:
    homes = {"earlier": earlier, "this": PROJECT}
    worker = fleet.start(directory=homes[died_in])
    (job,) = send(server.url, some(1, jobs.flaky, 1, retries=0))
    _done(fleet, server, worker)

    letter = orjson.loads(_command(spawn, homes[replayed_by], server, "dlq", "show", job, "--json"))
    assert (letter["id"], letter["task"], letter["tries"]) == (job, "tests.chaos.jobs:flaky", 1)
    assert "the first try fails" in letter["message"]

    _command(spawn, homes[replayed_by], server, "dlq", "replay", "--yes", job)
    _done(fleet, server, fleet.start(directory=homes[replayed_by]))
    assert ledger.starts() == {job: 2}
    shown = {
        version: orjson.loads(_command(spawn, home, server, "dlq", "list", "--json"))
        for version, home in homes.items()
    }
    (seen,), (known,) = shown["earlier"], shown["this"]
    assert seen["id"] == job
    assert seen == {name: value for name, value in known.items() if name in seen}
    assert known.keys() - seen.keys() <= {"fingerprint"}, "this version knows only more"


def _done(fleet: Fleet, server: Server, worker: Worker) -> None:
    """Waits until this worker has nothing left to do, and stops it."""
    drained(server, within=30)
    assert fleet.retire(worker) == 0


def test_an_earlier_worker_lets_a_job_that_was_asked_to_stop_finish(
    fleet: Fleet, server: Server, ledger: Ledger, earlier: Path
) -> None:
    """The workers of this version clean up."""
    fleet.start(directory=earlier)
    app = jobs.app_of(redis_url=server.url)
    result = jobs.task_of(app, jobs.work).sync.delay(2000)
    eventually(lambda: ledger.starts() == {result.id: 1}, within=30)
    assert not result.cancel("no longer needed", wait=0)
    info = result.info()
    assert info is not None
    assert info.stopping == "no longer needed"
    fleet.start()
    assert result.get(timeout=30) == jobs.receipt(result.id, 2000)
    with server.client() as client:
        key = queue_keys(jobs.NAME, "default")["stop"]
        eventually(lambda: not client.exists(key), within=30, what="no job is remembered as stopping")
    fleet.stop()
    assert ledger.starts() == {result.id: 1}
    app.blocking.close()


def test_a_worker_of_an_earlier_version_ignores_a_pause_and_is_named(
    both: Mapping[str, Worker], server: Server, ledger: Ledger
) -> None:
    """It takes the jobs that are sent meanwhile. A worker of this version leaves them alone."""
    app = jobs.app_of(redis_url=server.url)
    ((earlier,), (this,)) = (both[version].executors() for version in ("earlier", "this"))
    pause = app.sync.queue("default").pause(only="consume")
    assert pause.ignored_by == (earlier.name,)
    sent = send(server.url, some(20, jobs.work, 1))
    drained(server, within=LOOK + scale.SLACK)
    assert app.sync.queue("default").resume() is not None
    assert ledger.starts() == dict.fromkeys(sent, 1)
    assert {row.pid for row in ledger.read()} == {earlier.pid} != {this.pid}
    app.blocking.close()


SLOW: Final = [] if scale.LONG else [pytest.mark.slow]
"""A job that was handed back often waits for half a minute."""


@pytest.mark.parametrize("accounts", [pytest.param(4, marks=SLOW)])
def test_an_earlier_worker_runs_no_job_with_a_limit_and_those_of_this_version_run_them_all(
    both: Mapping[str, Worker], fleet: Fleet, server: Server, ledger: Ledger, accounts: int, figure: Figure
) -> None:
    """L17. It hands them back, as it does all records of a later version, and never are two of one account at work."""
    ((earlier,), (this,)) = (both[version].executors() for version in ("earlier", "this"))
    sent = send(server.url, of_accounts(20, 50, accounts=accounts))
    plain = send(server.url, some(100, jobs.work, 20))
    with server.client() as client:
        stats = queue_keys(jobs.NAME, "default")["stats"]
        eventually(lambda: int(client.hget(stats, "U") or 0) >= 20, within=60)
        handed_back = int(client.hget(stats, "U") or 0)
    eventually(lambda: plain.keys() <= ledger.ends().keys(), within=30)
    # The deployment is over. A job that was handed back waits for at most 30 seconds.
    assert fleet.retire(both["earlier"]) == 0
    drained(server, within=30 + LOOK + scale.SLACK)
    fleet.stop()
    rows = [row for row in ledger.read() if row.kind == "start"]
    assert {row.pid for row in rows if row.job_id in sent} == {this.pid}
    assert {row.pid for row in rows if row.job_id in plain} == {this.pid, earlier.pid}
    # The others have no account.
    assert [one for one in overlaps(ledger) if not one.startswith("account :")] == []
    assert ledger.starts() == dict.fromkeys([*sent, *plain], 1)
    assert left_of_limits(server) == []
    figure(
        "L17", f"{len(sent)} jobs of {accounts} accounts, handed back {handed_back} times, never two at once"
    )


def _sent_by(spawn: Spawner, home: Path, server: Server, number: int) -> Mapping[str, str]:
    """What a client of the version in this folder has sent: job id → what its call returns."""
    process = _process(spawn, home, server, "tests.chaos.sender", server.url, str(number))
    assert process.returncode(60) == 0, process.tail()
    return {job: Call.of("work", jobs.receipt(job, 1)) for job in process.text.split()}


def _command(spawn: Spawner, home: Path, server: Server, *words: str) -> str:
    """What a command of the version in this folder prints."""
    process = _process(spawn, home, server, "fennelq", *words)
    assert process.returncode(30) == 0, process.tail()
    return process.text


def _process(spawn: Spawner, home: Path, server: Server, module: str, *words: str) -> Process:
    environment = {
        "PYTHONPATH": str(PROJECT),
        "FENNELQ_REDIS_URL": server.url,
        "FENNELQ_APP": f"{jobs.__name__}:app",
    }
    return spawn(module, *words, environment=environment, directory=home)
