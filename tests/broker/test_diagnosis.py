"""Trouble with Redis: the same sentence, with URL, cause and cure, from the asynchronous and the synchronous API."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fennelq import App, BrokerUnavailable
from fennelq.broker.connection import address_of, masked
from fennelq.broker.diagnosis import diagnose, outdated
from fennelq.broker.patience import Patience
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.sync.sync import BlockingResult
from tests.kit.apps import LocalApp
from tests.kit.troubles import CASES, Case

FOREVER = 60.0
"""Seconds: what cannot pass is raised long before."""
URL = "redis://shop:s3cret@127.0.0.1:6379/0"
SHOWN = "Redis at redis://shop:***@127.0.0.1:6379/0 "
ADDRESS = address_of(URL)


def app_at(url: str, case: Case) -> App:
    return LocalApp("shop", redis_url=url, enqueue_timeout=FOREVER if case.lasting else 1.0)


async def caught(call: Any) -> BrokerUnavailable:
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as raised:
        await call
    assert time.monotonic() - began < FOREVER / 2
    return raised.value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_delay_names_the_url_the_cause_and_the_cure(case: Case, tmp_path: Path) -> None:
    with case.make(tmp_path) as url:
        app = app_at(url, case)

        @app.task
        async def welcome(n: int) -> int:
            return n

        sentence = case.sentence(masked(url), "sadd")
        one = (welcome.delay(1), asyncio.to_thread(welcome.sync.delay, 1))
        for error in await asyncio.gather(*map(caught, one)):
            assert str(error) == sentence
            assert (error.url, error.cure, error.retriable) == (masked(url), case.cure, not case.lasting)
            assert [job.task for job in error.jobs] == [welcome.name]
            assert "s3cret" not in repr(error)
        many = (app.enqueue([welcome.job(1), welcome.job(2)]), asyncio.to_thread(welcome.sync.map, [1, 2]))
        for error in await asyncio.gather(*map(caught, many)):
            assert (str(error), len(error.jobs), error.retriable) == (sentence, 2, not case.lasting)
        await app.close()
        app.blocking.close()


CONNECTING = {name: case for name, case in CASES.items() if "{command}" not in case.reason and not case.reads}


@pytest.mark.parametrize("case", CONNECTING.values(), ids=CONNECTING)
async def test_so_does_waiting_for_a_result(case: Case, tmp_path: Path) -> None:
    with case.make(tmp_path) as url:
        app = app_at(url, case)
        blocking = BlockingResult[int](app, "mail:7", None)
        for call in (app.result("mail:7").get(), asyncio.to_thread(blocking.get)):
            assert str(await caught(call)) == case.sentence(masked(url))
        await app.close()
        app.blocking.close()


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.lasting], ids=lambda case: case.reason[:40]
)
def test_the_guide_names_every_trouble_that_waiting_does_not_help_against(case: Case) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/deploying.md").read_text("utf-8")
    begin = case.reason.partition(" (")[0].partition("'")[0]
    assert f"| {begin}" in page


# One by one, without a server


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            # What asyncio makes of a name with several addresses.
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 6379, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 6379)"
            ),
            "cannot be reached: connection refused. "
            "Is it running? Start it, or correct redis_url (FENNELQ_REDIS_URL).",
        ),
        (
            OSError(errno.EHOSTUNREACH, "No route to host"),
            "cannot be reached: no route to the host. "
            "Check the host in redis_url (FENNELQ_REDIS_URL), and the network of this machine.",
        ),
        (
            OSError(errno.EMFILE, "whatever"),
            "cannot be reached: Too many open files. "
            "Check redis_url (FENNELQ_REDIS_URL), and the log of the server.",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "cannot be reached: permission denied. "
            "A socket file needs write permission for this user (`unixsocketperm`).",
        ),
        (
            socket.gaierror(-3, "Temporary failure in name resolution"),
            "cannot be reached: its host name cannot be resolved. "
            "Check the host in redis_url (FENNELQ_REDIS_URL), and the DNS of this machine.",
        ),
        (
            LinkDown("[Errno 104] Connection reset by peer"),
            "cannot be reached: the connection was closed. Was it restarted? Its log has the reason.",
        ),
        (
            ReplyError("DENIED Redis is running in protected mode"),
            "accepts connections from its own machine only (DENIED, protected mode). "
            "Set a password on the server (`requirepass`) and in redis_url.",
        ),
        (
            ReplyError("MASTERDOWN Link with MASTER is down"),
            "is a replica that has lost its primary (MASTERDOWN). "
            "Check the primary; redis_url (FENNELQ_REDIS_URL) must lead to it.",
        ),
        (
            ReplyError("NOREPLICAS Not enough good replicas to write."),
            "has too few replicas connected and refuses writes (NOREPLICAS). "
            "Check the replicas, or lower `min-replicas-to-write` on the server.",
        ),
        (
            ReplyError("WRONGTYPE Operation against a key"),
            "has a key of a wrong type (WRONGTYPE Operation against a key). "
            "`fennelq queue list` and `fennelq info` name such a key of a queue: rename or delete it.",
        ),
        (
            ReplyError("WEIRD \x1b[2J"),
            "replied with an error (WEIRD \\x1b[2J). Look into the log of the server.",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_other_errors_are_explained_as_well(error: Exception, sentence: str) -> None:
    assert diagnose(ADDRESS, error).sentence == SHOWN + sentence


@pytest.mark.parametrize(
    ("version", "old"), [("6.2.14", True), ("7.0.15", False), ("10.1.0", False), ("unknown", False)]
)
def test_a_server_before_7_0_is_too_old(version: str, old: bool) -> None:
    problem = outdated(ADDRESS, {"redis_version": version})
    assert (problem is not None) is old
    if problem is not None:
        assert problem.sentence == (
            f"{SHOWN}is too old for fennelq. Use Redis 7.0, Valkey 7.2 or a later version."
        )
    assert outdated(ADDRESS, {}) is None


def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = 1000.0
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment)
    patience = Patience(10, ADDRESS)
    patience.pause_after(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    moment = 1010.0
    patience.pause_after(TimeoutError())
    with pytest.raises(BrokerUnavailable, match="connection refused"):
        patience.left()


async def test_a_private_server_that_is_gone_is_explained_otherwise(tmp_path: Path) -> None:
    app = LocalApp("shop", redis_url=f"embedded://{tmp_path / 'data'}")
    assert diagnose(app.address, FileNotFoundError(errno.ENOENT, "")).cure == (
        "It is the private server of this project: its server.log has the reason. Start this program again."
    )
