"""Errors travel: between processes, with all they know."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from fennelq import errors
from fennelq.errors import FennelqError
from fennelq.model.pause import QueuePause

KNOWN: list[FennelqError] = [
    errors.ConfigurationError("no such setting"),
    errors.UnknownTask("shop:welcom", ["shop:welcome"]),
    errors.UnknownQueue("mial", ["mail"]),
    errors.UnknownSchedule("nightly", ["nightly2"]),
    errors.UnknownExecutor("web.1", ["web.2"]),
    errors.ExecutorUnavailable("web.1", "has ended: SIGKILL"),
    errors.HistoryRefused("the history has version 7 of its tables"),
    errors.HistoryUnavailable("the disk is full"),
    errors.UnknownLimit("acount", "mail", ["account"]),
    errors.UnreadableSchedule("nightly", "version 9"),
    errors.InvalidArguments("shop:welcome", "is not a number", "n"),
    errors.UnknownArgument("shop:welcome", "the task has no such parameter", "n"),
    errors.InvalidJobId("mail"),
    errors.InvalidFilter("unknown filter word 'taks'"),
    errors.UnknownOperation("3f9a21c0"),
    errors.OperationBusy("3f9a21c0", "anna@web-1 17 ab12cd"),
    errors.UsageError("app.enqueue takes a list of jobs"),
    errors.PayloadTooLarge("the arguments of shop:welcome", 2, 1),
    errors.ReplayRefused("mail:7", 3, 2, errors.InvalidArguments("shop:welcome", "is not a number", "n")),
    errors.ImportRefused([(3, errors.UnknownQueue("mial", ["mail"]))], 4),
    errors.DuplicateJob("mail:7", "shop:welcome"),
    errors.BrokerUnavailable("no answer within 5 s"),
    errors.BrokerUnavailable("has no room", url="redis://h", cure="Make room.", retriable=False),
    errors.QueuePaused(
        "mail", QueuePause.from_wire(b"e\nanna@web-1\n1700000000000\nthe mail server is down")
    ),
    errors.QueueFull("mail", 10, 9),
    errors.EnqueueFailed({1: ValueError("no")}, ["handle"]),
    errors.ResultTimeout("mail:7", 1.5),
    errors.ResultTimeout("mail:7", 1.5, "no worker runs"),
    errors.TaskFailed("mail:7", "shop.CardRefused", "no money", "Traceback …", 3),
    errors.JobCancelled("mail:7", "purged"),
    errors.JobExpired("mail:7"),
    errors.ResultExpired("mail:7"),
]


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_in_another_process(error: FennelqError) -> None:
    error.add_note("(element 3 of map)")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert _facts(other) == _facts(error)


def _facts(error: FennelqError) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(error).items()}


def test_none_is_forgotten_here() -> None:
    kinds = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FennelqError)
    }
    assert kinds - {type(error) for error in KNOWN} == {FennelqError, errors.JobError}


def test_an_outage_can_concern_other_jobs() -> None:
    error = errors.BrokerUnavailable("is down", url="redis://h", cure="Start it.", retriable=False)
    error.__cause__ = OSError()
    jobs: list[Any] = ["job"]
    other = error.concerning(jobs)
    assert str(other) == "Redis at redis://h is down. Start it."
    assert (other.jobs, other.retriable, other.__cause__) == (jobs, False, error.__cause__)
