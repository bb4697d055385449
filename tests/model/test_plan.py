"""How a delivery is to be run: the app's defaults, below the task's options, below the call's."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennelq.model.options import Options
from fennelq.model.plan import Plan
from fennelq.model.retry import RetryPolicy, allows, wait_after


def plan_of(**declared: Any) -> Plan:
    return Plan.of(Options().with_(declared), retries=3, result_ttl=60, failure_ttl=90.5)


def sent(**options: Any) -> bytes:
    return Options().with_(options).to_wire()


def test_a_task_without_options_is_run_by_the_apps_defaults() -> None:
    assert plan_of() == Plan(RetryPolicy(3), None, 60_000, 90_500, {})


def test_a_tasks_options_count_more_than_the_app() -> None:
    plan = plan_of(retries=5, timeout=2, result_ttl=0, failure_ttl=1, headers={"a": "1"})
    assert plan == Plan(RetryPolicy(5), 2.0, 0, 1000, {"a": "1"})


def test_a_tasks_policy_is_its_own_and_a_number_beside_it_is_the_number_of_its_runs() -> None:
    assert plan_of(retry=RetryPolicy.fixed(7)).retry == RetryPolicy.fixed(7)
    assert plan_of(retry=RetryPolicy.fixed(7), retries=1).retry == RetryPolicy.fixed(7)


def test_a_call_without_options_is_run_by_the_tasks_plan() -> None:
    plan = plan_of(timeout=2)
    assert plan.overridden(b"") is plan


def test_a_calls_options_count_more_than_the_task() -> None:
    task = plan_of(retry=RetryPolicy.linear(9, step=5), timeout=2, headers={"a": "1", "b": "1"})
    call = task.overridden(sent(retries=1, timeout=None, result_ttl=1, failure_ttl=0, headers={"b": "2"}))
    assert call == Plan(RetryPolicy.linear(1, step=5), None, 1000, 0, {"a": "1", "b": "2"})
    assert task.overridden(sent(retry=RetryPolicy.fixed(2))).retry == RetryPolicy.fixed(2)


def test_the_options_of_one_call_do_not_change_another() -> None:
    task = plan_of(headers={"a": "1"})
    task.overridden(sent(timeout=5, headers={"b": "2"}))
    assert task == plan_of(headers={"a": "1"})


def test_options_of_a_later_version_are_passed_over() -> None:
    assert plan_of().overridden(b'{"t":5,"new":{"a":[1]}}').timeout == 5


@pytest.mark.parametrize(
    "wire",
    [
        b"x",
        b"\xff",
        b"[]",
        b"null",
        b'"r"',
        b'{"r":null}',
        b'{"r":true}',
        b'{"r":-1}',
        b'{"r":1.5}',
        b'{"r":"3"}',
        b'{"r":[]}',
        b'{"r":[3,"fixed",[1]]}',
        b'{"r":[3,"fixed",[],true]}',
        b'{"r":[3,"fixed",[-1],true]}',
        b'{"r":[3,"fixed",["1"],true]}',
        b'{"r":[3,"quadratic",[1],true]}',
        b'{"r":[3,"calling",[],true]}',
        b'{"t":0}',
        b'{"t":-1}',
        b'{"t":"5"}',
        b'{"t":1e300}',
        b'{"s":null}',
        b'{"s":-1}',
        b'{"f":[1]}',
        b'{"s":1e300}',
        b'{"h":[]}',
        b'{"h":{"a":1}}',
        b'{"h":null}',
    ],
)
def test_options_that_cannot_be_read_are_a_value_error(wire: bytes) -> None:
    with pytest.raises(ValueError, match="the options of the job cannot be read"):
        plan_of().overridden(wire)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("rtsfhx"), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300)
@given(
    st.binary(max_size=30)
    | st.dictionaries(st.sampled_from("rtsfhx"), anything, max_size=4).map(orjson.dumps)
)
def test_whatever_the_options_are_reading_them_gives_a_plan_that_can_be_run_or_a_value_error(
    wire: bytes,
) -> None:
    try:
        plan = plan_of(headers={"a": "1"}).overridden(wire)
    except ValueError:
        return
    assert wait_after(plan.retry, 1) >= 0
    assert allows(plan.retry, 1, ValueError()) == (plan.retry.retries >= 1)
    assert plan.timeout is None or plan.timeout > 0
    assert plan.result_ttl_ms >= 0
    assert plan.failure_ttl_ms >= 0
    assert all(isinstance(text, str) for pair in plan.headers.items() for text in pair)
