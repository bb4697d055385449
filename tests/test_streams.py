"""Streams: what is written to them neither ends nor stops a process, and drives no terminal."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pytest

from fennelq import streams
from fennelq.streams import LogStream, clean, clean_lines, is_terminal
from tests.kit.namespace import Namespace


def notice(lines: int) -> str:
    return f"{lines} lost\n"


class Ends(NamedTuple):
    """A pipe with a name, so that its reader may leave and another may come."""

    path: Path
    writer: TextIO

    def reader(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Ends]:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with path.open("w") as writer:
        os.close(reader)
        yield Ends(path, writer)


@pytest.fixture(params=["opened again", "shared"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to write to a pipe: some systems do not let a process open its stderr a second time."""
    way: str = request.param
    if way == "shared":
        real = os.open

        def refuse(path: Any, *how: Any) -> int:
            if str(path).startswith("/proc/self/fd/"):
                raise PermissionError(path)
            return real(path, *how)

        monkeypatch.setattr(os, "open", refuse)
    return way


def aimed_at(stream: TextIO | None) -> LogStream:
    log = LogStream()
    log.aim(stream, notice)
    return log


def drained(reader: int) -> str:
    """What is in a pipe now."""
    read = b""
    with suppress(BlockingIOError):
        while data := os.read(reader, 1 << 20):
            read += data
    return read.decode()


@pytest.mark.usefixtures("way")
def test_lines_that_a_broken_pipe_has_cost_are_counted_once_it_works_again(pipe: Ends) -> None:
    reader = pipe.reader()
    log = aimed_at(pipe.writer)
    log.write("one\n")
    assert drained(reader) == "one\n"
    os.close(reader)
    for line in ("two\n", "three\n", "four\n"):
        log.write(line)
    reader = pipe.reader()
    log.write("five\n")
    log.write("six\n")
    assert drained(reader) == "3 lost\nfive\nsix\n"
    os.close(reader)


@pytest.mark.usefixtures("way")
def test_a_pipe_that_had_no_reader_at_the_start_is_written_to_when_it_has_one(pipe: Ends) -> None:
    log = aimed_at(pipe.writer)
    log.write("one\n")
    reader = pipe.reader()
    log.write("two\n")
    assert drained(reader) == "1 lost\ntwo\n"
    os.close(reader)


@pytest.mark.usefixtures("way")
def test_a_reader_that_stands_still_stops_no_writer_and_gets_whole_lines(pipe: Ends) -> None:
    reader = pipe.reader()
    log = aimed_at(pipe.writer)
    lines = [f"{number:01000}\n" for number in range(1000)]
    for line in lines:
        log.write(line)
    kept = drained(reader).splitlines(keepends=True)
    assert 0 < len(kept) < 1000
    assert kept == lines[: len(kept)]
    log.write("again\n")
    assert drained(reader) == f"{1000 - len(kept)} lost\nagain\n"
    os.close(reader)


@pytest.mark.usefixtures("way")
def test_a_line_of_which_a_part_was_written_is_not_continued_by_the_next(pipe: Ends) -> None:
    reader = pipe.reader()
    log = aimed_at(pipe.writer)
    log.write("x" * (1 << 20) + "\n")
    part = drained(reader)
    assert set(part) == {"x"}
    log.write("whole\n")
    assert drained(reader) == "\n1 lost\nwhole\n"
    os.close(reader)


@pytest.mark.usefixtures("way")
def test_a_long_line_reaches_a_reader_that_reads(pipe: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PATIENCE_MS", 60_000)
    reader = os.open(pipe.path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    log = aimed_at(pipe.writer)
    writing = threading.Thread(target=log.write, args=("y" * (1 << 20) + "\n",))
    writing.start()
    read = b""
    while not read.endswith(b"\n"):
        read += os.read(reader, 1 << 16)
    writing.join()
    assert read == b"y" * (1 << 20) + b"\n"
    os.close(reader)


def test_a_socket_whose_reader_stands_still_stops_no_writer() -> None:
    """Under systemd, stderr is a socket."""
    theirs, ours = socket.socketpair()
    with theirs, ours, ours.makefile("w") as writer:
        log = aimed_at(writer)
        for number in range(1000):
            log.write(f"{number:01000}\n")
        theirs.setblocking(False)
        kept = drained(theirs.fileno()).splitlines()
        assert 0 < len(kept) < 1000
        assert [int(line) for line in kept] == list(range(len(kept)))
        log.write("again\n")
        assert drained(theirs.fileno()) == f"{1000 - len(kept)} lost\nagain\n"


def test_other_processes_that_share_the_pipe_go_on_writing_as_they_did(pipe: Ends) -> None:
    reader = pipe.reader()
    aimed_at(pipe.writer).write("line\n")
    assert os.get_blocking(pipe.writer.fileno())
    os.close(reader)


def test_a_full_device_raises_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        log = aimed_at(full)
        assert log.write("line\n") == 5
        memory = io.StringIO()
        log.aim(memory, notice)
    log.write("line\n")
    assert memory.getvalue() == "1 lost\nline\n"


def test_a_file_that_took_the_number_of_stderr_gets_no_line(tmp_path: Path) -> None:
    stderr = (tmp_path / "stderr").open("w")
    log = aimed_at(stderr)
    number = stderr.fileno()
    stderr.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    log.write("line\n")
    os.close(other)
    assert (tmp_path / "other").read_bytes() == b""
    assert (tmp_path / "stderr").read_text() == "line\n"


def test_no_stream_and_a_closed_one_take_lines_as_well() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        log = aimed_at(stream)
        assert log.write("line\n") == 5
        log.flush()
        assert not is_terminal(stream)


def test_a_text_that_has_no_utf_8_is_written_escaped(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        aimed_at(file).write("half \ud83d\n")
    assert (tmp_path / "log").read_text() == "half \\ud83d\n"


def test_a_child_that_was_forked_while_another_thread_wrote_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("w") as file:
        lock = threading.RLock()
        with monkeypatch.context() as patch:
            patch.setattr(streams, "threading", Namespace(threading, RLock=lambda: lock))
            log = aimed_at(file)
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with lock:
                held.set()
                release.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends it if it waits for the lock
            log.write("from the child\n")
            os._exit(0)
        os.waitpid(child, 0)
        release.set()
        holder.join()
    assert (tmp_path / "log").read_text() == "from the child\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ü ✓", "plain – ü ✓"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("one\ntwo\r", "one\\ntwo\\r"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_of_a_text_of_several_lines_the_lines_stay() -> None:
    assert clean_lines("one\n\ttwo \x1b[0m\r\n") == "one\n\ttwo \\x1b[0m\\r\n"


STANDARD = """
import os, sys
from fennelq.streams import open_missing
open_missing()
opened = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
assert opened > 2, opened
for number in range(3):
    assert os.get_inheritable(number)
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
os.system("echo child; echo child >&2")
sys.stdin.read()
"""


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_standard_stream_that_is_missing(tmp_path: Path, redirect: str) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-c", STANDARD, tmp_path / "file"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert ended.stdout == (b"" if " >&-" in f" {redirect}" else b"to stdout\nchild\n")
    assert ended.stderr == (b"" if "2>&-" in redirect else b"to stderr\nchild\n")
    assert ended.returncode == 0
    assert (tmp_path / "file").read_bytes() == b""
