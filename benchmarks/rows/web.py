"""How fast the pages of the dashboard are, on an app with large queues, and what looking at them costs."""

from __future__ import annotations

import http.client
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

from benchmarks.arena import START_SECONDS, Arena
from benchmarks.contestant import ROOT
from benchmarks.cpu import process_seconds
from benchmarks.figures import AtMost, Line, Sample, Within, percentile
from benchmarks.rows.dead import die_in
from benchmarks.rows.row import Row
from benchmarks.scripts import Scripts
from benchmarks.server import Server

_RUNNING: Final = 10
"""Jobs that run in each queue: 500 in 50 queues."""
_FLOWING: Final = 0.005
"""Seconds between two pages of jobs that are sent and end meanwhile."""
_SLOW_US: Final = 5_000
_MOST_BYTES: Final = 60_000
_LARGE: Final = "q0"
_BARS: Final[Mapping[str, tuple[str, float, float]]] = {
    "overview": ("", 5, 40),
    "queues": ("queues", 5, 40),
    "queue": (f"queues/{_LARGE}", 20, 60),
    "job": ("jobs/{job}", 5, 20),
    "dead": ("dead", 20, 60),
    "group": ("dead/{group}", 30, 100),
    "executors": ("executors", 20, 60),
    "tasks": ("tasks", 20, 60),
    "schedules": ("schedules", 20, 60),
}
"""Page → path, and the most milliseconds of its median and of its 99th percentile."""
VIEWERS: Final = (1, 20, 200)
_LOOK: Final = b"event: look\n"


@dataclass(frozen=True)
class Web(Row):
    """Each page again and again, over one connection, while jobs flow; then many viewers of a page that updates
    itself. The times are those of a client on the same machine."""

    name = "web"
    lines = (
        *(
            line
            for page, (_, p50, p99) in _BARS.items()
            for line in (
                Line(f"page {page}, p50", f"{page}_p50", "ms", AtMost(p50), digits=1),
                Line(f"  {page}, p99", f"{page}_p99", "ms", AtMost(p99), digits=1),
            )
        ),
        Line("search, the first hits", "hits", "ms", AtMost(100), digits=1),
        Line("the largest page", "bytes", "kB", AtMost(_MOST_BYTES / 1000), digits=1),
        Line("commands that took the server more than 5 ms", "slow", "commands", AtMost(0)),
        *(
            line
            for n in VIEWERS
            for line in (
                Line(
                    f"{n} viewers: commands of Redis, with those in scripts", f"commands_{n}", "1/s", digits=1
                ),
                Line("  per look", f"per_look_{n}", "commands", digits=1),
            )
        ),
        Line("200 viewers and one: commands per second", "per_second", "% more", Within(5), digits=1),
        Line("  commands per look", "per_look", "% more", Within(5), digits=1),
        Line("  200: CPU of the web process", "cpu", "% of a core", AtMost(10), digits=1),
    )
    with_floor = False
    most_repeats = 1
    queues: int = 50
    waiting: int = 1_000_000
    dead: int = 100_000
    times: int = 200
    seconds: float = 15.0

    def measure(self, arena: Arena) -> Sample:
        server = arena.server
        names = [f"q{n}" for n in range(self.queues)]
        large = [_filled(server, name, self.waiting, self.dead if name == _LARGE else 0) for name in names]
        job = _first_job(server, large[0])
        server.ask("CONFIG", "SET", "slowlog-log-slower-than", str(_SLOW_US))
        with _flowing(server):
            others = _clients(server).keys()
            with _serving(server) as web:
                server.ask("SLOWLOG", "RESET")
                figures = self._pages(web, job)
                figures["slow"] = _slow_commands(server, others)
                figures |= self._viewers(web, lambda: _commands(server, others))
        return Sample(figures, {})

    def _pages(self, web: _Web, job: str) -> dict[str, float]:
        figures, sizes = dict[str, float](), list[int]()
        group = re.findall(r"dead/([0-9a-f]{8})\"", web.get("dead")[0].decode())[0]
        for page, (path, _, _) in _BARS.items():
            given = path.format(job=job, group=group)
            web.get(given)
            times = list[float]()
            for _ in range(self.times):
                body, seconds = web.get(given)
                times.append(seconds * 1e3)
                sizes.append(len(body))
            figures[f"{page}_p50"], figures[f"{page}_p99"] = percentile(times, 0.5), percentile(times, 0.99)
        firsts = [web.first_row(f"jobs?q=queue:{_LARGE}+state:dead") for _ in range(10)]
        figures["hits"] = max(firsts) * 1e3
        figures["bytes"] = max(sizes) / 1e3
        return figures

    def _viewers(self, web: _Web, commands: Callable[[], int]) -> dict[str, float]:
        figures = dict[str, float]()
        for number in VIEWERS:
            with web.open_pages("/queues", number) as viewers:
                time.sleep(3)  # the first looks, and the keys of the last hour
                viewers.wait_for_look()
                before, cpu, began, looks = commands(), web.cpu_seconds, time.perf_counter(), viewers.looks
                time.sleep(self.seconds)
                viewers.wait_for_look()
                seconds, sent = time.perf_counter() - began, commands() - before
                figures[f"commands_{number}"] = sent / seconds
                figures[f"per_look_{number}"] = sent / (viewers.looks - looks)
                figures["cpu"] = (web.cpu_seconds - cpu) / seconds * 100
        figures["per_second"] = (figures["commands_200"] / figures["commands_1"] - 1) * 100
        figures["per_look"] = (figures["per_look_200"] / figures["per_look_1"] - 1) * 100
        return figures


class _Web:
    """A process of the dashboard, and its only user."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._port, self._process = port, process
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    @property
    def cpu_seconds(self) -> float:
        return process_seconds(self._process.pid)

    def get(self, path: str) -> tuple[bytes, float]:
        """A page, and the seconds that it took."""
        began = time.perf_counter()
        self._connection.request("GET", f"/{path}")
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        assert answer.status == 200, f"/{path}: {answer.status}"
        return body, took

    def hang_up(self) -> None:
        """The next page needs a new connection."""
        self._connection.close()

    def first_row(self, path: str) -> float:
        """Seconds until the first hit of a search is there; the rest is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        began = time.perf_counter()
        connection.request("GET", f"/{path}")
        answer, found = connection.getresponse(), b""
        while b'<td class="mono nowrap">' not in found:
            more = answer.read1()
            assert more, "the search found nothing"
            found += more
        took = time.perf_counter() - began
        connection.close()
        return took

    @contextmanager
    def open_pages(self, page: str, number: int) -> Generator[_Viewers]:
        """A page that updates itself, in so many browsers that read what comes."""
        viewers = _Viewers()
        for _ in range(number):
            reader = socket.create_connection(("127.0.0.1", self._port))
            reader.sendall(f"GET /live?view={page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = reader.recv(100)
            assert b" 200 " in head, head
            viewers.add(reader)
        viewers.start()
        try:
            yield viewers
        finally:
            viewers.close()


class _Viewers:
    """Reads what comes to all open pages in one thread: a thread for each would take the processor from the dashboard,
    which then looks less often."""

    def __init__(self) -> None:
        self._selector, self._ended = selectors.DefaultSelector(), threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._first: socket.socket | None = None
        self._tail = b""
        self.looks = 0
        """How many looks the first page was told of."""
        self._looked = threading.Condition()

    def add(self, reader: socket.socket) -> None:
        self._first = self._first or reader
        self._selector.register(reader, selectors.EVENT_READ)

    def start(self) -> None:
        self._thread.start()

    def wait_for_look(self) -> None:
        """Wait for the next one, so that what is counted afterwards begins and ends with a look."""
        with self._looked:
            seen = self.looks
            assert self._looked.wait_for(lambda: self.looks > seen, START_SECONDS), "no look"

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for key in [*self._selector.get_map().values()]:
            cast("socket.socket", key.fileobj).close()
        self._selector.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.1):
                reader = cast("socket.socket", key.fileobj)
                if not (found := reader.recv(1 << 20)):
                    self._selector.unregister(reader)
                elif reader is self._first:
                    self._count(found)

    def _count(self, found: bytes) -> None:
        text = self._tail + found
        self._tail = text[-len(_LOOK) + 1 :]
        if number := text.count(_LOOK):
            with self._looked:
                self.looks += number
                self._looked.notify_all()


@contextmanager
def _serving(server: Server) -> Generator[_Web]:
    """`fennelq web` for the app of the benchmark."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--redis-url", server.url, "--namespace", "bench", "--port", str(port)]
    command = [sys.executable, "-m", "fennelq", "web", *options]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL)
    web = _Web(port, process)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                web.get("audit")
                break
            except OSError:
                web.hang_up()
                assert time.monotonic() < deadline, "the dashboard does not answer"
                time.sleep(0.05)
        yield web
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _flowing(server: Server) -> Generator[None]:
    """Jobs are sent and end meanwhile."""
    queue, ended = Scripts(server.url, "flowing"), threading.Event()
    queue.note()

    def flow() -> None:
        while not ended.wait(_FLOWING):
            queue.enqueue(5, per_call=5)
            for runs in queue.fetch(5, per_call=5):
                queue.finish(runs)

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _filled(server: Server, name: str, waiting: int, dead: int) -> Scripts:
    """A queue with so many jobs that wait and are dead, and some that run."""
    queue = Scripts(server.url, name)
    queue.note()
    if dead:
        die_in(queue, dead)
    queue.enqueue(_RUNNING + min(waiting, 1_000), per_call=100)
    for _ in queue.fetch(_RUNNING, per_call=_RUNNING):
        pass
    _entries(server, queue, waiting - min(waiting, 1_000))
    return queue


def _entries(server: Server, queue: Scripts, number: int) -> None:
    """Entries of a lane without records: a page reads the records of the first jobs only."""
    add = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'i', 'filler-' .. n) end"
    for first in range(0, number, 10_000):
        server.ask("EVAL", add, "1", queue.keys["s"], str(min(10_000, number - first)))


def _first_job(server: Server, queue: Scripts) -> str:
    ((_, entry),) = server.ask("XRANGE", queue.keys["s"], "-", "+", "COUNT", "1")
    return f"{queue.keys.queue}:{entry[b'i'].decode()}"


def _clients(server: Server) -> dict[str, int]:
    """The clients by their addresses, and how many commands each has sent."""
    lines: bytes = server.ask("CLIENT", "LIST")
    found = re.findall(rb"^id=\d+ addr=(\S+) .* tot-cmds=(\d+)", lines, re.MULTILINE)
    return {name.decode(): int(sent) for name, sent in found}


def _slow_commands(server: Server, others: Iterable[str]) -> float:
    """The slow commands of all clients but these."""
    clients = [entry[4].decode() for entry in server.ask("SLOWLOG", "GET", "-1")]
    return float(sum(client not in others for client in clients))


def _commands(server: Server, others: Iterable[str]) -> int:
    """The commands that all clients but these have sent, that is the web process."""
    return sum(sent for name, sent in _clients(server).items() if name not in others)
