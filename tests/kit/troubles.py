"""Every trouble that people have with Redis, made for real, and the sentence that names it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Final, NamedTuple

import redis

from tests.kit.ports import HOST, Port
from tests.kit.resp import Framer, words
from tests.kit.server import Server, installed_redis
from tests.kit.waiting import eventually

Answer = Callable[[bytes], bytes]


class Case(NamedTuple):
    """A trouble. The sentence is "Redis at <url> <reason>. <cure>"."""

    make: Callable[[Path], AbstractContextManager[str]]
    """Makes it; gives the URL."""
    reason: str
    """`{command}` stands for the first command that fennelq gives."""
    cure: str
    lasting: bool = False
    """Whether waiting cannot help."""
    reads: bool = False
    """Whether commands that only read are not affected."""

    def sentence(self, shown: str, command: str = "") -> str:
        return f"Redis at {shown} {self.reason.replace('{command}', command)}. {self.cure}"


# Servers that are something else


@contextmanager
def listening(handle: Callable[[socket.socket], None]) -> Generator[int]:
    """The port of a server that treats every connection like this."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            try:
                handle(self.request)
            except OSError:
                pass  # the client has seen enough

    class Threads(ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True
        request_queue_size = 50

    with Threads((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def replying(answer: Answer) -> Generator[str]:
    """The URL of what looks like a Redis, and answers each command like this."""

    def handle(sock: socket.socket) -> None:
        framer = Framer()
        while data := sock.recv(65536):
            for request in framer.feed(data):
                sock.sendall(answer(words(request)[0].upper()))

    with listening(handle) as port:
        yield f"redis://{HOST}:{port}"


def http(sock: socket.socket) -> None:
    sock.recv(100)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def smtp(sock: socket.socket) -> None:
    sock.sendall(b"220 mail.example ESMTP\r\n")
    sock.recv(100)


def silent(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


def closing(sock: socket.socket) -> None:
    sock.recv(65536)


def certificate(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1, signed by itself, in one file."""
    path = folder / "tls.pem"
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run([*made, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
    path.write_text(key.read_text() + cert.read_text())
    return path


@contextmanager
def tls_port(folder: Path) -> Generator[int]:
    """A port where TLS is spoken: by Redis, where one is installed."""
    pem = certificate(folder)
    if installed_redis():
        port = Port()
        files = {"tls-cert-file": str(pem), "tls-key-file": str(pem), "tls-ca-cert-file": str(pem)}
        with Server("redis", config={"tls-port": str(port.number), "tls-auth-clients": "no", **files}):
            yield port.number
        port.release()
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with listening(lambda sock: silent(context.wrap_socket(sock, server_side=True))) as number:
        yield number


# The troubles


@contextmanager
def down(_: Path) -> Generator[str]:
    port = Port()
    yield f"redis://me:s3cret@{HOST}:{port.number}/0"
    port.release()


@contextmanager
def no_socket(folder: Path) -> Generator[str]:
    yield f"unix://{folder}/none.sock"


@contextmanager
def unknown_host(_: Path) -> Generator[str]:
    yield "redis://no-such-host.invalid:6379"


def served_by(
    handle: Callable[[socket.socket], None], scheme: str = "redis"
) -> Callable[[Path], AbstractContextManager[str]]:
    @contextmanager
    def make(_: Path) -> Generator[str]:
        with listening(handle) as port:
            yield f"{scheme}://{HOST}:{port}"

    return make


@contextmanager
def plain_url_of_tls_port(folder: Path) -> Generator[str]:
    with tls_port(folder) as port:
        yield f"redis://{HOST}:{port}"


@contextmanager
def untrusted(folder: Path) -> Generator[str]:
    with tls_port(folder) as port:
        yield f"rediss://{HOST}:{port}"


@contextmanager
def tls_url_of_plain_port(_: Path) -> Generator[str]:
    with Server() as server:
        yield f"rediss://{HOST}:{server.port}"


@contextmanager
def no_password(_: Path) -> Generator[str]:
    with Server(password="open sesame") as server:
        yield f"redis://{HOST}:{server.port}/0"


@contextmanager
def wrong_password(_: Path) -> Generator[str]:
    with Server(password="open sesame") as server:
        yield f"redis://:s3cret@{HOST}:{server.port}/0"


@contextmanager
def needless_password(_: Path) -> Generator[str]:
    with Server() as server:
        yield f"redis://:s3cret@{HOST}:{server.port}/0"


@contextmanager
def few_rights(_: Path) -> Generator[str]:
    with Server() as server, server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "few", "on", ">s3cret", "+ping")
        yield f"redis://few:s3cret@{HOST}:{server.port}/0"


@contextmanager
def no_such_database(_: Path) -> Generator[str]:
    with Server(config={"databases": "1"}) as server:
        yield f"redis://{HOST}:{server.port}/5"


@contextmanager
def too_many_clients(_: Path) -> Generator[str]:
    with Server() as server, server.client() as held:
        held.config_set("maxclients", "1")
        yield f"redis://{HOST}:{server.port}/0"


@contextmanager
def out_of_memory(_: Path) -> Generator[str]:
    with Server(maxmemory="1") as server:
        yield server.url


@contextmanager
def full_disk(_: Path) -> Generator[str]:
    with Server(config={"save": "3600 1"}) as server, server.client() as admin:
        (server.directory / "dump.rdb").mkdir()  # renaming a file to it fails, for root as well
        admin.bgsave()
        eventually(lambda: refuses_writes(admin), within=20, what="Redis refuses to write")
        yield server.url


def refuses_writes(admin: redis.Redis) -> bool:
    try:
        admin.set("ballast", "x", px=1)
    except redis.ResponseError:
        return True
    return False


@contextmanager
def replica(_: Path) -> Generator[str]:
    with ExitStack() as stack:
        nowhere = Port()
        stack.callback(nowhere.release)
        server = stack.enter_context(Server())
        with server.client() as admin:
            admin.replicaof(HOST, nowhere.number)
        yield server.url


@contextmanager
def loading(_: Path) -> Generator[str]:
    with replying(lambda _: b"-LOADING Redis is loading the dataset in memory\r\n") as url:
        yield url


@contextmanager
def too_old(_: Path) -> Generator[str]:
    info = b"# Server\r\nredis_version:6.2.14\r\n"
    answers = {
        b"INFO": b"$%d\r\n%s\r\n" % (len(info), info),
        b"EVALSHA": b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
        b"EVAL": b"-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n",
        b"SMEMBERS": b"*0\r\n",
        b"SUBSCRIBE": b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
    }
    with replying(lambda command: answers.get(command, b":1\r\n")) as url:
        yield url


@contextmanager
def sentinel(_: Path) -> Generator[str]:
    with replying(lambda command: b"-ERR unknown command '%s'\r\n" % command.lower()) as url:
        yield url


_URL: Final = "redis_url (FENNELQ_REDIS_URL)"
_ELSEWHERE: Final = f"Correct the host and the port in {_URL}."

CASES: Final[dict[str, Case]] = {
    "down": Case(
        down,
        "cannot be reached: connection refused",
        f"Is it running? Start it, or correct {_URL}.",
    ),
    "no socket": Case(
        no_socket,
        "cannot be reached: the socket file does not exist",
        f"Start Redis with `unixsocket` set to this path, or correct {_URL}.",
    ),
    "unknown host": Case(
        unknown_host,
        "cannot be reached: its host name cannot be resolved",
        f"Check the host in {_URL}, and the DNS of this machine.",
    ),
    "silent": Case(
        served_by(silent),
        "cannot be reached: it did not reply in time",
        f"Check the host and the port in {_URL}, the firewall, and whether the server is overloaded.",
    ),
    "closing": Case(
        served_by(closing),
        "cannot be reached: the connection was closed before the first reply",
        f"If a proxy listens there, check the server behind it, or correct {_URL}.",
    ),
    "http": Case(
        served_by(http),
        "cannot be reached: an HTTP server listens there, not Redis",
        _ELSEWHERE,
        lasting=True,
    ),
    "smtp": Case(
        served_by(smtp),
        "cannot be reached: another kind of server listens there, "
        "its reply begins with '220 mail.example ESMTP'",
        _ELSEWHERE,
        lasting=True,
    ),
    "https url of an http server": Case(
        served_by(http, "rediss"),
        "cannot be reached: the server there does not use TLS",
        f"Change rediss:// to redis:// in {_URL}, or correct its port.",
        lasting=True,
    ),
    "plain url of a tls port": Case(
        plain_url_of_tls_port,
        "cannot be reached: the server there expects TLS",
        f"Change redis:// to rediss:// in {_URL}.",
        lasting=True,
    ),
    "tls url of a plain port": Case(
        tls_url_of_plain_port,
        "cannot be reached: the server there does not use TLS",
        f"Change rediss:// to redis:// in {_URL}, or correct its port.",
        lasting=True,
    ),
    "untrusted": Case(
        untrusted,
        "cannot be reached: its TLS certificate cannot be verified (self-signed certificate)",
        f"Add ?ssl_ca_certs=/path/ca.pem to {_URL}, and use a host name that the certificate contains.",
        lasting=True,
    ),
    "no password": Case(
        no_password,
        "requires a password, and redis_url contains none (NOAUTH)",
        f"Write it into {_URL}: redis://user:password@host:port/0.",
        lasting=True,
    ),
    "wrong password": Case(
        wrong_password,
        "does not accept the user name or the password of redis_url (WRONGPASS)",
        f"Correct them in {_URL}, with every special character percent-escaped.",
        lasting=True,
    ),
    "needless password": Case(
        needless_password,
        "has no password, and redis_url contains one",
        f"Remove it from {_URL}, or set a password on the server (`requirepass`).",
        lasting=True,
    ),
    "few rights": Case(
        few_rights,
        "does not permit a command or a key that fennelq needs "
        "(NOPERM User few has no permissions to run the '{command}' command)",
        "Grant it to the user of redis_url with ACL SETUSER.",
        lasting=True,
    ),
    "no such database": Case(
        no_such_database,
        "has no database with the number in redis_url",
        f"Use a smaller number in {_URL}, or raise `databases` on the server.",
        lasting=True,
    ),
    "too many clients": Case(
        too_many_clients,
        "has no room for another client (max number of clients reached)",
        "Close connections that are not needed, or raise `maxclients` on the server.",
    ),
    "loading": Case(
        loading,
        "is loading its data from disk (LOADING)",
        "It replies when it has finished: wait, and watch its log.",
    ),
    "out of memory": Case(
        out_of_memory,
        "has no memory left for writes (OOM)",
        "Raise `maxmemory` on the server, or delete data that is not needed.",
        reads=True,
    ),
    "full disk": Case(
        full_disk,
        "cannot save its data to disk and refuses writes (MISCONF)",
        "Check the free space and the permissions of its data directory; its log names the error.",
        reads=True,
    ),
    "replica": Case(
        replica,
        "is a replica and refuses writes (READONLY)",
        f"If no failover is under way, correct {_URL}: it must lead to the primary.",
        reads=True,
    ),
    "too old": Case(
        too_old,
        "is too old for fennelq",
        "Use Redis 7.0, Valkey 7.2 or a later version.",
        lasting=True,
    ),
    "sentinel": Case(
        sentinel,
        "does not know a command that fennelq needs (ERR unknown command '{command}')",
        "Use Redis 7.0, Valkey 7.2 or a later version. "
        "A Sentinel, or a server with renamed commands, cannot be used.",
        lasting=True,
    ),
}
