"""Tests an app against a real server: `async with testing(app) as t`.

block      testing(app): points an app to a server for tests, and back
harness    what a test may do: run the jobs, let time pass, look at what was sent, let an executor die
running    executors in the loop of a test
wiring     the brokers of an app under test; recording: what they note; clock: the time that their scripts see
found      looks into Redis; expecting, sent, summary: what a test compares
server     the embedded server of a test session
"""

from __future__ import annotations

from fennelq.testing.block import testing
from fennelq.testing.harness import BlockingTesting, TestedApp, Testing
from fennelq.testing.sent import Expected, SentJob
from fennelq.testing.server import SessionServer, session_server
from fennelq.testing.summary import FailedTry, Summary

__all__ = [
    "BlockingTesting",
    "Expected",
    "FailedTry",
    "SentJob",
    "SessionServer",
    "Summary",
    "TestedApp",
    "Testing",
    "session_server",
    "testing",
]
