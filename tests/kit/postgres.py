"""A PostgreSQL server for tests: its own process, its own directory, a unix socket, and no network."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.kit.waiting import eventually

USER = "fennelq"
_OTHER_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root: then it runs as one of these."""
_DEBIAN = Path("/usr/lib/postgresql")


@cache
def binaries() -> Path | None:
    """The directory of `initdb` and `postgres`."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    versions = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


@cache
def why_not() -> str | None:
    """Why no server can be started here; None when one can."""
    if binaries() is None:
        return "no PostgreSQL here: neither on PATH nor in /usr/lib/postgresql (on Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and _user() is None:
        return f"PostgreSQL does not run as root, and there is no user {' or '.join(_OTHER_USERS)}"
    return None


def _user() -> pwd.struct_passwd | None:
    for name in _OTHER_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class Postgres:
    """A server. Each test has a schema of its own."""

    def __init__(self) -> None:
        # Short, because the path of a socket may have 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="fq-pg-", dir="/tmp"))
        self._as: dict[str, Any] = {}
        user = _user() if os.geteuid() == 0 else None
        if user is not None:
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0
        words = [
            "initdb",
            "-D",
            f"{self.directory}/data",
            "-U",
            USER,
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        self._run(*words, "--locale", "C")
        self.start()

    def _run(self, program: str, *words: str) -> None:
        with (self.directory / "log").open("ab") as log:
            command = [f"{binaries()}/{program}", *words]
            code = subprocess.call(
                command, stdout=log, stderr=log, cwd=self.directory, env=_environment(), **self._as
            )
        assert code == 0, (self.directory / "log").read_text()

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        words = [
            "-D",
            f"{self.directory}/data",
            "-k",
            str(self.directory),
            "-h",
            "",
            "-F",
            "-c",
            "max_connections=40",
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen[bytes](
                [f"{binaries()}/postgres", *words],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_environment(),
                **self._as,
            )
        eventually(self._accepts_connections, within=30)

    def _accepts_connections(self) -> bool:
        import psycopg

        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.directory / "log").read_text())
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            # Its children notice the end of their parent, and leave too. SIGQUIT does not wait for clients.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new_url(self) -> str:
        """The URL of a new, empty schema."""
        self._schemas += 1
        schema = f"s{os.getpid()}_{self._schemas}"
        self.execute(f"CREATE SCHEMA {schema}")
        return f"{self._url}&options={quote(f'-csearch_path={schema}')}"

    @property
    def _url(self) -> str:
        return f"postgresql:///postgres?host={quote(str(self.directory), safe='')}&user={USER}"

    def execute(self, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
