"""Supervisor: keeps executors alive, and none of them outlives it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from structlog.typing import EventDict

from fennelq import App, Status
from fennelq.worker.processes import child, pid_one
from fennelq.worker.processes.child import Child
from fennelq.worker.processes.config import CANNOT_RUN, ExecutorConfig
from fennelq.worker.processes.reload import SourceWatch
from fennelq.worker.processes.signals import Signal
from fennelq.worker.processes.supervisor import Supervisor
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import aeventually, eventually
from tests.worker import shop
from tests.worker.conftest import Workers, executors
from tests.worker.shop import Gate, task_of


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_there_are_as_many_executors_as_were_ordered(workers: Workers) -> None:
    worker = workers("-p", "3")
    await aeventually(lambda: len(executors(worker)) == 3)


async def test_an_executor_that_crashes_is_replaced_and_the_work_goes_on(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=15) == 2
    (first,) = executors(worker)
    first.kill()
    assert "SIGKILL" in worker.wait_for("executor_crashed")
    assert await (await double.delay(2)).get(timeout=15) == 4
    (second,) = executors(worker)
    assert second.pid != first.pid


@pytest.mark.audit(unfinished=True)
async def test_the_crash_of_one_executor_disturbs_no_other(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "1", FENNELQ_LEASE="60")
    await aeventually(lambda: len(executors(worker)) == 2)
    doomed, other = await task_of(app, shop.hold).map([str(gate)] * 2)
    await aeventually(lambda: len(ledger.starts()) == 2, within=15)
    pids = {row.job_id: row.pid for row in ledger.read()}
    os.kill(pids[doomed.id], signal.SIGKILL)
    worker.wait_for("executor_crashed")
    gate.open()
    assert await other.get(timeout=15) == 1
    assert await doomed.status() is Status.EXECUTING
    assert {row.pid for row in ledger.read() if row.job_id == other.id} == {pids[other.id]}


async def test_executors_do_not_outlive_a_supervisor_that_is_killed_and_hand_their_jobs_back(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "2", "--grace", "600")
    results = await task_of(app, shop.hold).map([str(gate)] * 4)
    await aeventually(lambda: len(ledger.starts()) == 4, within=15)
    orphans = executors(worker)
    assert len(orphans) == 2
    worker.kill()
    await aeventually(lambda: not any(map(is_alive, orphans)), within=10)
    for result in results:
        info = await result.info()
        assert info is not None
        assert (info.status, info.tries) == (Status.SENT, 0)


async def test_an_executor_that_cannot_run_ends_at_once_and_says_why(spawn: Spawner, redis_url: str) -> None:
    config = ExecutorConfig(app="tests.worker.no_such_shop:app")
    executor = spawn(
        "fennelq.worker.processes.process", config.to_text(), environment={"FENNELQ_REDIS_URL": redis_url}
    )
    assert executor.returncode() == CANNOT_RUN
    assert "no_such_shop" in executor.text


def test_config_arrive_as_they_were_given() -> None:
    config = ExecutorConfig(
        app="shop:app", concurrency=7, queues="mail:3,default:1", lanes=("s:high",), grace=1.5
    )
    assert ExecutorConfig.from_text(config.to_text()) == config


# Modules that make trouble when they are imported


HOLD = """
import sys, time
from pathlib import Path

here = Path(__file__)
if Path(sys.argv[0]).name == "process.py":  # an executor, not its supervisor
    here.with_name("importing").touch()
    while not here.with_name("gate").exists():
        time.sleep(0.01)
"""
SHOP = """
from fennelq import App
from tests.worker import shop

app = App("shop")
for function in shop.FUNCTIONS:
    app.task(retries=0)(function)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a project with `held:app`, which executors import as long as there is no file `gate`, and `plain:app`."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "held.py").write_text(HOLD + SHOP, "utf-8")
    (folder / "plain.py").write_text(SHOP, "utf-8")
    return folder


@pytest.fixture
def holding(folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """The supervisor, on this loop, of an executor that imports `held:app`."""
    monkeypatch.setenv("FENNELQ_REDIS_URL", redis_url)
    return Supervisor(
        ExecutorConfig(app="held:app", folder=str(folder)), 1, silence=60.0, note=lambda _, __: None
    )


class Later:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.by = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.by


class Frozen(Later):
    """A clock that moves only when it is put forward."""

    def monotonic(self) -> float:
        return self.by


def events(logged: list[EventDict]) -> list[str]:
    return [line["event"] for line in logged]


async def test_an_import_may_take_any_time_and_the_log_says_so_every_minute(
    holding: Supervisor, folder: Path, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Later()
    monkeypatch.setattr(child, "clock", clock)
    monkeypatch.setattr(child, "_LOOK_EVERY", 0.01)
    keeping = asyncio.create_task(holding._keep_alive())
    await aeventually(lambda: holding._children)
    (only,) = holding._children
    for minutes in (1, 4):
        clock.by = minutes * 60
        await aeventually(lambda: events(logged).count("still_importing") == (1 if clock.by == 60 else 2))
        assert (holding._live(), holding._ready()) == (True, False)
    assert [line["seconds"] // 60 for line in logged if line["event"] == "still_importing"] == [1, 4]
    (folder / "gate").touch()
    await aeventually(lambda: only.worked, within=15)
    assert holding._children == {only}
    holding._on_signal()
    assert await keeping == 0
    assert "executor_crashed" not in events(logged)
    assert "executor_killed" not in events(logged)


@pytest.mark.parametrize(
    ("received", "alive_for"),
    [(Signal.IMPORTED, 35), (Signal.IMPORTED + Signal.ALIVE, 5), (Signal.NOT_READY, 5)],
)
def test_after_its_import_an_executor_is_given_time_to_connect(
    holding: Supervisor, monkeypatch: pytest.MonkeyPatch, received: bytes, alive_for: float
) -> None:
    clock = Frozen()
    monkeypatch.setattr(child, "clock", clock)
    executor = Child(holding._config, silence=60.0, quarantine=lambda: None)
    reading, writing = os.pipe()
    os.write(writing, received)
    executor._receive(reading)
    os.close(reading)
    os.close(writing)
    clock.by = alive_for - 1
    assert executor.alive
    clock.by = alive_for
    assert not executor.alive


async def test_an_executor_that_is_silent_after_its_import_is_killed(
    holding: Supervisor, folder: Path, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Later()
    monkeypatch.setattr(child, "clock", clock)
    monkeypatch.setattr(child, "_LOOK_EVERY", 0.01)
    (folder / "gate").touch()
    running = asyncio.create_task(holding._run(holding._config))
    await aeventually(lambda: any(child.worked for child in holding._children), within=15)
    (only,) = holding._children
    assert only.pid is not None
    os.kill(only.pid, signal.SIGSTOP)
    await asyncio.sleep(0)
    clock.by = 61
    assert await running == (-signal.SIGKILL, True)
    assert "no sign of life for 60 s" in only.fate


def test_an_executor_that_hangs_in_its_import_does_not_outlive_a_supervisor_that_is_killed(
    workers: Workers, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "held:app")
    orphans = executors(worker)
    assert len(orphans) == 1
    eventually((folder / "importing").exists, within=15)
    worker.kill()
    eventually(lambda: not any(map(is_alive, orphans)), within=10)


# Signals, whatever the supervisor is waiting for


async def test_a_signal_while_an_executor_is_replaced_starts_no_other(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    assert await (await task_of(app, shop.double).delay(1)).get(timeout=15) == 2
    (first,) = executors(worker)
    first.kill()
    worker.wait_for("executor_crashed")
    worker.term()
    assert worker.returncode() == 0


async def test_a_signal_while_an_executor_imports_its_app_ends_it_and_is_no_crash(
    workers: Workers, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "held:app")
    await aeventually((folder / "importing").exists, within=15)
    worker.term()
    assert worker.returncode() == 0
    assert "executor_crashed" not in worker.text


async def test_a_signal_right_after_an_executor_was_started_reaches_it(
    holding: Supervisor, logged: list[EventDict]
) -> None:
    keeping = asyncio.create_task(holding._keep_alive())
    await asyncio.sleep(0)
    assert len(holding._children) == 1
    holding._on_signal()
    async with asyncio.timeout(20):
        assert await keeping == 0
    assert events(logged) == ["stopping"]


async def test_a_change_of_sources_does_not_make_the_first_signal_a_second_one(
    workers: Workers, app: App, gate: Gate, ledger: Ledger, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "plain:app", "--reload", "--grace", "60")
    held = await task_of(app, shop.hold).delay(str(gate))
    await aeventually(lambda: ledger.starts(), within=15)
    (folder / "new.py").touch()
    worker.wait_for("reloading")
    worker.term()
    worker.wait_for("stopping")
    gate.open()
    assert worker.returncode() == 0
    assert await held.status() is Status.SUCCESS


async def test_a_change_of_sources_replaces_an_executor_even_while_it_imports(
    workers: Workers, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "held:app", "--reload")
    (first,) = executors(worker)
    await aeventually((folder / "importing").exists, within=15)
    (folder / "held.py").write_text(SHOP, "utf-8")
    worker.wait_for("reloading")
    await aeventually(lambda: [e.pid for e in executors(worker)] not in ([], [first.pid]), within=15)
    assert "executor_crashed" not in worker.text


# Out of something


async def test_executors_that_cannot_be_started_end_no_supervisor(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=15) == 2
    (executor,) = executors(worker)
    before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    # No more than it has now.
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    executor.kill()
    assert "Too many open files" in worker.wait_for("executor_not_started")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
    assert await (await double.delay(2)).get(timeout=15) == 4
    worker.term()
    assert worker.returncode() == 0


async def test_a_failed_start_leaves_no_file_descriptor_open(
    holding: Supervisor, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = psutil.Process().num_fds()
    for _ in range(3):
        code, worked = await holding._run(holding._config)
        assert code != 0
        assert not worked
    assert psutil.Process().num_fds() == before
    assert events(logged) == ["executor_not_started"] * 3
    assert "/no/such/python" in logged[0]["error"]


async def test_a_death_that_cannot_be_noted_disturbs_no_executor(
    holding: Supervisor, folder: Path, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    (folder / "held.py").write_text("import os; os._exit(3)", "utf-8")
    assert await holding._run(holding._config) == (3, False)
    await aeventually(lambda: not holding._noting)
    assert events(logged) == ["executor_crashed", "death_not_noted"]


# PID 1


async def test_orphans_are_reaped_and_the_ends_of_executors_are_still_known(
    spawn: Spawner, server: Server, app: App
) -> None:
    environment = {"FENNELQ_REDIS_URL": server.url, "FENNELQ_LOG_FORMAT": "json"}
    worker = spawn(
        "tests.worker.orphanage",
        "worker",
        "-A",
        "tests.worker.orphanage:app",
        "-p",
        "1",
        environment=environment,
    )
    orphans = [
        await (await app.send("tests.worker.orphanage:leave_orphan")).get(timeout=20) for _ in range(3)
    ]
    # A zombie has a pid, too.
    await aeventually(lambda: not any(map(psutil.pid_exists, orphans)), within=10)
    (executor,) = executors(worker)
    executor.kill()
    assert "SIGKILL" in worker.wait_for("executor_crashed")
    worker.term()
    assert worker.returncode() == 0


def test_a_process_that_adopts_no_orphans_reaps_none() -> None:
    assert not pid_one.adopts_orphans()


def test_pid_1_ends_on_sigterm_before_its_supervisor_handles_it(spawn: Spawner) -> None:
    worker = spawn("tests.worker.first_process")
    worker.wait_for("importing")
    worker.term()
    assert worker.returncode() == 128 + signal.SIGTERM


# Without processes


class Rehearsal(Supervisor):
    """Executors that were at work or not, and end so."""

    def __init__(self, *ends: tuple[bool, int], burst: bool = False) -> None:
        super().__init__(
            ExecutorConfig(app="shop:app", burst=burst), 1, silence=60.0, note=lambda _, __: None
        )
        self._ends = list(ends)
        self.pauses: list[float] = []

    async def _run(self, config: ExecutorConfig) -> tuple[int, bool]:
        if not self._ends:
            self._stop.set()
            return 0, True
        worked, code = self._ends.pop(0)
        return code, worked

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.mark.parametrize(
    ("ends", "pauses"),
    [
        ([(False, -9)] * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
        ([(False, 1), (False, 1), (True, 1), (False, 1)], [0.5, 1, 0.5, 1]),
        ([(True, -9)] * 3, [0.5, 0.5, 0.5]),
        ([(True, 0), (True, 0)], []),
    ],
    ids=["dies of starting", "was at work once", "dies at work", "makes room for a fresh one"],
)
async def test_the_pause_before_a_successor_grows_while_none_gets_to_work(
    ends: Sequence[tuple[bool, int]], pauses: Sequence[float]
) -> None:
    rehearsal = Rehearsal(*ends)
    assert await rehearsal._keep_alive() == 0
    assert rehearsal.pauses == pauses


class Waiting(Supervisor):
    """Executors that end so at once; what is waited for between them is real."""

    def __init__(self, code: int, sources: SourceWatch | None = None) -> None:
        super().__init__(
            ExecutorConfig(app="shop:app"), 1, silence=60.0, note=lambda _, __: None, sources=sources
        )
        self._code = code
        self.started = 0

    async def _run(self, config: ExecutorConfig) -> tuple[int, bool]:
        self.started += 1
        return self._code, True


async def test_a_signal_during_the_pause_before_a_successor_starts_none() -> None:
    supervisor = Waiting(-signal.SIGKILL)
    keeping = asyncio.create_task(supervisor._keep_alive())
    await aeventually(lambda: supervisor.started == 1)
    supervisor._on_signal()
    assert await keeping == 0
    assert supervisor.started == 1


async def test_a_signal_while_a_change_of_the_code_is_waited_for_starts_none(tmp_path: Path) -> None:
    supervisor = Waiting(CANNOT_RUN, SourceWatch(tmp_path))
    keeping = asyncio.create_task(supervisor._keep_alive())
    await aeventually(lambda: supervisor.started == 1)
    supervisor._on_signal()
    assert await keeping == 0
    assert supervisor.started == 1


async def test_a_signal_before_the_quarantine_is_opened_keeps_it_closed() -> None:
    supervisor = Waiting(0)
    supervisor._open_quarantine()
    supervisor._on_signal()
    assert supervisor._quarantine is not None
    await supervisor._quarantine
    assert supervisor.started == 0


@pytest.mark.parametrize("code", [CANNOT_RUN, 1])
async def test_a_change_of_the_code_ends_the_wait_for_it(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.processes.supervisor._FIRST_PAUSE", 600.0)
    monkeypatch.setattr("fennelq.worker.processes.supervisor._LONGEST_PAUSE", 600.0)
    supervisor = Waiting(code, SourceWatch(tmp_path))
    keeping = asyncio.create_task(supervisor._keep_alive())
    reloading = asyncio.create_task(supervisor._reload())
    for number in (1, 2, 3):
        await aeventually(count(supervisor, number), within=10)
        (tmp_path / f"{number}.py").touch()
    supervisor._on_signal()
    assert await keeping == 0
    reloading.cancel()


def count(supervisor: Waiting, number: int) -> Callable[[], bool]:
    return lambda: supervisor.started >= number


async def test_in_a_burst_an_executor_that_is_done_is_not_replaced_and_one_that_crashed_is() -> None:
    rehearsal = Rehearsal((True, -9), (True, 0), (True, 0), burst=True)
    assert await rehearsal._keep_alive() == 0
    assert rehearsal.pauses == [0.5]
    assert len(rehearsal._ends) == 1


async def test_in_a_burst_an_executor_that_was_stopped_for_a_change_of_the_code_is_replaced() -> None:
    class Changed(Rehearsal):
        async def _run(self, config: ExecutorConfig) -> tuple[int, bool]:
            if len(self._ends) == 3:
                change, self._change = self._change, asyncio.Event()
                change.set()
            return await super()._run(config)

    rehearsal = Changed((True, 0), (True, 0), (True, 0), burst=True)
    assert await rehearsal._keep_alive() == 0
    assert len(rehearsal._ends) == 1


async def test_an_executor_that_cannot_run_is_not_tried_again() -> None:
    rehearsal = Rehearsal((False, CANNOT_RUN), (True, 0))
    assert await rehearsal._keep_alive() == CANNOT_RUN
    assert rehearsal.pauses == []
