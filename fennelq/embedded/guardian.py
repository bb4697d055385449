"""The process that runs the embedded server of a project for as long as it has users.

A user runs this file by its path, in isolated mode (`python -I -S …/guardian.py`), so it imports only the standard
library. For this reason, the parts that both sides need (names of files, locks, the check whether the server replies)
are at the top of this file.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if TYPE_CHECKING or sys.platform != "win32":  # importable everywhere, so that `start` can raise its own error
    import fcntl

USERS_LOCK, GUARDIAN_LOCK, SERVER_LOCK = "users.lock", "guardian.lock", "server.lock"
SOCKET, SOCKET_RECORD, LOG = "server.sock", "server.sock.path", "server.log"

START_TIMEOUT = 60.0  # long, because a server answers only after it has read its data
STOP_TIMEOUT = 30.0
MAX_SOCKET_PATH = 103  # bytes; the limit of macOS (Linux: 107)
MAX_LOG = 256 * 1024  # bytes kept from earlier runs
DEATHS_ALLOWED, DEATHS_PERIOD = 5, 60.0  # a server that dies more often than this is not started again

# `appenddirname` only repeats the default. A Redis before 7.0 does not know this option, so it ends before it has
# touched any data.
SERVER_OPTIONS = (
    *("--port", "0", "--unixsocketperm", "700", "--daemonize", "no", "--databases", "16"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--appenddirname", "appendonlydir", "--save", ""),
    *("--maxmemory-policy", "noeviction"),
)

READY = "ready"
POLL = 0.004  # seconds; no system call waits for a lock, or for another process, with a deadline
_PR_SET_PDEATHSIG = 1


# ── both sides ──────────────────────────────────────────────────────────────────────────────────────────────


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """A descriptor that holds the lock, or None. Programs that this process starts do not inherit it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def answers(path: Path) -> bool:
    """Whether a server listens there and has loaded its data: any reply but "still loading"."""
    reply = _ask(path, b"PING\r\n")
    return bool(reply) and not reply.startswith(b"-LOADING")


def _ask(path: Path, command: bytes) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(path))
            connection.sendall(command)
            return connection.recv(256)
    except OSError:
        return b""


def recorded_socket(data: Path) -> Path | None:
    """The path of the server's socket. A name inside the directory is relative, so that the directory may be moved."""
    try:
        recorded = (data / SOCKET_RECORD).read_text()
    except FileNotFoundError:
        return None
    return data / recorded if recorded else None


# ── the guardian ────────────────────────────────────────────────────────────────────────────────────────────


class _CannotServe(Exception):
    """The server cannot be started; the text is for the process that asked for the server."""


def guard(data: Path, binary: str, lock: int) -> None:
    """Run a guardian until its last user is gone. `lock` is the guardian lock, which the starting process already holds
    and passes on."""
    if os.fork():
        os._exit(0)  # init reaps an orphan; otherwise the first user would have to reap it
    os.chdir(data)  # names are relative from here on: they stay valid if the directory is moved
    os.umask(0o077)
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    _receive_signals()
    keeper = _Keeper(data, binary)
    try:
        keeper.open()
        _report(READY)
        keeper.keep()
    except (_CannotServe, OSError) as error:
        _report(str(error))
    finally:
        keeper.close()
        os.truncate(lock, 0)
        fcntl.flock(lock, fcntl.LOCK_UN)  # explicitly, in case a user forked while it passed the lock on


class _Keeper:
    """One server in the current directory, kept alive for as long as it has users."""

    def __init__(self, data: Path, binary: str) -> None:
        self._data, self._binary = data, binary
        self._log = self._right = self._users = -1
        self._socket: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS_ALLOWED)

    def open(self) -> None:
        """Returns when the server answers and users can find it."""
        self._log = _open_log()
        self._users = os.open(USERS_LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # now: it may be removed later
        self._right = _claim_data()
        self._socket = _choose_socket(self._data)
        self._launch(self._socket)
        record = Path(f"{SOCKET_RECORD}.new")
        record.write_text(str(self._socket))
        record.replace(SOCKET_RECORD)

    def keep(self) -> None:
        """Returns when the last user is gone, on SIGTERM, or when the server dies too often."""
        threading.Thread(target=_signal_when_deserted, args=[self._users], daemon=True).start()
        while signal.sigwait(_signals()) == signal.SIGCHLD:
            if not self._still_served():
                return

    def close(self) -> None:
        """Stop the server, with all its data on disk, and leave nothing else behind."""
        Path(SOCKET_RECORD).unlink(
            missing_ok=True
        )  # first, so that users do not find a server that is about to end
        if self._server is not None:
            _stop(self._server)
        if self._socket is not None:
            _remove_socket(self._socket)

    def _launch(self, path: Path) -> None:
        """Start the server and wait for its first answer."""
        log_start = os.fstat(self._log).st_size
        server = self._server = self._spawn(path)
        deadline = time.monotonic() + START_TIMEOUT
        while not answers(path):
            if server.poll() is not None:
                raise _CannotServe(
                    f"{self._binary} ended with {server.returncode}:\n{_end_of_log(log_start)}"
                )
            if time.monotonic() > deadline:
                raise _CannotServe(f"{self._binary} does not answer")
            time.sleep(POLL)

    def _spawn(self, path: Path) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [self._binary, *SERVER_OPTIONS, "--unixsocket", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[self._right],
                preexec_fn=_tie_to_guardian(),  # noqa: PLW1509 - the only other thread sleeps in flock()
                env=os.environ | {"LC_ALL": "C"},  # it would not start in a locale that is not installed
            )
        except OSError as error:
            raise _CannotServe(f"cannot run {self._binary}: {error.strerror or error}") from error

    def _still_served(self) -> bool:
        """Whether a server runs, perhaps after starting it again: its users will reconnect."""
        while self._server is not None and self._server.poll() is not None:
            self._note(f"the server has ended ({self._server.returncode})")
            if self._dies_too_often() or self._socket is None:
                return False
            try:
                self._launch(self._socket)
            except _CannotServe as error:
                self._note(str(error))
        return True

    def _dies_too_often(self) -> bool:
        self._deaths.append(time.monotonic())
        return len(self._deaths) == DEATHS_ALLOWED and self._deaths[-1] - self._deaths[0] < DEATHS_PERIOD

    def _note(self, text: str) -> None:
        os.write(self._log, f"guardian {os.getpid()}: {text}\n".encode())


def _signals() -> set[signal.Signals]:
    """The signals that a guardian waits for: its server has ended, it must stop, its last user is gone."""
    return {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}


def _receive_signals() -> None:
    """Block the signals: `sigwait` receives them, and no handler runs, so that no signal interrupts another step."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _signals())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    # By default SIGCHLD is ignored, and not every system keeps an ignored signal for `sigwait`.
    for number in _signals():
        signal.signal(number, _never_called)


def _never_called(_number: int, _frame: object) -> None:
    """The signal is blocked, so this handler never runs."""


def _signal_when_deserted(users: int) -> None:
    """Blocks until the last user is gone. From then until the guardian's end, new users have to wait."""
    fcntl.flock(users, fcntl.LOCK_EX)
    os.kill(os.getpid(), signal.SIGUSR1)


def _report(text: str) -> None:
    """Write to the user that waits, if it still exists, and close the pipe."""
    try:
        os.write(1, text.encode(errors="replace"))
    except BrokenPipeError:
        pass
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _open_log() -> int:
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if os.fstat(log).st_size > MAX_LOG:
        os.truncate(log, 0)
    return log


def _end_of_log(log_start: int) -> str:
    with Path(LOG).open("rb") as log:
        log.seek(log_start)
        lines = log.read(MAX_LOG).decode(errors="replace").strip().splitlines()[-12:]
    if any("FATAL CONFIG FILE ERROR" in line for line in lines):
        lines.append("fennelq needs Redis 7.0 or Valkey 7.2, or newer")
    return "\n".join(f"  {line}" for line in lines)


def _claim_data() -> int:
    """Get the exclusive right to the data. Asks a server that has lost its guardian to end, and waits for its end."""
    deadline = time.monotonic() + STOP_TIMEOUT
    while (right := try_lock(Path(SERVER_LOCK))) is None:
        if time.monotonic() > deadline:
            raise _CannotServe("another server still uses its data, and does not end when asked to")
        orphan = recorded_socket(Path())
        if orphan is not None:
            _ask(orphan, b"SHUTDOWN\r\n")
        time.sleep(POLL)
    return right


def _choose_socket(data: Path) -> Path:
    """The path of the socket: in the data directory, unless the path is too long or the file system has no sockets."""
    if len(os.fsencode(data / SOCKET)) <= MAX_SOCKET_PATH and _can_bind(Path(SOCKET)):
        return Path(SOCKET)
    return _runtime_directory() / SOCKET


def _can_bind(path: Path) -> bool:
    path.unlink(missing_ok=True)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    except OSError:
        return False
    return True


def _remove_socket(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        if path.is_absolute():
            path.parent.rmdir()
    except OSError:
        pass  # another program has removed the temporary directory, or put a file into it


def _runtime_directory() -> Path:
    """A short, private directory. It is always the same for the same data, so that clients can reconnect."""
    here = Path.cwd().stat()
    name = f"fennelq-{os.geteuid()}-{here.st_dev:x}-{here.st_ino:x}"
    for base in _temporary_directories():
        directory = base / name
        if len(os.fsencode(directory / SOCKET)) <= MAX_SOCKET_PATH and _is_private(directory):
            return directory
    raise _CannotServe(
        "no place for its socket: the project's path is too long, and nothing in /tmp is private"
    )


def _temporary_directories() -> Iterator[Path]:
    for base in (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp"):
        if base and Path(base).is_absolute() and Path(base).is_dir():
            yield Path(base).resolve()


def _is_private(directory: Path) -> bool:
    """Make the directory, or accept one that only this user can have made: another user may have put a link there."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found, base = directory.lstat(), directory.parent.stat()
    except OSError:
        return False
    replaceable = base.st_mode & 0o022 and not base.st_mode & stat.S_ISVTX
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return ours and not replaceable


def _tie_to_guardian() -> Callable[[], None]:
    """Run in the child that becomes the server: unblocks signals and, on Linux, ends it when the guardian is killed.

    Elsewhere a server without a guardian lives until the next start, which replaces it (`_claim_data`).
    """
    guardian, prctl = os.getpid(), _prctl()

    def tie() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() != guardian:
                os._exit(1)

    return tie


def _prctl() -> Callable[[int, int], object] | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Stop the server with SIGTERM, after which it writes and syncs its append-only file; kill a server that hangs."""
    if server.poll() is not None:
        return
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    guard(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
