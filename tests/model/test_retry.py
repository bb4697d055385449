"""When a failed job runs again, and whether."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fennelq.errors import ConfigurationError
from fennelq.model.retry import RetryPolicy, allows, policy_from_wire, policy_to_wire, wait_after

MONTH = 30 * 86400.0
tries = st.integers(min_value=1, max_value=1 << 63)
amounts = st.floats(min_value=0, max_value=1e12)
policies = st.one_of(
    st.builds(
        RetryPolicy.exponential,
        st.integers(0, 99),
        base=amounts,
        factor=amounts,
        cap=amounts,
        jitter=st.booleans(),
    ),
    st.builds(RetryPolicy.linear, st.integers(0, 99), step=amounts, cap=amounts, jitter=st.booleans()),
    st.builds(RetryPolicy.fixed, st.integers(0, 99), delay=amounts, jitter=st.booleans()),
    st.builds(RetryPolicy.explicit, st.lists(amounts, max_size=8), jitter=st.booleans()),
)


def waits(policy: RetryPolicy, count: int = 5) -> list[float]:
    """The waits after the first failed tries, with the greatest jitter."""
    return [wait_after(policy, n, lambda: 1.0) for n in range(1, count + 1)]


# Curves


def test_by_default_three_retries_double_from_one_second_to_ten_minutes_with_full_jitter() -> None:
    policy = RetryPolicy()
    assert policy.retries == 3
    assert policy.jitter
    assert waits(policy, 12) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    assert policy == RetryPolicy.exponential()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy.exponential(base=3, factor=10, cap=4000), [3, 30, 300, 3000, 4000]),
        (RetryPolicy.exponential(base=8, factor=0.5), [8, 4, 2, 1, 0.5]),
        (RetryPolicy.exponential(base=0), [0, 0, 0, 0, 0]),
        (RetryPolicy.exponential(base=2, factor=1), [2, 2, 2, 2, 2]),
        (RetryPolicy.exponential(base=9, cap=5), [5, 5, 5, 5, 5]),
        (RetryPolicy.linear(step=10, cap=35), [10, 20, 30, 35, 35]),
        (RetryPolicy.fixed(delay=7), [7, 7, 7, 7, 7]),
        (RetryPolicy.fixed(delay=0), [0, 0, 0, 0, 0]),
        (RetryPolicy.explicit([1, 60, 5]), [1, 60, 5, 5, 5]),
        (RetryPolicy.explicit([]), [0, 0, 0, 0, 0]),
        (RetryPolicy.calling(lambda n: n**2), [1, 4, 9, 16, 25]),
    ],
)
def test_each_curve(policy: RetryPolicy, expected: list[float]) -> None:
    assert waits(policy) == expected


def test_an_explicit_policy_retries_once_per_delay() -> None:
    assert RetryPolicy.explicit([1, 2, 3]).retries == 3
    assert RetryPolicy.explicit([]).retries == 0


@given(policy=policies, n=tries, chance=st.floats(0, 1))
def test_a_wait_is_never_negative_nor_longer_than_a_month_nor_an_overflow(
    policy: RetryPolicy, n: int, chance: float
) -> None:
    assert 0 <= wait_after(policy, n, lambda: chance) <= MONTH


@given(policy=policies, n=st.integers(1, 2000), chance=st.floats(0, 1))
def test_jitter_spreads_a_wait_from_nothing_to_the_whole_of_it(
    policy: RetryPolicy, n: int, chance: float
) -> None:
    whole = wait_after(policy, n, lambda: 1.0)
    expected = whole * chance if policy.jitter else whole
    assert wait_after(policy, n, lambda: chance) == expected


def test_jitter_is_drawn_anew_each_time() -> None:
    policy = RetryPolicy.exponential(base=100)
    drawn = {wait_after(policy, 1) for _ in range(20)}
    assert len(drawn) == 20
    assert max(drawn) <= 100


@pytest.mark.parametrize(("answer", "expected"), [(-5, 0), (math.inf, MONTH), (1e300, MONTH), (True, 1)])
def test_a_curve_of_ones_own_is_kept_within_bounds(answer: float, expected: float) -> None:
    assert wait_after(RetryPolicy.calling(lambda _: answer), 1) == expected


def test_a_curve_that_answers_nan_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(ValueError, match="nan after try 2"):
        wait_after(RetryPolicy.calling(lambda _: math.nan), 2)


# Whether


@given(retries=st.integers(0, 20), n=st.integers(1, 30))
def test_a_job_runs_again_as_often_as_it_may(retries: int, n: int) -> None:
    assert allows(RetryPolicy(retries), n, ValueError()) == (n <= retries)


def test_what_is_retried_goes_by_isinstance() -> None:
    only = RetryPolicy().only_on(OSError, KeyError)
    assert allows(only, 1, ConnectionResetError())
    assert allows(only, 1, KeyError())
    assert not allows(only, 1, ValueError())
    assert not allows(RetryPolicy().only_on(), 1, ValueError())


def test_giving_up_on_an_exception_counts_more_than_retrying_it() -> None:
    policy = RetryPolicy().only_on(OSError).giving_up_on(FileNotFoundError)
    assert allows(policy, 1, PermissionError())
    assert not allows(policy, 1, FileNotFoundError())


@pytest.mark.parametrize(
    "error", [SystemExit(), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
)
def test_a_base_exception_is_retried_only_when_it_is_named(error: BaseException) -> None:
    assert not allows(RetryPolicy(), 1, error)
    assert allows(RetryPolicy().only_on(type(error)), 1, error)


def test_a_policy_is_rebound_and_never_changed() -> None:
    policy = RetryPolicy.fixed(5, delay=1)
    policy.only_on(OSError)
    policy.giving_up_on(OSError)
    assert policy == RetryPolicy.fixed(5, delay=1)
    with pytest.raises(AttributeError):
        policy.retries = 9  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# What is refused


@pytest.mark.parametrize(
    "build",
    [
        lambda: RetryPolicy(-1),
        lambda: RetryPolicy(2.5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy.exponential(-1),
        lambda: RetryPolicy.exponential(base=-1),
        lambda: RetryPolicy.exponential(cap=math.inf),
        lambda: RetryPolicy.linear(step=math.nan),
        lambda: RetryPolicy.fixed(delay=-0.1),
        lambda: RetryPolicy.explicit([1, -1]),
        lambda: RetryPolicy.fixed(delay="10"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy.explicit(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy.explicit(["a"]),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy.calling(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy().only_on("ValueError"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy().giving_up_on([OSError]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: RetryPolicy(3, "quadratic", (1.0,)),
        lambda: RetryPolicy(3, "exponential", (1.0,)),
        lambda: RetryPolicy(3, "fixed", ()),
        lambda: RetryPolicy(3, "calling", ()),
        lambda: RetryPolicy(3, "fixed", (1.0,), curve=float),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(build: Callable[[], RetryPolicy]) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"retries must be|numbers are seconds|only_on and giving_up_on take|takes a|is built by",
    ):
        build()


# Over the wire


@settings(max_examples=200)
@given(policy=policies, own=policies)
def test_a_policy_arrives_as_it_was_sent(policy: RetryPolicy, own: RetryPolicy) -> None:
    wire: Any = orjson.loads(orjson.dumps(policy_to_wire(policy)))
    assert policy_from_wire(own, wire) == policy


def test_a_number_of_retries_alone_leaves_the_tasks_policy_as_it_is() -> None:
    own = RetryPolicy.linear(9, step=5).only_on(OSError)
    assert policy_from_wire(own, 2) == RetryPolicy.linear(2, step=5).only_on(OSError)


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy.calling(lambda n: n),
        RetryPolicy().only_on(OSError),
        RetryPolicy().giving_up_on(OSError),
    ],
)
def test_code_is_not_sent(policy: RetryPolicy) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be sent with a call: declare it on the task"):
        policy_to_wire(policy)
