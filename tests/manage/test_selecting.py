"""Two deaths are of one kind, whichever release has written their entries."""

from __future__ import annotations

import pytest

from fennelq.broker.verbs.dead import DeadJob
from fennelq.manage.dead.selecting import Kinds

HERE, THERE = "0a1b2c3d", "4e5f6071"


def died(given: str, error_type: str = "ValueError") -> DeadJob:
    return DeadJob("mail", "1-1", "1", "shop:welcome", error_type, "no such user", "failed", given)


@pytest.mark.parametrize(
    ("first", "again", "alike"),
    [
        (died(HERE), died(HERE), True),
        (died(HERE), died(THERE), False),
        (died(HERE), died(""), True),
        (died(HERE), died("", "KeyError"), False),
        (died(""), died(HERE), True),
        (died(""), died(HERE, "KeyError"), False),
        (died(""), died(""), True),
        (died(""), died("", "KeyError"), False),
    ],
)
def test_a_death_is_of_a_kind_that_was_seen(first: DeadJob, again: DeadJob, alike: bool) -> None:
    kinds = Kinds()
    kinds.add([died("ffffffff", "TypeError"), first])
    assert kinds.has(again) is alike
