"""Tasks that run in processes of their own: from a delivery to an outcome, without Redis."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import orjson
import psutil
import pytest
from structlog.typing import EventDict

from fennelq.connections import rewired
from fennelq.errors import ConfigurationError
from fennelq.model import outcome
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.model.progress import Progress
from fennelq.wiring import Wiring
from fennelq.worker.cells import launcher
from fennelq.worker.cells.cell import Cell, CellDied
from fennelq.worker.cells.frames import Damaged, Frame, Reader, packed
from fennelq.worker.cells.pool import Cells
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Held
from fennelq.worker.running.runner import Runner
from fennelq.worker.shared import SharedValues
from tests.kit.apps import LocalApp
from tests.kit.processes import is_alive
from tests.kit.waiting import aeventually
from tests.worker import cramped

TEN_MB = 10_000_000


def held(task: str, *args: Any, tries: int = 0, options: bytes = b"", raw: bytes | None = None) -> Held:
    name, args_json = f"{cramped.__name__}:{task}", raw or orjson.dumps([args, {}])
    return Held(Delivery("mail", "s", "1-1", "7", name, args_json, options, tries, 1, 5, 1_700_000_000_000))


@pytest.fixture(scope="module")
async def runner() -> AsyncIterator[Runner]:
    runner = Runner(cramped.app, 4, SharedValues())
    yield runner
    await runner.close()


@pytest.fixture(scope="module")
async def short_lived() -> AsyncIterator[Cells]:
    """Cells that end soon when they are idle."""
    cells = Cells(cramped.app, ExecutorConfig(), idle=0.2)
    yield cells
    await cells.close()


def begin(runner: Runner, run: Held) -> asyncio.Task[Outcome]:
    """Run it in a task that can be asked to stop."""
    task = asyncio.ensure_future(runner.run(run, time_out))
    run.task, run.begun = cast("Any", task), True
    return task


def time_out(run: Held) -> None:
    run.time_out()


async def ended(runner: Runner, task: str, *args: Any, **more: Any) -> Outcome:
    return await begin(runner, held(task, *args, **more))


async def value(runner: Runner, task: str, *args: Any, **more: Any) -> Any:
    end = await ended(runner, task, *args, **more)
    assert end.kind == outcome.SUCCESS, end
    return orjson.loads(end.value)["ok"]


def failure(end: Outcome) -> dict[str, Any]:
    failure: dict[str, Any] = orjson.loads(end.error)
    return failure


async def pid_in(mark: Path) -> int:
    return int(await aeventually(lambda: mark.exists() and mark.read_text("ascii")))


# What a task finds in its process


async def test_a_function_runs_in_a_process_and_a_group_of_its_own(runner: Runner) -> None:
    pid, group = await value(runner, "where")
    assert pid == group != os.getpid()
    assert pid in runner.cells


async def test_it_has_one_descriptor_which_no_program_inherits(runner: Runner) -> None:
    assert await value(runner, "descriptors") == [False]


async def test_the_context_of_the_job_is_there(runner: Runner) -> None:
    found = await value(runner, "facts", tries=2, options=b'{"h":{"who":"me"}}')
    assert found == ["mail:7", 5, 3, {"who": "me"}, None]


async def test_jobs_one_after_the_other_share_a_process_but_no_context_variables(runner: Runner) -> None:
    assert await value(runner, "remember", 1) == [[1], "none"]
    before = runner.cells
    assert await value(runner, "remember", 2) == [[1, 2], "none"]
    assert runner.cells == before


async def test_arguments_and_results_of_ten_megabytes_arrive(runner: Runner) -> None:
    text = "0123456789" * (TEN_MB // 10)
    assert await value(runner, "echo", text) == text


async def test_a_task_without_a_result_has_none(runner: Runner) -> None:
    assert (await ended(runner, "silent", "text")).kind == outcome.SUCCESS_WITHOUT_VALUE


async def test_there_are_as_many_processes_as_jobs_at_once_and_they_are_used_again(
    runner: Runner, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    marks = [tmp_path / f"{n}" for n in range(4)]
    runs = [begin(runner, held("hold", str(mark), str(gate))) for mark in marks]
    pids = {await pid_in(mark) for mark in marks}
    gate.touch()
    assert {orjson.loads((await run).value)["ok"] for run in runs} == pids
    assert set(runner.cells) == pids
    assert {(await value(runner, "where"))[0] for _ in range(10)} <= pids
    assert set(runner.cells) == pids


async def test_performers_are_on_the_loop_and_get_the_value_or_the_exception(runner: Runner) -> None:
    assert await value(runner, "count", [1, 2]) == [1, 2, 1, 2]
    assert await value(runner, "count", []) == ["mail:7", "ValueError: nothing"]


async def test_progress_comes_back(runner: Runner) -> None:
    notes = Notes()
    run = Held(held("report_progress").delivery, cast("Any", notes))
    assert (await begin(runner, run)).kind == outcome.SUCCESS_WITHOUT_VALUE
    assert notes.reported == [
        (run, Progress(1, 3, "rows")),
        (run, Progress(2.5, None, "")),
        (run, Progress(3, 3, "")),
    ]


async def test_progress_of_a_thread_that_a_job_has_left_behind_is_not_that_of_the_next(
    runner: Runner,
) -> None:
    notes = Notes()
    assert (await ended(runner, "leave_thread_behind")).kind == outcome.SUCCESS_WITHOUT_VALUE
    assert (
        await begin(runner, Held(held("let_thread_go").delivery, cast("Any", notes)))
    ).kind == outcome.SUCCESS
    assert notes.reported == []


class Notes:
    def __init__(self) -> None:
        self.reported: list[tuple[Held, Progress]] = []

    def report(self, run: Held, progress: Progress) -> bool:
        self.reported.append((run, progress))
        return False


async def test_context_variables_and_the_redis_of_the_executor_are_there() -> None:
    runner = Runner(cramped.carrying, 1, SharedValues())
    with rewired(
        cramped.carrying,
        cramped.carrying.settings.model_copy(update={"redis_url": "redis://:secret@127.0.0.1:2/1"}),
        "tested",
        Wiring(),
    ):
        found = await value(runner, "look_around", options=b'{"h":{"ctx.request_id":"r7"}}')
        await runner.close()
    assert found == ["r7", "redis://:secret@127.0.0.1:2/1", "tested", None]


async def test_providers_run_in_the_process_and_shared_values_are_made_once_in_it(
    short_lived: Cells, tmp_path: Path
) -> None:
    """Shared values are left when the process ends."""
    mark = tmp_path / "left"
    first = ["session of pool", "mail:7", "connected", "begun"]
    assert orjson.loads(bytes(await short_lived.run(held("store", False, str(mark)), time_out))) == first
    with pytest.raises(outcome.Raised, match="ValueError"):
        await short_lived.run(held("store", True, str(mark)), time_out)
    third = [*first, "committed", "begun", "rolled back", "begun"]
    assert orjson.loads(bytes(await short_lived.run(held("store", False, str(mark)), time_out))) == third
    assert not mark.exists()
    await aeventually(mark.exists)


async def test_a_provider_that_hangs_at_its_end_is_given_up(runner: Runner) -> None:
    """U13. Also in a task without a timeout."""
    end = await ended(runner, "hang_at_the_end")
    assert (end.kind, end.reason) == (outcome.DEAD, "timeout")
    assert failure(end)["message"] == "the providers of the task did not end within stop_grace"


# How it may fail


@pytest.mark.parametrize(
    ("kind", "tries", "expected", "error", "message"),
    [
        ("usual", 0, outcome.RETRY, "ValueError", "usual"),
        ("usual", 2, outcome.DEAD, "ValueError", "usual"),
        ("unspeakable", 0, outcome.RETRY, "tests.worker.cramped.Unspeakable", "not to be pickled"),
        ("missing", 0, outcome.DEAD, "KeyError", "'gone'"),
        ("exit", 2, outcome.DEAD, "SystemExit", "enough"),
        ("reject", 0, outcome.DEAD, "fennelq.Reject", "never"),
        ("retry", 0, outcome.RETRY, "fennelq.Retry", "not yet"),
        ("retry", 2, outcome.DEAD, "fennelq.Retry", "not yet"),
    ],
)
async def test_an_exception_comes_back_as_type_message_and_traceback(
    runner: Runner, kind: str, tries: int, expected: str, error: str, message: str
) -> None:
    """Also one that cannot be pickled, and one that the policy of the task gives up on."""
    end = await ended(runner, "fail", kind, tries=tries)
    assert (end.kind, failure(end)["type"], failure(end)["message"]) == (expected, error, message)
    lines = failure(end)["traceback"].strip().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'{cramped.__file__}", line' in lines[1]
    assert lines[-1] == f"{error}: {message}"
    if kind == "retry" and expected == outcome.RETRY:
        assert end.value == b"7000"


async def test_a_snooze_is_a_snooze(runner: Runner) -> None:
    assert await ended(runner, "fail", "snooze") == outcome.snoozed(9)


async def test_what_does_not_fit_is_judged_as_in_the_worker_itself(runner: Runner) -> None:
    lying = await ended(runner, "lie")
    assert (lying.kind, lying.reason) == (outcome.DEAD, "bad_result")
    assert failure(lying)["message"].endswith("returned str, but its annotation is int")
    exiting = await ended(runner, "choosy", 1)
    assert (exiting.kind, exiting.reason, failure(exiting)["tries"]) == (outcome.DEAD, "bad_payload", 0)
    surplus = await ended(runner, "echo", "a", "b")
    assert (surplus.kind, surplus.reason) == (outcome.UNKNOWN_TASK, "unknown_argument")
    large = await ended(runner, "multiply", "0123456789", 2_000_000)
    assert (large.kind, large.reason) == (outcome.DEAD, "bad_result")
    assert failure(large)["type"] == "fennelq.PayloadTooLarge"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("segfault", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
        ("abort", "was killed by SIGABRT"),
        ("exit", "ended with exit code 7"),
        ("close", "closed its connection to the executor"),
    ],
)
async def test_a_process_that_dies_is_a_failed_try_of_that_job_alone(
    runner: Runner, tmp_path: Path, how: str, words: str
) -> None:
    """U15. A neighbour goes on in its process."""
    mark, gate = tmp_path / "mark", tmp_path / "gate"
    neighbour = begin(runner, held("hold", str(mark), str(gate)))
    pid = await pid_in(mark)
    end = await ended(runner, "die", how)
    assert (end.kind, end.of) == (outcome.RETRY, 3)
    assert failure(end)["reason"] == "crashed"
    assert failure(end)["message"] == f"the process of the task {words}"
    gate.touch()
    assert orjson.loads((await neighbour).value)["ok"] == pid
    assert (await ended(runner, "die", how, tries=2)).reason == "crashed"


async def test_a_connection_of_the_task_that_has_the_number_of_ours_gets_nothing(
    runner: Runner, tmp_path: Path
) -> None:
    path = str(tmp_path / "server")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(8)
        end = await ended(runner, "reconnect", path)
        received = [server.accept()[0].recv(100) for _ in range(8)]
    assert (end.kind, end.reason) == (outcome.DEAD, "crashed")
    assert received == [b""] * 8


async def test_a_process_that_writes_into_the_connection_is_ended(runner: Runner) -> None:
    end = await ended(runner, "scribble")
    assert (end.kind, end.reason) == (outcome.DEAD, "crashed")
    assert failure(end)["message"].startswith(
        "the process of the task was killed, because a frame begins with"
    )


async def test_an_idle_process_that_dies_costs_no_job_a_try(runner: Runner) -> None:
    pid, _ = await value(runner, "where")
    os.kill(pid, signal.SIGKILL)
    psutil.Process(pid).wait(5) if psutil.pid_exists(pid) else None
    assert (await value(runner, "where"))[0] != pid


async def test_a_task_that_forks_has_one_end(
    runner: Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its child ends without an error where it would return, and what it logs does not get between our frames."""
    mark = tmp_path / "child"
    assert await value(runner, "fork", str(mark)) == 0
    assert mark.exists()
    assert "child" not in {line.name for line in caplog.records}
    assert await value(runner, "echo", "next") == "next"


async def test_a_timer_that_a_task_leaves_behind_does_not_end_the_next_job(
    runner: Runner, tmp_path: Path
) -> None:
    assert await value(runner, "handle_signals") == "ok"
    assert await value(runner, "wait", 0.1) == "undisturbed"


# How it is stopped


async def test_a_timeout_kills_the_process_and_what_it_has_started(runner: Runner, tmp_path: Path) -> None:
    """A busy loop that ignores signals is gone when its try ends; its neighbour goes on."""
    mark, gate, spinning = tmp_path / "mark", tmp_path / "gate", tmp_path / "spinning"
    neighbour = begin(runner, held("hold", str(mark), str(gate)))
    pid = await pid_in(mark)
    run = held("spin", str(spinning))
    task = begin(runner, run)
    await aeventually(lambda: spinning.exists() and spinning.read_text("ascii"))
    cell, beside = map(int, spinning.read_text("ascii").split())
    began = asyncio.get_running_loop().time()
    run.time_out()
    end = await task
    assert asyncio.get_running_loop().time() - began < 4
    assert not psutil.pid_exists(cell)
    assert not is_alive(beside)
    assert (end.kind, end.reason) == (outcome.DEAD, "timeout")
    assert failure(end)["message"] == "the task ran longer than its timeout of 60 s"
    gate.touch()
    assert orjson.loads((await neighbour).value)["ok"] == pid


async def test_a_cancel_kills_the_process(runner: Runner, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = held("hold", str(mark), "never")
    task = begin(runner, run)
    pid = await pid_in(mark)
    assert run.ask("enough")
    assert await task == outcome.cancelled("enough", cramped.app.lifetimes.failure_ms)
    assert not psutil.pid_exists(pid)


async def test_a_stop_kills_the_process_and_leaves_the_job_without_an_outcome(
    runner: Runner, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    run = held("hold", str(mark), "never")
    task = begin(runner, run)
    pid = await pid_in(mark)
    run.stop("stopped")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid)


async def test_a_request_to_stop_before_the_process_exists_leaves_none_behind(short_lived: Cells) -> None:
    await short_lived.ready()
    task = asyncio.ensure_future(short_lived.run(held("where"), time_out))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid, _ = orjson.loads(bytes(await short_lived.run(held("where"), time_out)))
    await aeventually(lambda: short_lived.pids in ([pid], []))


async def test_a_request_to_stop_when_the_process_is_just_there_leaves_none_behind(
    short_lived: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    await aeventually(lambda: short_lived.pids == [])
    task = asyncio.ensure_future(short_lived.run(held("where"), time_out))

    class Hasty(Cell):
        def __init__(self, connection: socket.socket, pid: int) -> None:
            super().__init__(connection, pid)
            asyncio.get_running_loop().call_soon(
                task.cancel
            )  # when the run has its cell, and does not know it yet

    monkeypatch.setattr(launcher, "Cell", Hasty)
    with pytest.raises(asyncio.CancelledError):
        await task
    await aeventually(lambda: short_lived.pids == [])


async def test_signals_to_the_whole_service_leave_the_jobs_to_the_executor(
    runner: Runner, tmp_path: Path
) -> None:
    """systemd may send them to every process; the running jobs have their grace period all the same."""
    mark, gate = tmp_path / "mark", tmp_path / "gate"
    run = begin(runner, held("hold", str(mark), str(gate)))
    pid = await pid_in(mark)
    for process in (pid, psutil.Process(pid).ppid()):
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(process, number)
    gate.touch()
    assert orjson.loads((await run).value)["ok"] == pid


async def test_an_idle_process_ends(short_lived: Cells) -> None:
    await asyncio.gather(*(short_lived.run(held("where"), time_out) for _ in range(2)))
    assert len(short_lived.pids) == 2
    await aeventually(lambda: short_lived.pids == [])
    assert await short_lived.run(held("echo", "again"), time_out) == b'"again"'


async def test_an_idle_process_whose_shared_value_hangs_at_its_end_is_killed(short_lived: Cells) -> None:
    pid = int(await short_lived.run(held("lingering"), time_out))
    assert pid in short_lived.pids
    await aeventually(lambda: pid not in short_lived.pids)


# When no process can be made


@contextmanager
def full_table_of_descriptors() -> Generator[None]:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


async def test_without_a_descriptor_the_job_comes_back_later_and_has_used_no_try(
    short_lived: Cells, logged: list[EventDict]
) -> None:
    await short_lived.ready()
    await aeventually(lambda: short_lived.pids == [])
    fresh = Runner(cramped.app, 4, SharedValues())
    with full_table_of_descriptors():
        ends = [await ended(fresh, "where")]
        with pytest.raises(outcome.Snooze) as raised:
            await short_lived.run(held("where"), time_out)
    assert ends == [outcome.snoozed(5)]
    assert raised.value.delay == 5
    assert [line["event"] for line in logged] == ["cells_not_started", "no_cell", "no_cell"]
    assert await short_lived.run(held("echo", "again"), time_out) == b'"again"'


async def test_a_forkserver_that_dies_ends_its_cells_and_is_replaced(
    short_lived: Cells, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    run = asyncio.ensure_future(short_lived.run(held("hold", str(mark), "never"), time_out))
    cell = await pid_in(mark)
    os.kill(psutil.Process(cell).ppid(), signal.SIGKILL)
    with pytest.raises(Exception, match="the forkserver had ended") as raised:
        await run
    assert type(raised.value).__name__ == "TaskCrashed"
    await aeventually(lambda: not is_alive(cell))
    await short_lived.ready()
    assert await short_lived.run(held("echo", "again"), time_out) == b'"again"'


async def test_an_app_that_cannot_be_imported_again_is_refused_when_the_executor_is_made() -> None:
    app = LocalApp("local")

    @app.task(isolation="process")
    def crunch() -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"an import of tests.worker.test_cells makes no app 'local': assign"
    ):
        Runner(app, 1, SharedValues())


# Logs


async def test_records_are_handled_by_the_executor(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    assert (await ended(runner, "talk")).kind == outcome.SUCCESS_WITHOUT_VALUE
    about, failed = [line for line in caplog.records if line.name == "library"]
    assert (about.levelno, about.getMessage(), about.process) == (logging.WARNING, "about this", os.getpid())
    assert (vars(about)["colour"], vars(about)["odd"]) == ("red", {"1": "<class 'object'>"})
    assert failed.getMessage() == "failed"
    assert failed.exc_text is not None
    assert failed.exc_text.startswith("Traceback (most recent call last):\n")
    assert failed.exc_text.endswith("ValueError: half a pair: ?")


async def test_signal_handlers_that_log_and_raise_tear_no_frame(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    alarms = await value(runner, "log_under_alarms", 30)
    messages = [line.getMessage() for line in caplog.records if line.name == "library"]
    assert alarms > 0
    assert messages.count("alarm") == alarms
    # An alarm may break off a line before it is sent, but no part of one arrives.
    assert set(messages) <= {"alarm", f"line {'x' * 1_000_000}"}


# Frames


def test_frames_are_made_of_pieces_however_they_are_cut() -> None:
    frames = [Frame({"kind": "run", "n": 1}, b"\x00" * 5), Frame({}, b""), Frame({"text": "é"}, b"x" * 3000)]
    data = b"".join(packed(*frame) for frame in frames)
    for size in (1, 7, 1000, len(data)):
        reader = Reader()
        pieces = [data[at : size + at] for at in range(0, len(data), size)]
        assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


@pytest.mark.parametrize("data", [b"no frame at all", packed({})[:2] + b"\x00\x00\x00\x01\x00\x00\x00\x00["])
def test_bytes_that_are_no_frame_are_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        list(Reader().feed(data))


async def test_a_frame_that_is_cut_by_the_end_of_a_process_is_no_end_of_the_job() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    cell = Cell(ours, -1)
    call = asyncio.ensure_future(cell.call(packed({"kind": "run"}), lambda _: None))
    await asyncio.sleep(0)
    theirs.send(packed({"kind": "returned"}, b"12345")[:-1])
    cell.note_end(-signal.SIGKILL)
    with pytest.raises(CellDied, match="was killed by SIGKILL"):
        await call
    theirs.close()


async def test_a_frame_that_was_sent_before_the_end_of_a_process_counts() -> None:
    """Its end may be reported before the frame is read."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    cell = Cell(ours, -1)
    call = asyncio.ensure_future(cell.call(packed({"kind": "run"}), lambda _: None))
    await asyncio.sleep(0)
    theirs.send(packed({"kind": "returned"}, b"12345"))
    cell.note_end(-signal.SIGKILL)
    assert await call == Frame({"kind": "returned"}, b"12345")
    theirs.close()
