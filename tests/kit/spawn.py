"""Child processes that a test starts, watches, signals and always gets rid of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

from tests.kit.forker import Forked, can_start, forker
from tests.kit.guardian import guardian, signal_group
from tests.kit.waiting import POLL, Deadline

PROJECT = Path(__file__).parents[2]
TAIL_LINES = 30
PATIENCE = 30.0
"""Seconds for a process to start, to print or to end: on a busy machine its start alone takes many. It is less than the
grace period of a worker, so that one that waits for all of it does not pass for one that ends at once."""
MODULE = (sys.executable, "-u", "-m")
"""How `Process.module` begins."""
BUFFERED = (sys.executable, "-m")
Child = subprocess.Popen[bytes] | Forked


class Process:
    """One child, leading a process group of its own; stdout and stderr go to the file `output`.

    `kill`, `term`, `stop` and `cont` signal the child alone, or its whole group with `group=True`. `close()`,
    the end of a `with` block and the death of the test process kill the whole group.
    """

    def __init__(
        self,
        *command: str,
        output: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path = PROJECT,
    ) -> None:
        self.command = command
        self.output = output
        self._child = launch(command, output, {**os.environ, **(environment or {})}, directory)
        self.pid = self._child.pid
        self._closed = False

    @classmethod
    def module(
        cls,
        module: str,
        *arguments: str,
        output: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path = PROJECT,
        redirect: str = "",
    ) -> Self:
        """`python -m module arguments…`, with this interpreter, unbuffered, from the project's root.

        `redirect` is what a shell would read at the end of that line, such as `2>/dev/full` or `>&-`.
        """
        # -u and not PYTHONUNBUFFERED: the child's own children are none of our business.
        command = (*MODULE, module, *arguments)
        if redirect:
            command = ("/bin/sh", "-c", f'exec "$@" {redirect}', "sh", *command)
        return cls(*command, output=output, environment=environment, directory=directory)

    @property
    def running(self) -> bool:
        """False once the child itself has ended; stopped counts as running."""
        return self._child.poll() is None

    @property
    def text(self) -> str:
        """Everything the process has printed so far."""
        return self.output.read_text(errors="replace")

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of its output, for messages."""
        return "\n".join(self.text.splitlines()[-lines:])

    def wait_for(self, text: str, *, within: float = PATIENCE) -> str:
        """The first line of the output that contains `text`, as soon as there is one.

        Fails when the process ends without printing it, or after `within` seconds.
        """
        __tracebackhide__ = True
        deadline = Deadline(within)
        search = _LineSearch(self.output, text)
        while True:
            # Looked at before the output, so that what was printed last is not missed.
            ended, final = not self.running, deadline.passed
            if (line := search.next_match(to_the_end=ended)) is not None:
                return line
            if ended:
                self._fail(f"ended with {self._child.returncode} and never printed {text!r}")
            if final:
                self._fail(f"did not print {text!r} within {within} s")
            time.sleep(POLL)

    def returncode(self, timeout: float = PATIENCE) -> int:
        """Wait for the child to end and return how; minus the signal's number if one killed it."""
        __tracebackhide__ = True
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._fail(f"was still running after {timeout} s")

    def kill(self, *, group: bool = False) -> None:
        """SIGKILL; the child is gone when this returns."""
        self._signal(signal.SIGKILL, group)
        self._child.wait()

    def term(self, *, group: bool = False) -> None:
        """SIGTERM: ask it to end; `returncode()` waits for that."""
        self._signal(signal.SIGTERM, group)

    def interrupt(self, *, group: bool = False) -> None:
        """SIGINT, what Ctrl-C sends (to a group)."""
        self._signal(signal.SIGINT, group)

    def stop(self, *, group: bool = False) -> None:
        """SIGSTOP; the child executes nothing any more when this returns."""
        self._signal(signal.SIGSTOP, group)
        if sys.platform == "linux":
            # WNOWAIT leaves the exit status, should there be one, to Popen.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def cont(self, *, group: bool = False) -> None:
        """SIGCONT: go on as if nothing had happened."""
        self._signal(signal.SIGCONT, group)

    def close(self) -> None:
        """Kill what is left of the group, the child's own children included; does no harm a second time."""
        if self._closed:
            return  # the number may be another group's by now
        signal_group(self.pid, signal.SIGKILL)
        self._child.wait()
        guardian().forget_group(self.pid)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.running else f"ended with {self._child.returncode}"
        return f"<Process {self.pid} {' '.join(self.command)}: {state}>"

    def _signal(self, number: int, group: bool) -> None:
        if group and not self._closed:
            signal_group(self.pid, number)
        else:
            self._child.send_signal(number)

    def _fail(self, what: str) -> NoReturn:
        __tracebackhide__ = True
        name = f"`{' '.join(self.command)}` (pid {self.pid})"
        raise AssertionError(f"{name} {what}; its output ends with:\n{self.tail()}")


class Spawner:
    """Starts processes for one test, each with an output file in `outputs`, and ends them all."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self._started: list[Process] = []

    def __call__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        directory: Path = PROJECT,
        redirect: str = "",
    ) -> Process:
        """`Process.module(module, *arguments)`."""
        output = self._outputs / f"{len(self._started)}-{module}.log"
        process = Process.module(
            module,
            *arguments,
            output=output,
            environment=environment,
            directory=directory,
            redirect=redirect,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.close()

    def report(self) -> str:
        """How each of them ended and what it printed last."""
        return "\n".join(f"{process!r} printed:\n{process.tail()}" for process in self._started)


class Printed(NamedTuple):
    """How a process ended, and what it wrote to its pipes."""

    code: int
    out: str
    err: str


def run_module(
    module: str, *arguments: str, environment: Mapping[str, str], directory: Path, within: float = 30.0
) -> Printed:
    """`python -m module arguments…` to its end, in pipes, without an input."""
    variables = {**os.environ, **environment}
    if not can_start(module, variables, directory):
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        return Printed(done.returncode, done.stdout, done.stderr)
    (out, to_out), (err, to_err), (empty, end) = os.pipe(), os.pipe(), os.pipe()
    os.close(end)
    child = forker().start(
        module, *arguments, streams=(empty, to_out, to_err), environment=variables, folder=directory
    )
    for ours in (empty, to_out, to_err):
        os.close(ours)
    with ThreadPoolExecutor(2) as pool:
        texts = pool.map(read_all, (out, err))
        try:
            code = child.wait(within)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            raise
        return Printed(code, *texts)


def read_all(pipe: int) -> str:
    """What is written to this pipe until its end; closes it."""
    with os.fdopen(pipe) as stream:
        return stream.read()


class _LineSearch:
    """Looks through a growing file once, line by line."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._wanted = text.encode()
        self._offset = 0
        self._unfinished = b""

    def next_match(self, *, to_the_end: bool) -> str | None:
        *lines, self._unfinished = (self._unfinished + self._news()).split(b"\n")
        if to_the_end:
            lines.append(self._unfinished)
        for line in lines:
            if self._wanted in line:
                return line.decode(errors="replace")
        return None

    def _news(self) -> bytes:
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            news = stream.read()
        self._offset += len(news)
        return news


def launch(command: tuple[str, ...], output: Path, environment: Mapping[str, str], directory: Path) -> Child:
    """Start a guarded child. There is no moment in which a dying test process could leave it behind.

    The child starts as a shell, or as a copy of the forker, that waits for a word on its stdin. It is put under guard
    first and given the word then; if we die in between, the child reads the end of the pipe instead and ends, nothing
    started.
    """
    reading, writing = os.pipe()
    with output.open("ab") as stream, os.fdopen(reading) as stdin, os.fdopen(writing, "wb", 0) as word:
        child: Child
        unbuffered = command[: len(MODULE)] == MODULE
        words = command[len(MODULE if unbuffered else BUFFERED) :]
        is_module = unbuffered or command[: len(BUFFERED)] == BUFFERED
        if is_module and can_start(words[0], environment, directory):
            child = forker().start(
                *words,
                streams=(stdin.fileno(), stream.fileno(), stream.fileno()),
                environment=environment,
                folder=directory,
                unbuffered=unbuffered,
                waits=True,
            )
        else:
            child = subprocess.Popen(
                ["/bin/sh", "-c", 'read -r go && exec "$@"', "sh", *command],
                stdin=stdin,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        guardian().kill_later(child.pid)
        stdin.close()
        with suppress(BrokenPipeError):  # it was killed already
            word.write(b"go\n")
    return child
