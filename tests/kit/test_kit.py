"""The ground holds: each promise of the kit, on every kind of server that is here."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.kit.ledger import Ledger, Row
from tests.kit.network import Exchange, Mode
from tests.kit.ports import HOST, Port
from tests.kit.processes import is_alive
from tests.kit.proxy import Proxy
from tests.kit.resp import Framer, words
from tests.kit.server import Kind, Server, Servers, available
from tests.kit.spawn import PROJECT, Process, Spawner
from tests.kit.waiting import NeverHappened, aeventually, eventually

SOON = 0.5


def client_of(url: str, timeout: float = SOON) -> redis.Redis:
    """A client that never retries: what it raises is what happened."""
    return redis.Redis.from_url(
        url, retry=Retry(NoBackoff(), 0), socket_timeout=timeout, socket_connect_timeout=timeout
    )


def refuses(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except (ConnectionResetError, TimeoutError):  # a process that is being killed, or one that is paused
        return False
    return False


# -- server ----------------------------------------------------------------------------------------


@pytest.fixture
def own(server_kind: Kind, tmp_path: Path) -> Iterator[Server]:
    """A server that only this test uses, not started, which keeps what is written in an append-only file."""
    own = Server(server_kind, aof=True, config={"appendfsync": "always"})
    yield own
    own.close()


def test_valkey_is_always_available() -> None:
    assert available()[0] == "valkey"


@pytest.mark.both_servers
def test_a_server_is_the_process_we_started_and_of_the_kind_we_asked_for(
    server: Server, server_kind: Kind
) -> None:
    with server.client() as client:
        about = client.info("server")
    assert about["process_id"] == server.pid
    assert about.get("server_name", "redis") == server_kind


@pytest.mark.both_servers
@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_database(redis_url: str, turn: int) -> None:
    client = client_of(redis_url)
    assert client.dbsize() == 0
    client.set("left behind", turn)


@pytest.mark.both_servers
def test_a_killed_server_comes_back_on_its_port_with_what_it_had_saved(own: Server) -> None:
    port = own.start().port
    own.client().set("k", "saved")
    own.kill()
    assert not own.running
    assert refuses(port)
    own.start()
    assert own.port == port
    assert own.client().get("k") == b"saved"


@pytest.mark.both_servers
def test_a_stopped_server_comes_back_too(own: Server) -> None:
    with own:
        own.client().set("k", "saved")
        own.stop()
        assert not own.running
        assert own.start().client().get("k") == b"saved"


@pytest.mark.both_servers
def test_a_server_without_aof_forgets(server: Server) -> None:
    server.client().set("k", "v")
    server.kill()
    server.start()
    assert server.client().get("k") is None


@pytest.mark.both_servers
def test_a_paused_server_answers_when_it_is_resumed(server: Server) -> None:
    impatient, patient = server.client(timeout=0.5), server.client()
    impatient.ping()
    server.pause()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    server.resume()
    assert patient.ping()


@pytest.mark.both_servers
def test_a_server_left_dead_or_paused_is_whole_for_the_next_test(server_kind: Kind, servers: Servers) -> None:
    servers.clean(server_kind).kill()
    servers.clean(server_kind).pause()
    server = servers.clean(server_kind)
    assert server.client(timeout=20).ping()


@pytest.mark.both_servers
def test_a_server_takes_a_password_a_memory_limit_a_socket_and_any_config(server_kind: Kind) -> None:
    password = 'p@ss "word"/\\'
    options = {"maxmemory-policy": "noeviction", "appendfsync": "no"}
    with Server(server_kind, maxmemory="32mb", password=password, unix_socket=True, config=options) as server:
        with pytest.raises(redis.AuthenticationError):
            client_of(f"redis://{HOST}:{server.port}").ping()
        assert server.client().config_get("maxmemory") == {"maxmemory": str(32 * 1024 * 1024)}
        assert client_of(server.url).config_get("appendfsync") == {"appendfsync": "no"}
        assert client_of(server.unix_url).ping()


@pytest.mark.both_servers
def test_a_setting_changed_for_a_block_is_restored(server: Server) -> None:
    client = server.client()
    before = client.config_get("maxmemory")
    with server.configured(maxmemory="1"), pytest.raises(redis.OutOfMemoryError):
        client.set("k", "v")
    assert client.config_get("maxmemory") == before


@pytest.mark.both_servers
def test_cpu_time_of_a_server_grows_with_its_work(server: Server) -> None:
    before = server.cpu_seconds()
    server.client().eval("local t = 0 for i = 1, 2000000 do t = t + i end return t", 0)
    assert server.cpu_seconds() > before


def test_a_server_that_cannot_start_reports_the_reason() -> None:
    server = Server(config={"no-such-directive": "yes"})
    with pytest.raises(RuntimeError, match="no-such-directive"):
        server.start()
    server.close()


def test_closing_a_server_leaves_nothing_behind(server_kind: Kind) -> None:
    with Server(server_kind) as server:
        directory, port = server.directory, server.port
        assert directory.exists()
    assert not directory.exists()
    assert refuses(port)


def test_a_port_is_held_while_nothing_listens_on_it() -> None:
    port = Port()
    assert refuses(port.number)
    with port.listen():
        assert not refuses(port.number)
    assert refuses(port.number)
    port.release()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = Server()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    assert server.client().ping()
    server.close()


ORPHANAGE = """
import os, sys, time
from functools import partial
from pathlib import Path
from tests.kit.server import Server
from tests.kit.spawn import Process
kind, output, state = sys.argv[1:]
server = Server(kind).start()
child = Process(sys.executable, "-c", "import time; time.sleep(600)", output=Path(output))
if state == "server paused":
    server.pause()
if state == "forked" and os.fork() == 0:
    time.sleep(3)
    os._exit(0)
print(server.port, server.directory, server.pid, child.pid, flush=True)
if state != "careless":
    time.sleep(600)
"""


@pytest.mark.both_servers
@pytest.mark.parametrize("state", ["plain", "server paused", "forked", "careless"])
def test_nothing_survives_a_test_process_however_it_ends(
    server_kind: Kind, tmp_path: Path, state: str
) -> None:
    command = [sys.executable, "-c", ORPHANAGE, server_kind, str(tmp_path / "child.log"), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as tests:
        assert tests.stdout is not None
        port, directory, *pids = tests.stdout.readline().split()
        if state != "careless":
            tests.kill()
    eventually(lambda: refuses(int(port)))
    eventually(lambda: not Path(directory).exists())
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids))


# -- proxy -----------------------------------------------------------------------------------------


@pytest.fixture
def through(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client that talks through the proxy and is connected already."""
    with client_of(proxy.url) as client:
        client.ping()
        yield client


@pytest.mark.both_servers
def test_a_proxy_that_is_up_passes_everything(proxy: Proxy, through: redis.Redis, server: Server) -> None:
    big = random.randbytes(3_000_000)
    through.set("big", big)
    assert through.get("big") == big
    assert server.client().get("big") == big
    counters = proxy.counters
    assert (counters.connections, counters.open, counters.dropped) == (1, 1, 0)
    assert counters.sent > len(big) < counters.received


@pytest.mark.both_servers
def test_a_refusing_proxy_cuts_and_refuses_until_it_is_up(proxy: Proxy, through: redis.Redis) -> None:
    proxy.refuse()
    assert refuses(proxy.port)
    assert proxy.counters.open == 0
    with pytest.raises(redis.ConnectionError):
        through.ping()
    proxy.up()
    assert through.ping()


@pytest.mark.both_servers
def test_a_black_hole_delivers_late_what_was_sent_into_it(
    proxy: Proxy, through: redis.Redis, server: Server
) -> None:
    proxy.blackhole()
    passed = proxy.counters.sent
    with pytest.raises(redis.TimeoutError):
        through.set("k", "late")
    assert proxy.counters.sent == passed
    assert server.client().get("k") is None
    proxy.up()
    eventually(lambda: server.client().get("k") == b"late")


@pytest.mark.both_servers
def test_a_black_hole_swallows_new_connections_too(proxy: Proxy, server: Server) -> None:
    proxy.blackhole()
    before = len(server.client().client_list())
    with pytest.raises(redis.TimeoutError):
        client_of(proxy.url).ping()
    assert len(server.client().client_list()) == before
    proxy.up()
    assert client_of(proxy.url).ping()


@pytest.mark.both_servers
def test_a_black_hole_holds_a_reply_that_is_on_its_way(proxy: Proxy, server: Server) -> None:
    with client_of(proxy.url, timeout=60) as client:
        client.ping()
        answer = InThread(lambda: client.blpop(["list"], timeout=60))
        eventually(lambda: server.client().info("clients")["blocked_clients"] == 1)
        proxy.blackhole()
        server.client().rpush("list", "x")
        assert not answer.arrives(within=0.1)
        proxy.up()
        assert answer.arrives(within=20)
        assert answer.value == (b"list", b"x")


@pytest.mark.both_servers
def test_half_a_network_carries_the_command_and_loses_the_reply(
    proxy: Proxy, through: redis.Redis, server: Server
) -> None:
    proxy.half()
    with pytest.raises(redis.TimeoutError):
        through.incr("n")
    assert server.client().get("n") == b"1"
    assert proxy.counters.dropped == 1
    proxy.up()
    assert through.incr("n") == 2


@pytest.mark.both_servers
def test_a_connection_that_lost_a_reply_never_hears_a_later_one(proxy: Proxy) -> None:
    with socket.create_connection((HOST, proxy.port), timeout=5) as raw:
        raw.sendall(b"PING\r\n")
        assert raw.recv(100) == b"+PONG\r\n"
        proxy.half()
        raw.sendall(b"PING\r\n")
        eventually(lambda: proxy.counters.dropped == 1)
        proxy.up()
        with pytest.raises(ConnectionResetError):
            raw.recv(100)


@pytest.mark.both_servers
def test_latency_is_added_to_each_direction_and_not_to_each_command(
    proxy: Proxy, through: redis.Redis
) -> None:
    def round_trip(commands: int) -> float:
        pipeline = through.pipeline(transaction=False)
        for number in range(commands):
            pipeline.echo(str(number))
        start = time.perf_counter()
        pipeline.execute()
        return time.perf_counter() - start

    proxy.latency(100)
    assert round_trip(1) >= 0.2
    assert 0.2 <= round_trip(200) < 20  # one by one it would be forty seconds
    proxy.up()
    assert min(round_trip(1) for _ in range(20)) < 0.2


@pytest.mark.both_servers
def test_nothing_passes_once_a_control_method_has_returned(proxy: Proxy, server: Server) -> None:
    with client_of(proxy.url, timeout=10) as client:
        done = threading.Event()
        traffic = InThread(lambda: [client.incr("n") for _ in iter(done.is_set, True)])
        for _ in range(10):
            eventually(partial(has_received, proxy, proxy.counters.received + 1000))
            proxy.blackhole()
            stopped_at = proxy.counters
            time.sleep(0.02)  # what must not happen has no event to wait for
            assert proxy.counters == stopped_at
            proxy.up()
        done.set()
        assert traffic.arrives(within=20)


def has_received(proxy: Proxy, amount: int) -> bool:
    return proxy.counters.received >= amount


@pytest.mark.both_servers
def test_cut_all_resets_every_connection_once(proxy: Proxy) -> None:
    raws = [socket.create_connection((HOST, proxy.port), timeout=5) for _ in range(5)]
    assert proxy.cut_all() == 5
    for raw in raws:
        with raw, pytest.raises(ConnectionResetError):
            raw.recv(100)
    assert proxy.counters.open == 0
    assert client_of(proxy.url).ping()


@pytest.mark.both_servers
@pytest.mark.parametrize("cut", [False, True])
def test_just_the_nth_reply_of_a_command_is_lost(
    proxy: Proxy, through: redis.Redis, server: Server, cut: bool
) -> None:
    proxy.drop_reply(3, command="incrby", cut=cut)
    assert [through.incr("n"), through.get("n"), through.incr("n")] == [1, b"1", 2]
    with pytest.raises(redis.ConnectionError if cut else redis.TimeoutError):
        through.incr("n")
    assert server.client().get("n") == b"3"
    assert through.incr("n") == 4
    assert proxy.counters.dropped == 1


@pytest.mark.both_servers
def test_every_reply_can_be_lost_while_clients_come_and_go(proxy: Proxy, server: Server) -> None:
    proxy.drop_replies(cut=True)
    for _ in range(20):
        with client_of(proxy.url) as client, pytest.raises(redis.ConnectionError):
            client.incr("n")
    assert server.client().get("n") == b"20"
    proxy.up()
    assert client_of(proxy.url).incr("n") == 21


@pytest.mark.both_servers
def test_replies_are_chosen_by_what_was_asked_and_answered(proxy: Proxy, through: redis.Redis) -> None:
    def second_page(exchange: Exchange) -> bool:
        return exchange.words[1] == b"b" and b"two" in exchange.reply

    through.mset({"a": "two", "b": "two"})
    proxy.drop_replies(second_page, command="GET", cut=True)
    assert through.get("a") == b"two"
    with pytest.raises(redis.ConnectionError):
        through.get("b")


@pytest.mark.both_servers
def test_replies_inside_pipelines_and_transactions_are_distinguished(
    proxy: Proxy, through: redis.Redis
) -> None:
    seen: list[str] = []

    def note(exchange: Exchange) -> bool:
        seen.append(exchange.command)
        return False

    proxy.drop_replies(note)
    pipeline = through.pipeline(transaction=True)
    pipeline.set("a", random.randbytes(200_000))
    pipeline.get("a")
    pipeline.execute()
    assert seen == ["MULTI", "SET", "GET", "EXEC"]


def test_a_choice_that_raises_fails_the_test(server: Server) -> None:
    proxy = Proxy(server.url).start()
    proxy.drop_replies(lambda exchange: bool(exchange.words[7]), command="PING")
    with pytest.raises(redis.ConnectionError):
        client_of(proxy.url).ping()
    with pytest.raises(IndexError):
        proxy.close()


@pytest.mark.both_servers
def test_a_client_that_goes_away_goes_away_at_the_server(proxy: Proxy, server: Server) -> None:
    before = server.client().info("clients")["connected_clients"]
    with client_of(proxy.url) as client:
        client.ping()
    eventually(lambda: proxy.counters.open == 0)
    eventually(lambda: server.client().info("clients")["connected_clients"] == before)


@pytest.mark.both_servers
def test_a_server_that_dies_takes_its_connections_along(
    proxy: Proxy, through: redis.Redis, server: Server
) -> None:
    server.kill()
    with pytest.raises(redis.ConnectionError):
        through.ping()
    server.start()
    assert through.ping()


@pytest.mark.both_servers
async def test_a_proxy_serves_the_tests_own_event_loop(proxy: Proxy) -> None:
    client = redis.asyncio.Redis.from_url(proxy.url, retry=None, socket_timeout=SOON)
    async with client:
        await client.ping()
        proxy.blackhole()
        assert proxy.mode is Mode.BLACKHOLE
        with pytest.raises(redis.TimeoutError):
            await client.ping()
        proxy.up()
        assert await client.ping()


def test_a_proxys_url_keeps_what_else_is_in_the_url() -> None:
    proxy = Proxy("rediss://user:p%40ss@example:6380/3?x=1")
    assert proxy.url == f"rediss://user:p%40ss@{HOST}:{proxy.port}/3?x=1"
    proxy.close()


MESSAGES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*1\r\n$1\r\na\r\n%1\r\n+k\r\n_\r\n",
    b"|1\r\n+ttl\r\n:3\r\n*1\r\n#t\r\n",
    b"~2\r\n,1.5\r\n(123\r\n",
    b">2\r\n+invalidate\r\n*0\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"%0\r\n",
]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_messages_are_cut_where_they_end_however_they_arrive(piece: int) -> None:
    stream, framer = b"".join(MESSAGES), Framer()
    pieces = [stream[start : start + piece] for start in range(0, len(stream), piece)]
    assert [message for part in pieces for message in framer.feed(part)] == MESSAGES


def test_the_words_of_a_request() -> None:
    assert words(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\r\n\r\n") == (b"SET", b"k", b"\r\n\r\n")
    assert words(b"PING  hello\r\n") == (b"PING", b"hello")


# -- ledger ----------------------------------------------------------------------------------------

CLERK = """
import sys
from tests.kit.ledger import Ledger
ledger = Ledger.inherited()
for number in range(300):
    ledger.start(f"job {number}", sys.argv[1], note="x" * 2000)
    ledger.end(f"job {number}", sys.argv[1])
"""


def test_a_ledger_returns_its_rows_typed_and_in_order(ledger: Ledger) -> None:
    assert ledger.read() == []
    ledger.start("mail:1 ☃\n", "s/1-0")
    ledger.end("mail:1 ☃\n", "s/1-0", note="done")
    first, last = ledger.read()
    assert first == Row("start", "mail:1 ☃\n", "s/1-0", os.getpid(), first.at, "")
    assert (last.kind, last.note) == ("end", "done")
    assert first.at <= last.at <= time.monotonic()


def test_processes_write_one_ledger_without_mixing_their_rows(ledger: Ledger) -> None:
    command = [sys.executable, "-c", CLERK]
    environment = {**os.environ, **ledger.environment}
    clerks = [subprocess.Popen([*command, str(n)], env=environment, cwd=PROJECT) for n in range(3)]
    assert [clerk.wait(20) for clerk in clerks] == [0, 0, 0]
    assert len(ledger.read()) == 3 * 300 * 2
    assert set(ledger.starts().values()) == set(ledger.ends().values()) == {3}
    assert {row.pid for row in ledger.read()} == {clerk.pid for clerk in clerks}


def test_a_torn_row_spoils_no_other(ledger: Ledger) -> None:
    ledger.start("a")
    with ledger.path.open("ab") as file:
        file.write(b'\n["start", "torn')
    ledger.start("b")
    assert ledger.starts() == {"a": 1, "b": 1}


# -- spawn -----------------------------------------------------------------------------------------


def script(directory: Path, text: str) -> str:
    """A module of that text, importable by a process started in that directory."""
    (directory / "child.py").write_text(text)
    return "child"


POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_process_is_awaited_by_what_it_prints_and_ended_by_a_signal(spawn: Spawner, tmp_path: Path) -> None:
    process = spawn(script(tmp_path, POLITE), directory=tmp_path)
    assert process.wait_for("read") == "ready"
    assert process.running
    process.term()
    assert process.returncode() == 7


def test_a_killed_process_is_gone_at_once(spawn: Spawner, tmp_path: Path) -> None:
    process = spawn(script(tmp_path, POLITE), directory=tmp_path)
    process.wait_for("ready")
    process.kill()
    assert not process.running
    assert process.returncode() == -signal.SIGKILL


def test_stderr_and_the_environment_reach_the_output(spawn: Spawner, tmp_path: Path) -> None:
    text = "import os, sys; print(os.environ['GREETING'], 'PATH' in os.environ, file=sys.stderr)"
    process = spawn(script(tmp_path, text), environment={"GREETING": "hello"}, directory=tmp_path)
    assert process.wait_for("hello") == "hello True"


def test_modules_are_found_from_the_projects_root(spawn: Spawner) -> None:
    assert spawn("tests.kit.resp").returncode() == 0


TICKING = """
import itertools, time
for number in itertools.count():
    print("tick", number, flush=True)
    time.sleep(0.005)
"""


def test_a_stopped_process_does_nothing_until_it_is_continued(spawn: Spawner, tmp_path: Path) -> None:
    process = spawn(script(tmp_path, TICKING), directory=tmp_path)
    process.wait_for("tick 3")
    process.stop()
    ticks = len(process.text.splitlines())
    time.sleep(0.1)  # what must not happen has no event to wait for
    assert len(process.text.splitlines()) == ticks
    process.cont()
    process.wait_for(f"tick {ticks + 5}")


def test_waiting_for_a_line_fails_as_soon_as_the_process_has_ended(spawn: Spawner, tmp_path: Path) -> None:
    process = spawn(script(tmp_path, "print('almost'); raise SystemExit(3)"), directory=tmp_path)
    with pytest.raises(AssertionError, match=r"ended with 3 and never printed 'ready'.*\n.*almost"):
        process.wait_for("ready", within=60)


def test_waiting_for_a_line_fails_after_its_time(spawn: Spawner, tmp_path: Path) -> None:
    process = spawn(script(tmp_path, POLITE), directory=tmp_path)
    process.wait_for("ready")
    with pytest.raises(AssertionError, match=r"did not print 'done' within 0\.1 s"):
        process.wait_for("done", within=0.1)


PARENT = """
import subprocess, sys
child = "import fcntl, time; f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
subprocess.Popen([sys.executable, "-c", child + "print('locked', flush=True); time.sleep(600)"])
if sys.argv[1] == "wait":
    import time; time.sleep(600)
"""


@pytest.mark.parametrize("parent", ["wait", "leave"])
def test_closing_a_process_ends_its_children_too(tmp_path: Path, parent: str) -> None:
    module = script(tmp_path, PARENT)
    with Process.module(module, parent, output=tmp_path / "log", directory=tmp_path) as process:
        eventually(lambda: "locked" in process.text)
        assert not lock_is_free(tmp_path / "lock")
    eventually(lambda: lock_is_free(tmp_path / "lock"))


def lock_is_free(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


# -- waiting ---------------------------------------------------------------------------------------


def test_eventually_returns_what_became_true() -> None:
    attempts = iter([0, None, "", "there"])
    assert eventually(lambda: next(attempts)) == "there"


def test_eventually_takes_a_failed_assertion_for_not_yet() -> None:
    numbers = iter(range(10))

    def five_is_reached() -> bool:
        assert next(numbers) == 5
        return True

    assert eventually(five_is_reached)


def test_eventually_reports_what_it_waited_for_and_what_it_saw() -> None:
    message = r"(?s)not true after 0\.\d+ s and \d+ attempts: .*1 > 2.*returned False"
    with pytest.raises(NeverHappened, match=message):
        eventually(lambda: 1 > 2, within=0.03)


def test_eventually_names_the_last_refusal() -> None:
    def the_lock_is_free() -> bool:
        raise ConnectionError("still down")

    with pytest.raises(NeverHappened, match=r"(?s): the lock is free\n.*raised ConnectionError: still down"):
        eventually(the_lock_is_free, within=0.03, tolerate=(ConnectionError,))
    with pytest.raises(ConnectionError):
        eventually(the_lock_is_free, within=60)


async def test_eventually_in_a_loop_takes_coroutines_and_plain_functions() -> None:
    attempts = iter([0, 0, 3])

    async def a_number() -> int:
        return next(attempts)

    assert await aeventually(a_number) == 3
    assert await aeventually(lambda: "plain") == "plain"
    with pytest.raises(NeverHappened, match="a wish"):
        await aeventually(lambda: False, within=0.03, what="a wish")


# -- small tools -----------------------------------------------------------------------------------


class InThread:
    """A call that runs in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.value: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def arrives(self, within: float) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.value = self._call()
