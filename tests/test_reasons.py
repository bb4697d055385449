"""Why a job has not ended: asked for within a bound."""

from __future__ import annotations

import pytest

from fennelq.waiting import reasons


@pytest.mark.parametrize(("timeout", "longest"), [(0.01, 0.05), (2, 0.2), (3600, 0.5)])
def test_looking_for_the_reason_does_not_make_a_timeout_much_longer(timeout: float, longest: float) -> None:
    assert reasons.within(timeout) == longest
