"""Supervisor: keeps executors alive, and none of them outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from structlog.typing import EventDict

from fennelq import App, Status
from fennelq.broker.keys import QUARANTINE
from fennelq.worker.processes import child, pid_one, supervisor
from fennelq.worker.processes.child import Child, NotStarted
from fennelq.worker.processes.config import CANNOT_RUN, ExecutorConfig
from fennelq.worker.processes.reload import SourceWatch
from fennelq.worker.processes.signals import Signal
from fennelq.worker.processes.supervisor import Supervisor
from tests.kit.ledger import Ledger
from tests.kit.namespace import Namespace
from tests.kit.ports import Port
from tests.kit.processes import executors, is_alive
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import aeventually, eventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import Gate, task_of


async def test_there_are_as_many_executors_as_were_ordered(workers: Workers) -> None:
    worker = workers("-p", "3")
    await aeventually(lambda: len(executors(worker)) == 3)


async def test_an_executor_that_crashes_is_replaced_and_the_work_goes_on(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=30) == 2
    (first,) = executors(worker)
    first.kill()
    assert "SIGKILL" in worker.wait_for("executor_crashed")
    assert await (await double.delay(2)).get(timeout=30) == 4
    (second,) = executors(worker)
    assert second.pid != first.pid


@pytest.mark.audit(unfinished=True)
async def test_the_crash_of_one_executor_disturbs_no_other(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "1", FENNELQ_LEASE="60")
    await aeventually(lambda: len(executors(worker)) == 2)
    doomed, other = await task_of(app, shop.hold).map([str(gate)] * 2)
    await aeventually(lambda: len(ledger.starts()) == 2)
    pids = {row.job_id: row.pid for row in ledger.read()}
    os.kill(pids[doomed.id], signal.SIGKILL)
    worker.wait_for("executor_crashed")
    gate.open()
    assert await other.get(timeout=30) == 1
    assert await doomed.status() is Status.EXECUTING
    assert {row.pid for row in ledger.read() if row.job_id == other.id} == {pids[other.id]}


async def test_executors_do_not_outlive_a_supervisor_that_is_killed_and_hand_their_jobs_back(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "2", "--grace", "600")
    results = await task_of(app, shop.hold).map([str(gate)] * 4)
    await aeventually(lambda: len(ledger.starts()) == 4)
    orphans = executors(worker)
    assert len(orphans) == 2
    worker.kill()
    await aeventually(lambda: not any(map(is_alive, orphans)))
    for result in results:
        info = await result.info()
        assert info is not None
        assert (info.status, info.tries) == (Status.SENT, 0)


async def test_an_executor_that_cannot_run_ends_at_once_and_logs_the_reason(
    spawn: Spawner, redis_url: str
) -> None:
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


def test_what_earlier_versions_do_not_know_is_in_a_word_of_its_own_which_they_ignore() -> None:
    config = ExecutorConfig(app="shop:app", metrics="task", totals=7)
    assert {"metrics", "totals"} & json.loads(config.to_text()).keys() == set()
    assert ExecutorConfig.from_text(config.to_text(), config.more_to_text()) == config
    assert ExecutorConfig.from_text(config.to_text()) == ExecutorConfig(app="shop:app")


def test_what_only_a_later_version_knows_is_ignored() -> None:
    given = json.loads(ExecutorConfig(app="shop:app").to_text()) | {"later": 1}
    assert ExecutorConfig.from_text(
        json.dumps(given), '{"metrics": "queue", "even_later": 2}'
    ) == ExecutorConfig(app="shop:app", metrics="queue")


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
def held_app(folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> ExecutorConfig:
    """Of an executor that imports `held:app`."""
    monkeypatch.setenv("FENNELQ_REDIS_URL", redis_url)
    return ExecutorConfig(app="held:app", folder=str(folder))


@pytest.fixture
def holding(held_app: ExecutorConfig, port: int) -> Supervisor:
    """The supervisor, on this loop, of an executor that imports `held:app`. It answers probes at `port`."""
    return supervisor_of(held_app, health=f"127.0.0.1:{port}")


@pytest.fixture
def port() -> Iterator[int]:
    """A free port."""
    held = Port()
    yield held.number
    held.release()


def supervisor_of(config: ExecutorConfig, **more: Any) -> Supervisor:
    return Supervisor(config, 1, silence=60.0, note=lambda _, __: None, **more)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """Every executor that a supervisor of this process has started."""
    children: list[Child] = []

    class Noted(Child):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            children.append(self)

    monkeypatch.setattr(supervisor, "Child", Noted)
    return children


async def probe(port: int, path: str) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    return reply.endswith(b"\nyes\n")


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


async def test_an_import_may_take_any_time_and_is_logged_every_minute(
    holding: Supervisor,
    folder: Path,
    port: int,
    started: list[Child],
    logged: list[EventDict],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Later()
    monkeypatch.setattr(child, "clock", clock)
    monkeypatch.setattr(child, "LOOK_EVERY", 0.01)
    running = asyncio.create_task(holding.run())
    await aeventually(lambda: started)
    for minutes in (1, 4):
        clock.by = minutes * 60
        await aeventually(lambda: events(logged).count("still_importing") == (1 if clock.by == 60 else 2))
        assert (await probe(port, "/live"), await probe(port, "/ready")) == (True, False)
    assert [line["seconds"] // 60 for line in logged if line["event"] == "still_importing"] == [1, 4]
    (folder / "gate").touch()
    await aeventually(lambda: started[0].worked)
    assert await probe(port, "/ready")
    assert len(started) == 1
    holding.stop()
    assert await running == 0
    assert "executor_crashed" not in events(logged)
    assert "executor_killed" not in events(logged)


@pytest.mark.parametrize(
    ("received", "alive_for"),
    [(Signal.IMPORTED, 35), (Signal.IMPORTED + Signal.ALIVE, 5), (Signal.NOT_READY, 5)],
)
async def test_after_its_import_an_executor_is_given_time_to_connect(
    monkeypatch: pytest.MonkeyPatch, received: bytes, alive_for: float
) -> None:
    clock = Frozen()
    monkeypatch.setattr(child, "clock", clock)
    monkeypatch.setattr(child, "subprocess", Namespace(subprocess, Popen=partial(Silent, received)))
    executor = Child(ExecutorConfig(app="shop:app"), silence=60.0, quarantine=lambda: None)
    running = asyncio.create_task(executor.run())

    def alive_at(seconds: float) -> bool:
        clock.by = seconds
        try:
            return executor.alive
        finally:
            clock.by = 0.0

    await aeventually(lambda: not alive_at(1000.0))  # what it has sent has been read, at 0
    assert alive_at(alive_for - 1)
    assert not alive_at(alive_for)
    executor.kill("the test is over")
    executor.collect()
    assert await running == -signal.SIGKILL


class Silent:
    """A process that has sent this when it was started, and sends nothing more until it is killed."""

    pid = 0

    def __init__(self, sent: bytes, command: Sequence[str], pass_fds: Sequence[int], **_: Any) -> None:
        self.returncode: int | None = None
        os.write(pass_fds[-1], sent)

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.returncode = -number


async def test_an_executor_that_is_silent_after_its_import_is_killed(
    held_app: ExecutorConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Later()
    monkeypatch.setattr(child, "clock", clock)
    monkeypatch.setattr(child, "LOOK_EVERY", 0.01)
    (folder / "gate").touch()
    executor = Child(held_app, silence=60.0, quarantine=lambda: None)
    running = asyncio.create_task(executor.run())
    await aeventually(lambda: executor.worked)
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGSTOP)
    await asyncio.sleep(0)
    clock.by = 61
    assert await running == -signal.SIGKILL
    assert "no sign of life for 60 s" in executor.fate


def test_an_executor_that_hangs_in_its_import_does_not_outlive_a_supervisor_that_is_killed(
    workers: Workers, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "held:app")
    orphans = executors(worker)
    assert len(orphans) == 1
    eventually((folder / "importing").exists)
    worker.kill()
    eventually(lambda: not any(map(is_alive, orphans)))


# Signals, whatever the supervisor is waiting for


async def test_a_signal_while_an_executor_is_replaced_starts_no_other(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    assert await (await task_of(app, shop.double).delay(1)).get(timeout=30) == 2
    (first,) = executors(worker)
    first.kill()
    worker.wait_for("executor_crashed")
    worker.term()
    assert worker.returncode() == 0


async def test_a_signal_while_an_executor_imports_its_app_ends_it_without_a_crash(
    workers: Workers, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "held:app")
    await aeventually((folder / "importing").exists)
    worker.term()
    assert worker.returncode() == 0
    assert "executor_crashed" not in worker.text


async def test_a_signal_right_after_an_executor_was_started_reaches_it(
    holding: Supervisor, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedAtOnce(Child):
        async def run(self) -> int:
            asyncio.get_running_loop().call_soon(holding.stop)
            return await super().run()

    monkeypatch.setattr(supervisor, "Child", StoppedAtOnce)
    async with asyncio.timeout(20):
        assert await holding.run() == 0
    assert events(logged) == ["stopping", "worker_stopped"]


async def test_a_change_of_sources_does_not_make_the_first_signal_a_second_one(
    workers: Workers, app: App, gate: Gate, ledger: Ledger, folder: Path
) -> None:
    worker = workers("--app-dir", str(folder), "-A", "plain:app", "--reload", "--grace", "60")
    held = await task_of(app, shop.hold).delay(str(gate))
    await aeventually(lambda: ledger.starts())
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
    await aeventually((folder / "importing").exists)
    (folder / "held.py").write_text(SHOP, "utf-8")
    worker.wait_for("reloading")
    await aeventually(lambda: [e.pid for e in executors(worker)] not in ([], [first.pid]))
    assert "executor_crashed" not in worker.text


# Out of something


async def test_executors_that_cannot_be_started_end_no_supervisor(workers: Workers, app: App) -> None:
    worker = workers("-p", "1")
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=30) == 2
    (executor,) = executors(worker)
    before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    # No more than it has now.
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    executor.kill()
    assert "Too many open files" in worker.wait_for("executor_not_started")
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
    assert await (await double.delay(2)).get(timeout=30) == 4
    worker.term()
    assert worker.returncode() == 0


async def test_a_failed_start_leaves_no_file_descriptor_open(
    held_app: ExecutorConfig, pauses: list[float], logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(NotStarted, match="/no/such/python"):
            await Child(held_app, silence=60.0, quarantine=lambda: None).run()
    assert psutil.Process().num_fds() == before
    holding = supervisor_of(held_app)
    running = asyncio.create_task(holding.run())
    await aeventually(lambda: len(pauses) >= 3)
    holding.stop()
    assert await running == 0
    assert psutil.Process().num_fds() == before
    assert events(logged)[:3] == ["executor_not_started"] * 3
    assert "/no/such/python" in logged[0]["error"]
    assert pauses[:3] == [0.5, 1, 2]


async def test_a_death_that_cannot_be_noted_disturbs_no_executor(
    holding: Supervisor, folder: Path, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", no_thread)
    (folder / "held.py").write_text("import os; os._exit(3)", "utf-8")
    running = asyncio.create_task(holding.run())
    await aeventually(lambda: "death_not_noted" in events(logged))
    holding.stop()
    assert await running == 0
    assert events(logged)[:2] == ["executor_crashed", "death_not_noted"]
    assert logged[0]["fate"] == "exit code 3"


# PID 1


async def test_orphans_are_reaped_and_the_ends_of_executors_are_still_known(
    spawn: Spawner, server: Server, client: App
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
        await (await client.send("tests.worker.orphanage:leave_orphan")).get(timeout=30) for _ in range(3)
    ]
    # A zombie has a pid, too.
    await aeventually(lambda: not any(map(psutil.pid_exists, orphans)))
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


class Ending:
    """In the place of the executors of a supervisor: each ends at once, as the test orders. The last one stops the
    supervisor."""

    def __init__(self, *ends: tuple[bool, int]) -> None:
        self.ends = list(ends)
        """Whether it has worked, and its exit code."""
        self.started = 0
        self.supervisor: Supervisor | None = None

    def __call__(self, config: ExecutorConfig, **_: Any) -> Child:
        return cast("Child", Ended(self))

    async def run(self, config: ExecutorConfig, **more: Any) -> int:
        """Run a supervisor of such executors; returns its exit code."""
        self.supervisor = supervisor_of(config, **more)
        return await self.supervisor.run()

    def next(self) -> tuple[bool, int]:
        self.started += 1
        if self.ends:
            return self.ends.pop(0)
        if self.supervisor is not None:
            self.supervisor.stop()
        return True, 0


class Ended:
    """An executor that ends at once."""

    name, fate, pid, alive, ready = "anna", "", None, True, True

    def __init__(self, order: Ending) -> None:
        self._order = order
        self.worked = False

    async def run(self) -> int:
        self.worked, code = self._order.next()
        return code

    def ended_as_asked(self, code: int) -> bool:
        return False

    def stop(self, *, now: bool = False) -> None: ...

    def collect(self) -> None: ...


SHOP_APP = ExecutorConfig(app="shop:app")
BURST = ExecutorConfig(app="shop:app", burst=True)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """`ending.ends` is how executors end; each without an entry there stops the supervisor."""
    ending = Ending()
    monkeypatch.setattr(supervisor, "Child", ending)
    return ending


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of supervisors, which end at once."""
    pauses: list[float] = []

    async def wait(waits: Iterable[asyncio.Task[Any]], *, timeout: float | None, return_when: str) -> None:
        if timeout is None:
            await asyncio.wait(waits, return_when=return_when)
        else:
            pauses.append(timeout)
            await asyncio.sleep(0)

    monkeypatch.setattr(supervisor, "asyncio", Namespace(asyncio, wait=wait))
    return pauses


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(False, -9)] * 9, [0.5, 1, 2, 4, 8, 16, 30, 30, 30]),
        ([(False, 1), (False, 1), (True, 1), (False, 1)], [0.5, 1, 0.5, 1]),
        ([(True, -9)] * 3, [0.5, 0.5, 0.5]),
        ([(True, 0), (True, 0)], []),
    ],
    ids=["dies of starting", "was at work once", "dies at work", "makes room for a fresh one"],
)
async def test_the_pause_before_a_successor_grows_while_none_gets_to_work(
    ending: Ending, pauses: list[float], ends: Sequence[tuple[bool, int]], expected: Sequence[float]
) -> None:
    ending.ends += ends
    assert await ending.run(SHOP_APP) == 0
    assert pauses == expected


@pytest.mark.parametrize("code", [-signal.SIGKILL, CANNOT_RUN], ids=["a pause", "a change of the code"])
async def test_a_signal_while_a_supervisor_waits_before_it_starts_a_successor_starts_none(
    ending: Ending, tmp_path: Path, code: int
) -> None:
    ending.ends = [(True, code)]
    running = asyncio.create_task(ending.run(SHOP_APP, sources=SourceWatch(tmp_path)))
    await aeventually(lambda: ending.started == 1)
    assert ending.supervisor is not None
    ending.supervisor.stop()
    assert await running == 0
    assert ending.started == 1


async def test_a_signal_before_the_quarantine_is_opened_keeps_it_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[ExecutorConfig] = []

    def start(config: ExecutorConfig, *, silence: float, quarantine: Callable[[], None]) -> Child:
        configs.append(config)
        quarantine()
        only.stop()
        return cast("Child", Ended(Ending((True, 0))))

    monkeypatch.setattr(supervisor, "Child", start)
    only = supervisor_of(SHOP_APP)
    assert await only.run() == 0
    assert len(configs) == 1


@pytest.mark.parametrize(("consumes", "started"), [(True, 2), (False, 1)])
async def test_a_worker_that_takes_no_jobs_leaves_the_quarantine_to_the_others(
    monkeypatch: pytest.MonkeyPatch, consumes: bool, started: int
) -> None:
    """Their beats find the jobs in quarantine (`test_heartbeat.py`)."""
    configs: list[ExecutorConfig] = []

    def start(config: ExecutorConfig, *, silence: float, quarantine: Callable[[], None]) -> Child:
        configs.append(config)
        if len(configs) == 1:
            quarantine()
        return cast("Child", Ended(Ending((True, 0))))

    monkeypatch.setattr(supervisor, "Child", start)
    assert await supervisor_of(replace(BURST, consumes=consumes)).run() == 0
    assert [config.lanes == (QUARANTINE,) for config in configs] == [False, True][:started]


@pytest.mark.parametrize("code", [CANNOT_RUN, 1])
async def test_a_change_of_the_code_ends_the_wait_for_it(
    ending: Ending, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 600.0)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 600.0)
    ending.ends = [(True, code)] * 3
    running = asyncio.create_task(ending.run(SHOP_APP, sources=SourceWatch(tmp_path)))
    for number in (1, 2, 3):
        await aeventually(partial(has_started, ending, number))
        (tmp_path / f"{number}.py").touch()
    assert await running == 0
    assert ending.started == 4


def has_started(ending: Ending, number: int) -> bool:
    return ending.started >= number


async def test_in_a_burst_an_executor_that_is_done_is_not_replaced_and_one_that_crashed_is(
    ending: Ending, pauses: list[float]
) -> None:
    ending.ends = [(True, -9), (True, 0), (True, 0)]
    assert await ending.run(BURST) == 0
    assert pauses == [0.5]
    assert len(ending.ends) == 1


async def test_in_a_burst_an_executor_that_was_stopped_for_a_change_of_the_code_is_replaced(
    ending: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = asyncio.Event()

    async def run(executor: Ended) -> int:
        if ending.started == 0:
            (tmp_path / "new.py").touch()
            await stopped.wait()
        executor.worked, code = ending.next()
        return code

    def stop(_: Ended, *, now: bool = False) -> None:
        stopped.set()

    monkeypatch.setattr(Ended, "run", run)
    monkeypatch.setattr(Ended, "stop", stop)
    ending.ends = [(True, 0), (True, 0), (True, 0)]
    assert await ending.run(BURST, sources=SourceWatch(tmp_path)) == 0
    assert len(ending.ends) == 1


async def test_an_executor_that_cannot_run_is_not_tried_again(ending: Ending, pauses: list[float]) -> None:
    ending.ends = [(False, CANNOT_RUN), (True, 0)]
    assert await ending.run(SHOP_APP) == CANNOT_RUN
    assert (pauses, len(ending.ends)) == ([], 1)
