"""Executors of a version before the modes of keys, beside clients of this one.

They refuse to start a job whose key has a mode, because they would never free it. Jobs that they cancel or bury have
freed their keys as well, because the state decides that.
"""

from __future__ import annotations

import pytest

from tests.broker.before import Before
from tests.broker.desk import Desk
from tests.broker.test_duplicates import KEY, call, start
from tests.broker.test_stopping_before import ADDED

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

MODES = ("until_start", "until_done", "latest")


@pytest.fixture
def before(desk: Desk) -> Before:
    return Before(desk, "before_limits.json", ADDED)


@pytest.mark.parametrize("mode", MODES)
def test_it_hands_the_job_back_which_still_holds_its_key(desk: Desk, before: Before, mode: str) -> None:
    desk.enqueue(call("1", mode))
    assert before.fetch() == []
    assert (desk.record("1")["s"], desk.holder(KEY)) == ("L", "1")
    assert desk.enqueue(call("2", mode)) == [b"1"]
    (run,) = start(desk)
    assert (run.key, run.args) == ("1", b"[2]" if mode == "latest" else b"[1]")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["cancelled", "purged", "buried"])
def test_a_job_that_it_has_ended_has_freed_its_key(desk: Desk, before: Before, mode: str, end: str) -> None:
    # Without the gate of `latest`: its slot is given back by `mend`.
    desk.enqueue(call("1", mode, gates=""))
    if end == "cancelled":
        assert before.cancel("1") == [1]
    elif end == "purged":
        assert before.purge() == 1
    else:
        start(desk)
        assert before.recover(max_deliveries=1) == (0, 1)
    assert desk.enqueue(call("2", mode)) == [1]
    assert desk.holder(KEY) == "2"
