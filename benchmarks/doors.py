"""``python -m benchmarks.doors``: what the HTTP API and gRPC carry, with tokens and rights, each served on one core.

The server of each door is a process of its own, which is limited to one core; the clients and Redis have the other one.
The rates are calls per second of that process's own CPU time: they do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import grpc

from benchmarks.server import Server
from fennelq import App
from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc import fennelq_pb2_grpc as stubs
from fennelq.web.passwords import new_token, token_hash, write

BODY: Final = b'{"task":"benchmarks.doors:noop","kwargs":{"number":42}}'
_ALONE: Final = 300


class Bar(NamedTuple):
    """A figure and what it has to be."""

    name: str
    figure: float
    unit: str
    bar: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure meets its bar."""
        return self.figure <= self.bar if self.at_most else self.figure >= self.bar


app = App("doors", redis_url=os.environ.get("DOORS_REDIS", "redis://127.0.0.1:1/0"))


@app.task
async def noop(number: int) -> int:
    """The task whose jobs are sent."""
    return number


class Connection:
    """A connection by HTTP, as bare as it can be: the client must not take the time of the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader, self._writer, self._token = reader, writer, token

    @classmethod
    async def to(cls, port: int, token: str) -> Connection:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port), token)

    async def call(self, method: str, path: str, body: bytes = b"", key: str = "") -> tuple[int, bytes]:
        """The status and the body of an answer."""
        head = (
            f"{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
        )
        head += f"Idempotency-Key: {key}\r\n" if key else ""
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.lower().startswith(b"content-length:"))
        return int(lines[0][9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


class Door:
    """A server, and its process."""

    def __init__(self, port: int, pid: int, token: str) -> None:
        self.port, self.pid, self.token = port, pid, token

    def cpu(self) -> float:
        """The CPU seconds that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Its resident memory in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def rate(self, number: int, work: Callable[[], Awaitable[Any]]) -> float:
        """Calls per second of its CPU time."""
        before = self.cpu()
        await work()
        return number / (self.cpu() - before)


@asynccontextmanager
async def door(kind: str, url: str, folder: Path) -> AsyncGenerator[Door]:
    """Start a server with tokens, on one core."""
    token, tokens = new_token(), folder / "tokens"
    write(tokens, f"bench-{kind}", token_hash(token), "see,see_arguments,send:benchmarks.*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "-m",
        "fennelq",
        kind,
        "-A",
        "benchmarks.doors:app",
        "--port",
        str(port),
        "--tokens",
        str(tokens),
    ]
    with (folder / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, *words], env={**os.environ, "DOORS_REDIS": url}, stdout=log, stderr=log
        )
    os.sched_setaffinity(process.pid, {0})
    try:
        await _reachable(port)
        yield Door(port, process.pid, token)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


async def _reachable(port: int) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise RuntimeError("the server does not answer")


async def http_rows(engine: Server, folder: Path) -> list[Bar]:
    """The figures of the HTTP API."""
    url = engine.url
    async with door("api", url, folder) as api:
        lone = await Connection.to(api.port, api.token)
        await _repeat(lone, 300)
        submit = await _submit(api, 32, 1600)
        lone.close()
        lone = await Connection.to(api.port, api.token)
        alone = await _alone(lone)
        bulk = await _bulk(api, lone)
        waits, late = await _waits(api, url)
        streams = await _streams(api, lone)
        keyed = await _keyed(lone)
        away = await _away(lone, engine)
    return [
        Bar("http: submits per second, 32 connections", submit, "/s", 6000),
        Bar("http: a submit alone, p99", alone, "ms", 1.5, at_most=True),
        Bar("http: jobs in bulk per second", bulk, "/s", 20_000),
        Bar("http: 1,000 waits, connections to Redis", waits, "", 4, at_most=True),
        Bar("http: 1,000 waits, woken after the end, p50", statistics.median(late), "ms", 10, at_most=True),
        Bar("http: 1,000 waits, woken after the end, p99", late[990], "ms", 10, at_most=True),
        Bar("http: 1,000 idle event streams, memory", streams, "MB", 64, at_most=True),
        Bar("http: a submit alone with an Idempotency-Key, p99", keyed, "ms", 3, at_most=True),
        Bar("http: a submit while Redis is away, answered after", away, "ms", 1000, at_most=True),
    ]


async def _repeat(connection: Connection, number: int) -> None:
    for _ in range(number):
        status, answer = await connection.call("POST", "/jobs", BODY)
        assert status == 201, answer


async def _submit(api: Door, connections: int, number: int) -> float:
    made = [await Connection.to(api.port, api.token) for _ in range(connections)]
    each = number // connections

    async def work() -> None:
        await asyncio.gather(*(_repeat(one, each) for one in made))

    rates = [await api.rate(number, work) for _ in range(3)]
    for one in made:
        one.close()
    return statistics.median(rates)


async def _alone(connection: Connection) -> float:
    times: list[float] = []
    for _ in range(_ALONE):
        began = time.perf_counter()
        await connection.call("POST", "/jobs", BODY)
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[_ALONE * 99 // 100]


async def _keyed(connection: Connection) -> float:
    times: list[float] = []
    for number in range(_ALONE):
        began = time.perf_counter()
        status, _ = await connection.call("POST", "/jobs", BODY, f"order-{number}")
        times.append((time.perf_counter() - began) * 1000)
        assert status == 201, status
    return sorted(times)[_ALONE * 99 // 100]


async def _away(connection: Connection, engine: Server) -> float:
    """How long the slowest of some calls takes while Redis does not answer."""
    times: list[float] = []
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            began = time.perf_counter()
            status, answer = await connection.call("POST", "/jobs", BODY)
            times.append((time.perf_counter() - began) * 1000)
            assert status == 503, answer
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    return max(times)


async def _bulk(api: Door, connection: Connection) -> float:
    body = b'{"jobs":[%b]}' % b",".join([BODY] * 5000)

    async def work() -> None:
        for _ in range(2):
            status, answer = await connection.call("POST", "/jobs:bulk", body)
            assert status == 200, answer[:200]

    return await api.rate(10_000, work)


async def _waits(api: Door, url: str) -> tuple[int, list[float]]:
    """A thousand clients wait for one job each; then all jobs are cancelled, one after the other."""
    async with App("doors", redis_url=url) as sender:
        jobs = [
            (await sender.send("benchmarks.doors:noop", _kwargs={"number": 1}, delay=3600)).id
            for _ in range(1000)
        ]
        made = [await Connection.to(api.port, api.token) for _ in jobs]
        ended: dict[str, float] = {}

        async def wait(connection: Connection, job: str) -> float:
            status, _ = await connection.call("GET", f"/jobs/{job}/result?wait=50")
            assert status == 200, status
            return (time.perf_counter() - ended[job]) * 1000

        waiting = [asyncio.ensure_future(wait(one, job)) for one, job in zip(made, jobs, strict=True)]
        await asyncio.sleep(3)
        connections = _connections(api.pid, url)
        for job in jobs:
            await sender.jobs.cancel(job, wait=0)
            ended[job] = time.perf_counter()
            await asyncio.sleep(0.001)
        late = await asyncio.gather(*waiting)
        for one in made:
            one.close()
    return connections, sorted(late)


def _connections(pid: int, url: str) -> int:
    """The established connections of a process to a server."""
    port = f"{int(url.rpartition(':')[2].partition('/')[0]):04X}"
    inodes = {
        line.split()[9]
        for line in Path(f"/proc/{pid}/net/tcp").read_text("utf-8").splitlines()[1:]
        if line.split()[2].endswith(f":{port}") and line.split()[3] == "01"
    }
    files = Path(f"/proc/{pid}/fd").iterdir()
    return sum(f"socket:[{inode}]" == str(file.readlink()) for file in files for inode in inodes)


async def _streams(api: Door, connection: Connection) -> float:
    _, answer = await connection.call("POST", "/jobs", BODY)
    job = json.loads(answer)["id"]
    before = api.resident()
    made: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for number in range(1000):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        head = f"GET /api/v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n"
        writer.write(head.encode())
        made.append((reader, writer))
        if number % 50 == 49:
            for opened, _ in made[-50:]:
                await opened.readuntil(b"event: status")
    used = (api.resident() - before) / 2**20
    for _, writer in made:
        writer.close()
    return used


async def grpc_rows(engine: Server, folder: Path) -> list[Bar]:
    """The figures of gRPC."""
    async with door("grpc", engine.url, folder) as made:
        metadata = (("authorization", f"Bearer {made.token}"),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
            jobs: Any = cast("Any", stubs).JobsStub(channel)
            request = pb.EnqueueRequest(task="benchmarks.doors:noop", kwargs=b'{"number": 42}')

            async def some(number: int) -> None:
                for _ in range(number):
                    await jobs.Enqueue(request, metadata=metadata)

            async def work() -> None:
                await asyncio.gather(*(some(150) for _ in range(32)))

            await some(200)
            rate = statistics.median([await made.rate(4800, work) for _ in range(3)])
    return [Bar("grpc: unary enqueues per second, 32 at once", rate, "/s", 2500)]


async def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doors", description=__doc__)
    parser.add_argument("--only", choices=["http", "grpc"])
    wanted = parser.parse_args()
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder, Server("valkey", Path(folder)) as engine:
        for name, rows in (("http", http_rows), ("grpc", grpc_rows)):
            if wanted.only in (None, name):
                bars += await rows(engine, Path(folder))
    for bar in bars:
        sign = "≤" if bar.at_most else "≥"
        shown = f"{bar.figure:,.1f} {bar.unit}".strip()
        print(f"{'ok  ' if bar.holds else 'MISS'} {bar.name:50} {shown:>14}   bar {sign} {bar.bar:,g}")
    return int(not all(bar.holds for bar in bars))


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
