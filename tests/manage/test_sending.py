"""Calls that arrive as JSON: the options that they can give follow from the table of options."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from fennelq.manage.sending import GivenOptions, WrongCall, read_call
from fennelq.model.options import OPTIONS


def test_a_caller_can_give_every_option_but_those_that_hold_code_of_a_task() -> None:
    assert set(OPTIONS) - set(get_type_hints(GivenOptions)) == {
        "retry",
        "concurrency",
        "rate_limit",
        "fair_key",
    }


@pytest.mark.parametrize(
    ("option", "least"), [("retries", 0), ("max_deliveries", 1), ("delay", 0), ("timeout", 0)]
)
def test_a_number_below_the_bound_of_its_option_is_refused_with_its_place(option: str, least: int) -> None:
    call: dict[str, Any] = {"task": "shop:welcome", "options": {option: least}}
    assert read_call(call) == call
    call["options"][option] = least - 1
    with pytest.raises(WrongCall) as wrong:
        read_call(call)
    assert [fault.pointer for fault in wrong.value.faults] == [f"/options/{option}"]
    assert f"greater than or equal to {least}" in wrong.value.faults[0].detail
