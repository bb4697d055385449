"""A rolling deploy: workers of an earlier version and of this one, side by side on one Redis.

`earlier/` holds the wheel of the version before keys, fields and scripts were declared by name: one that reads what
this version writes, and writes what this version reads. Replace it when a release changes what is in Redis.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson
import pytest

from tests.chaos import jobs, scale
from tests.chaos.account import Call, account, drained
from tests.chaos.fleet import Fleet, Worker
from tests.chaos.load import everyday, send, some
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Process, Spawner

WHEEL: Final = next((Path(__file__).parent / "earlier").glob("*.whl"))

pytestmark = [pytest.mark.timeout(scale.of(120, long=600))]


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


@pytest.mark.parametrize(("died_in", "replayed_by"), [("earlier", "this"), ("this", "earlier")])
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
    assert shown["earlier"] == shown["this"]
    assert [letter["id"] for letter in shown["this"]] == [job]


def _done(fleet: Fleet, server: Server, worker: Worker) -> None:
    """Waits until this worker has nothing left to do, and stops it."""
    drained(server, within=30)
    assert fleet.retire(worker) == 0


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
