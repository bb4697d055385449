"""Trouble with Redis in a worker: it ends for a wrong configuration, and waits for a server that is away."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from fennelq import App
from fennelq.broker.connection import masked
from fennelq.worker.processes.config import CANNOT_RUN
from fennelq.worker.processes.supervisor import Names
from tests.kit.ports import HOST, Port
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.troubles import CASES
from tests.kit.waiting import eventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import task_of

LASTING = [name for name, case in CASES.items() if case.lasting]
PASSING = [name for name, case in CASES.items() if not case.lasting and not case.reads]
FIRST_COMMAND = {"few rights": "smembers", "sentinel": "info"}


def start(spawn: Spawner, url: str, *flags: str) -> Process:
    return spawn(
        *("fennelq", "worker", "-A", f"{shop.__name__}:app", "-p", "1", "-c", "4", *flags),
        environment={
            "FENNELQ_REDIS_URL": url,
            "FENNELQ_LOG_FORMAT": "json",
            "FENNELQ_HEARTBEAT_INTERVAL": "0.2",
        },
    )


def lines(worker: Process) -> list[dict[str, Any]]:
    return [json.loads(line) for line in worker.text.splitlines()]


def named(worker: Process, event: str) -> list[dict[str, Any]]:
    return [line for line in lines(worker) if line["event"] == event]


@pytest.mark.parametrize("name", LASTING)
def test_a_wrong_configuration_ends_a_worker_with_one_sentence(
    name: str, spawn: Spawner, tmp_path: Path
) -> None:
    case = CASES[name]
    with case.make(tmp_path) as url:
        worker = start(spawn, url)
        assert worker.returncode(30) == CANNOT_RUN
        sentence = case.sentence(masked(url), FIRST_COMMAND.get(name, ""))
        forced = " (--force starts the worker all the same)" if name == "too old" else ""
        assert worker.text == f"fennelq: {sentence}{forced}\n"


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_waits_for_redis_logs_it_and_can_be_stopped(
    name: str, number: signal.Signals, spawn: Spawner, tmp_path: Path
) -> None:
    case = CASES[name]
    with case.make(tmp_path) as url:
        worker = start(spawn, url)
        worker.wait_for("waiting_for_redis", within=30)
        if number is signal.SIGINT:
            worker.interrupt()
        else:
            worker.term()
        assert worker.returncode(30) == 0
        assert [line["event"] for line in lines(worker)] == [
            "waiting_for_redis",
            "stopping",
            "worker_stopped",
        ]
        assert lines(worker)[0]["problem"] == case.sentence(masked(url))


def test_a_signal_is_heard_while_a_connection_is_being_made(spawn: Spawner) -> None:
    """A server that accepts no connection: the attempt to connect would last for seconds, and is not waited for."""
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        health = free_port()
        worker = start(spawn, f"rediss://{HOST}:{full.getsockname()[1]}", "--health-port", str(health))
        eventually(lambda: probe(health, "/live") == 200, within=30, tolerate=(OSError,))
        worker.term()
        assert worker.returncode(30) == 0
        assert "worker_started" not in worker.text


def free_port() -> int:
    port = Port()
    port.release()
    return port.number


def test_a_worker_that_waits_for_redis_is_alive_and_not_ready(spawn: Spawner) -> None:
    redis, health = Port(), free_port()
    worker = start(spawn, f"redis://{HOST}:{redis.number}/0", "--health-port", str(health))
    worker.wait_for("waiting_for_redis", within=30)
    assert probe(health, "/live") == 200
    assert probe(health, "/ready") == 503
    worker.term()
    assert worker.returncode(30) == 0
    redis.release()


def probe(port: int, path: str) -> int:
    with socket.create_connection((HOST, port), 5) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return int(sock.recv(100).split()[1])


async def test_a_worker_starts_when_redis_is_there_and_not_before(spawn: Spawner) -> None:
    with Server() as server:
        server.kill()
        worker = start(spawn, server.url)
        worker.wait_for("waiting_for_redis", within=30)
        assert "worker_started" not in worker.text
        server.start()
        worker.wait_for("worker_started", within=30)
        assert [line["event"] for line in lines(worker)][:3] == [
            "waiting_for_redis",
            "redis_is_back",
            "worker_started",
        ]
        async with shop.app_of(redis_url=server.url) as app:
            assert await (await task_of(app, shop.double).delay(2)).get(timeout=30) == 4
        worker.term()
        assert worker.returncode(30) == 0


async def test_the_first_line_names_the_tasks_and_the_server(
    workers: Workers, server: Server, app: App
) -> None:
    worker = workers()
    first = json.loads(worker.wait_for("worker_started"))
    assert first["tasks"] == sorted(app.tasks)
    with server.client() as client:
        assert first["server"] == f"valkey {client.info('server')['valkey_version']}"


def test_on_a_console_only_the_first_tasks_are_named() -> None:
    few, many = Names(["b", "a"]), Names(f"t{number:02}" for number in range(22))
    assert repr(few) == "a, b"
    assert repr(many) == "t00, t01, t02, t03, t04, t05, t06, t07, t08, t09 and 12 more"
    assert json.dumps(many) == json.dumps([f"t{number:02}" for number in range(22)])


async def test_an_outage_is_one_line_of_each_executor_and_so_is_its_end(spawn: Spawner) -> None:
    with Server() as server:
        worker = start(spawn, server.url)
        async with shop.app_of(redis_url=server.url) as app:
            double = task_of(app, shop.double)
            assert await (await double.delay(2)).get(timeout=30) == 4
            server.kill()
            worker.wait_for("redis_trouble")
            server.start()
            worker.wait_for("redis_is_back", within=30)
            assert await (await double.delay(3)).get(timeout=30) == 6
        worker.term()
        assert worker.returncode(30) == 0
        (away,), (back,) = named(worker, "redis_trouble"), named(worker, "redis_is_back")
        assert away["problem"] == CASES["down"].sentence(server.url)
        assert (back["redis"], back["seconds"] >= 0) == (server.url, True)
        assert named(worker, "trouble") == []
