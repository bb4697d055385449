"""One table defines what an error means; a URL names the server, and never its password."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from fennelq.broker.trouble import (
    LinkDown,
    NoReply,
    ReplyError,
    Trouble,
    WrongServer,
    classify,
    refuses_to_publish,
)

ERRORS = {
    "NOGROUP No such key 's' or consumer group 'fq'": Trouble.GROUP,
    "READONLY You can't write against a read only replica. script: a2198149, on @user_script:1.": Trouble.ROLE,
    "NOSCRIPT No matching script. Please use EVAL.": Trouble.SCRIPT,
    "MISCONF Redis is configured to save RDB snapshots, but": Trouble.CAPACITY,
    "OOM command not allowed when used memory > 'maxmemory'.": Trouble.CAPACITY,
    "-OOM command not allowed when used memory > 'maxmemory'. script: 1f": Trouble.CAPACITY,
    "NOREPLICAS Not enough good replicas to write.": Trouble.CAPACITY,
    "BUSY Redis is busy running a script.": Trouble.CAPACITY,
    "ERR max number of clients reached": Trouble.CAPACITY,
    "READONLY You can't write against a read only replica.": Trouble.ROLE,
    "MASTERDOWN Link with MASTER is down": Trouble.ROLE,
    "LOADING Redis is loading the dataset in memory": Trouble.CONNECTION,
    "TRYAGAIN Multiple keys request during rehashing of slot": Trouble.CONNECTION,
    "CLUSTERDOWN The cluster is down": Trouble.CONNECTION,
    "NOAUTH Authentication required.": Trouble.FATAL,
    "WRONGPASS invalid username-password pair or user is disabled.": Trouble.FATAL,
    "NOPERM this user has no permissions to run the 'xadd' command": Trouble.FATAL,
    "DENIED Redis is running in protected mode": Trouble.FATAL,
    "WRONGTYPE Operation against a key holding the wrong kind of value": Trouble.BUG,
    "ERR unknown command 'XACKDEL'": Trouble.FATAL,
    "BUSYGROUP Consumer Group name already exists": Trouble.BUG,
    "ERR DB index is out of range": Trouble.FATAL,
    "ERR AUTH <password> called without any password configured for the default user.": Trouble.FATAL,
    "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'": Trouble.FATAL,
    "": Trouble.BUG,
}


@pytest.mark.parametrize(("text", "trouble"), ERRORS.items(), ids=[text[:20] for text in ERRORS])
def test_an_error_of_the_server_is_known_by_its_text(text: str, trouble: Trouble) -> None:
    assert classify(ReplyError(text)) is trouble


def test_a_refused_subscription_is_distinguished_from_trouble_with_every_command() -> None:
    refusals = {text.partition(" ")[0] for text in ERRORS if refuses_to_publish(ReplyError(text))}
    assert refusals >= {"NOPERM", "ERR", "OOM"}
    assert not refusals & {
        "NOAUTH",
        "WRONGPASS",
        "DENIED",
        "LOADING",
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
    }


@pytest.mark.parametrize(
    "error",
    [
        LinkDown("closed"),
        NoReply("closed"),
        ConnectionRefusedError(),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        OSError("no route to host"),
        EOFError(),
        ssl.SSLError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_connection_is_one_that_may_pass(error: BaseException) -> None:
    assert classify(error) is Trouble.CONNECTION
    assert classify(error).passes


@pytest.mark.parametrize(
    "error",
    [WrongServer(b"HTTP/1.1"), WrongServer(), ssl.SSLCertVerificationError(1, "self-signed certificate")],
    ids=lambda error: type(error).__name__,
)
def test_waiting_does_not_help_against_a_wrong_server(error: BaseException) -> None:
    if isinstance(error, ssl.SSLError):
        error.reason = "CERTIFICATE_VERIFY_FAILED"
    assert classify(error) is Trouble.FATAL


@pytest.mark.parametrize("error", [ValueError(), KeyError(), asyncio.CancelledError(), RuntimeError()])
def test_anything_else_is_a_bug(error: BaseException) -> None:
    assert classify(error) is Trouble.BUG


def test_waiting_helps_against_some_troubles_only() -> None:
    assert {trouble for trouble in Trouble if trouble.passes} == {
        Trouble.CONNECTION,
        Trouble.ROLE,
        Trouble.CAPACITY,
    }


def test_an_error_keeps_the_servers_text() -> None:
    error = ReplyError("NOGROUP No such key")
    assert (error.word, str(error)) == ("NOGROUP", "NOGROUP No such key")
