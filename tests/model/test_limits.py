"""Limits: what may be declared, which gates a call gets, and what each error advises."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq import App, AsyncTask, ConfigurationError, Depends, InvalidArguments, Limit, Rate, Task
from fennelq.model.gates import Gate, definition_of, gates_in
from fennelq.model.limits import Limits, interval_of, numbers_in_words, rate_of
from fennelq.worker.serving import check_limits
from tests.kit.apps import LocalApp
from tests.kit.jobs import as_sent


@pytest.fixture
def app() -> App:
    return LocalApp("shop", redis_url="redis://localhost:1")


def sync_task(app: App, name: str = "shop:sync", **options: Any) -> AsyncTask[[int | str | None], None]:
    """A task with the parameter `account_id`."""

    async def sync(account_id: int | str | None = None) -> None: ...

    return app.task(name=name, **options)(sync)


def gates_of(task: Task[..., Any], *args: Any, **kwargs: Any) -> str:
    """The gates of a call."""
    gates: str = as_sent(task.job(*args, **kwargs)).carried["gates"]
    return gates


def first_shard(call: Mapping[str, Any]) -> int:
    return 1


def refusal(declare: Callable[[], object]) -> str:
    """The text with which a declaration is refused."""
    with pytest.raises(ConfigurationError) as caught:
        declare()
    return str(caught.value)


def refused_call(task: Task[..., Any], *args: Any, **kwargs: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        task.job(*args, **kwargs)
    return caught.value


# Numbers


@pytest.mark.parametrize("number", [0, -1, 1.5, "3", None, True, 1_000_001])
def test_a_limit_is_a_whole_number_from_one_and_the_error_points_to_pausing(number: Any) -> None:
    text = refusal(lambda: Limit(number))
    assert text == f"Limit({number!r}): use a whole number from 1 to 1000000. To stop a queue, pause it"


@pytest.mark.parametrize(
    ("rate", "microseconds"),
    [
        ("10/s", 100_000),
        ("100/m", 600_000),
        ("5000/h", 720_000),
        ("1/10s", 10_000_000),
        ("0.5/s", 2_000_000),
        (" 3 / s ", 333_333),
        ("2/250ms", 125_000),
        ("1/366d", 366 * 86_400_000_000),
        ("1000000/s", 1),
        (None, 0),
    ],
)
def test_a_rate_is_read_and_shown_as_it_may_be_written(rate: str | None, microseconds: int) -> None:
    assert interval_of(rate) == microseconds
    assert interval_of(rate_of(microseconds)) == microseconds


def test_a_rate_is_shown_in_the_first_unit_that_gives_a_whole_number() -> None:
    shown = [
        rate_of(interval_of(rate)) for rate in ("10/s", "100/m", "5000/h", "1/10s", "3/s", "1/7s", "1/366d")
    ]
    assert shown == ["10/s", "100/m", "5000/h", "6/m", "3/s", "1/7s", "1/31622400s"]
    numbers = [
        numbers_in_words(*one) for one in (("c", "3"), ("r", "20000/1"), ("r", "20000/5"), ("r", "0/1"))
    ]
    assert numbers == ["3", "50/s", "50/s, burst 5", "no rate"]


@given(st.integers(1, 366 * 86_400_000_000))
def test_every_interval_can_be_shown_and_read_again(microseconds: int) -> None:
    assert interval_of(rate_of(microseconds)) == microseconds


@pytest.mark.parametrize(
    "rate", ["", "ten/s", "10", "10/", "10/sec", "-1/s", "10/0x", 10, 1.5, b"10/s", "10/s/s"]
)
def test_a_rate_that_cannot_be_read_is_refused_with_examples(rate: Any) -> None:
    text = refusal(lambda: Rate(rate))
    assert text == f'the rate {rate!r} cannot be read: write "10/s", "100/m", "5000/h" or "1/10s"'


@pytest.mark.parametrize("rate", ["0/s", "2000000/s", "1/367d", "1/0s"])
def test_a_rate_of_nothing_or_of_too_much_is_refused(rate: str) -> None:
    assert "is not between one in 366 days and a million per second. To stop a queue, pause it" in refusal(
        lambda: Rate(rate)
    )


@pytest.mark.parametrize("burst", [0, -1, 2.5, "5", True])
def test_a_burst_is_a_whole_number_from_one(burst: Any) -> None:
    assert (
        refusal(lambda: Rate("10/s", burst=burst)) == f"burst={burst!r}: use a whole number from 1 to 1000000"
    )


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a@b", "ü", "x" * 33, 5])
def test_the_name_of_a_limit_has_no_characters_that_its_gates_use(name: Any) -> None:
    for declare in (lambda: Limit(1, name=name), lambda: Rate("1/s", name=name)):
        assert refusal(declare) == f"limit name {name!r} is not valid: use 1-32 of A-Z a-z 0-9 _ . : -"


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("concurrency", 3, "concurrency must be a Limit, not an int object: write concurrency=Limit(3)"),
        (
            "concurrency",
            None,
            'concurrency must be a Limit, not None: write concurrency=Limit(1, key="account_id")',
        ),
        ("concurrency", Rate("1/s"), 'a Rate object: write concurrency=Limit(1, key="account_id")'),
        ("rate_limit", "10/s", "rate_limit must be a Rate, not a str object: write rate_limit=Rate('10/s')"),
        ("rate_limit", Limit(1), 'a Limit object: write rate_limit=Rate("10/s")'),
        (
            "fair_key",
            None,
            'fair_key must be the name of a parameter or a function: write fair_key="tenant_id"',
        ),
        ("fair_key", 5, "the key of fair_key must be the name of a parameter or a function, not 5"),
        ("fair_key", "tenant id", "the key of fair_key must be the name of a parameter or a function"),
    ],
)
def test_an_option_of_another_type_is_refused_with_the_code_to_write(
    app: App, option: str, value: Any, advice: str
) -> None:
    assert advice in refusal(lambda: sync_task(app, **{option: value}))


# Keys


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ({"concurrency": Limit(1, key="acount_id")}, "the key of its limit"),
        ({"rate_limit": Rate("1/s", "acount_id")}, "the key of its limit"),
        ({"fair_key": "acount_id"}, "its fair_key"),
    ],
)
def test_a_key_that_is_no_parameter_is_refused_where_the_task_is_declared(
    app: App, options: dict[str, Any], role: str
) -> None:
    assert refusal(lambda: sync_task(app, **options)) == (
        f"shop:sync has no parameter 'acount_id', which is {role}: did you mean 'account_id'? Name a "
        "parameter, or pass a function that gets the arguments by name"
    )
    assert "shop:sync" not in app.tasks


def test_a_key_is_not_a_parameter_that_the_worker_fills_nor_all_of_several_arguments(app: App) -> None:
    def tenant() -> int:
        return 1

    async def sync(*ids: int, tenant_id: int = Depends(tenant), **more: int) -> None: ...

    for key in ("ids", "more", "tenant_id"):
        declare = app.task(name="shop:sync", concurrency=Limit(1, key=key))
        assert f"shop:sync has no parameter {key!r}" in refusal(partial(declare, sync))


def test_a_key_may_be_an_argument_for_any_keyword(app: App) -> None:
    async def sync(*ids: int, **more: int) -> None: ...

    task = app.task(name="shop:sync", concurrency=Limit(1, key="account_id"))(sync)
    assert gates_of(task, 1, 2, account_id=17) == "c1:shop:sync/17"
    assert str(refused_call(task, 1)) == (
        "shop:sync, parameter 'account_id': its value is missing, and the key of its limit must be a string, a whole "
        "number or a UUID"
    )


async def computed(arguments: Mapping[str, Any]) -> int:
    return 1


@pytest.mark.parametrize("option", ["concurrency", "rate_limit", "fair_key"])
def test_a_key_is_not_computed_by_an_async_function(app: App, option: str) -> None:
    make: dict[str, Callable[[], Any]] = {
        "concurrency": lambda: Limit(1, computed),
        "rate_limit": lambda: Rate("1/s", computed),
        "fair_key": lambda: computed,
    }
    text = refusal(lambda: sync_task(app, **{option: make[option]()}))
    assert "is an async function, and is called without await: use a plain one" in text


@dataclass
class Order:
    id: int


class Plan(Enum):
    FREE = "free"
    NONE = None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (17, "17"),
        (-5, "-5"),
        (0, "0"),
        ("acme", "acme"),
        ("a.b_c-D9", "a.b_c-D9"),
        ("x" * 24, "x" * 24),
        (Plan.FREE, "free"),
    ],
)
def test_a_short_value_of_a_key_is_readable_in_redis(app: App, value: Any, shown: str) -> None:
    task = sync_task(app, concurrency=Limit(2, key=lambda call: value, name="account"))
    assert gates_of(task) == f"c2:account/{shown}"


@pytest.mark.parametrize(
    "value",
    ["x" * 25, "a b", "a/b", "a@b", "a+b", "ü", "\udcff", "\n", "x" * 100_000, 10**30, UUID(int=7)],
    ids=lambda value: repr(value)[:12],
)
def test_any_other_value_is_a_digest_of_twelve_characters(app: App, value: Any) -> None:
    task = sync_task(app, concurrency=Limit(1, key=lambda call: value, name="account"))
    gates = gates_of(task)
    assert re.fullmatch(r"c1:account/[a-z2-7]{12}", gates)
    assert gates_of(task) == gates
    (gate,) = gates_in(gates)
    assert (str(gate), definition_of(gate.id)) == (gates, "c:account")


def test_different_values_have_different_digests_and_equal_ones_the_same(app: App) -> None:
    task = sync_task(app, fair_key="account_id")
    assert len({gates_of(task, f"customer number {n}") for n in range(500)}) == 500


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "None"),
        ("", "empty"),
        (True, "a bool object"),
        (1.5, "a float object"),
        (Plan.NONE, "None"),
        ([1], "a list object"),
    ],
)
def test_a_value_that_cannot_be_a_key_is_refused_when_the_job_is_made(
    app: App, value: Any, problem: str
) -> None:
    task = sync_task(app, concurrency=Limit(1, key=lambda call: value))
    error = refused_call(task)
    assert str(error) == (
        f"shop:sync: the function that is the key of its limit returned {problem}, and the key of its limit must be a "
        "string, a whole number or a UUID"
    )
    assert error.parameter is None


def test_none_as_the_value_of_a_parameter_is_refused_by_its_name(app: App) -> None:
    task = sync_task(app, concurrency=Limit(1, key="account_id"))
    error = refused_call(task, None)
    assert error.parameter == "account_id"
    assert str(error) == (
        "shop:sync, parameter 'account_id': its value is None, and the key of its limit must be a string, a whole "
        "number or a UUID"
    )
    assert str(refused_call(task)) == str(error)
    assert str(refused_call(sync_task(app, name="shop:fair", fair_key="account_id"), None)) == (
        "shop:fair, parameter 'account_id': its value is None, and its fair_key must be a string, a whole number or a "
        "UUID"
    )


def test_the_default_of_a_parameter_is_a_value_of_the_key(app: App) -> None:
    async def sync(account_id: int = 3, *, region: str = "eu") -> None: ...

    task = app.task(name="shop:sync", concurrency=Limit(1, "account_id"), fair_key="region")(sync)
    assert gates_of(task) == "c1:shop:sync/3 t1:region/eu"
    assert gates_of(task, region="us", account_id=4) == "c1:shop:sync/4 t1:region/us"


def test_a_function_gets_the_arguments_by_name_with_defaults_as_the_caller_gave_them(app: App) -> None:
    seen: list[dict[str, Any]] = []

    def key(call: Mapping[str, Any]) -> int:
        seen.append(dict(call))
        order: Order = call["order"]
        return order.id

    async def charge(order: Order, *, currency: str = "EUR") -> None: ...

    task = app.task(name="shop:charge", rate_limit=Rate("10/s", key))(charge)
    assert gates_of(task, Order(5)) == "r100000/1:shop:charge/5"
    assert seen == [{"order": Order(5), "currency": "EUR"}]


def test_an_error_in_the_function_of_a_key_is_an_error_of_the_call_and_keeps_its_cause(app: App) -> None:
    def key(call: Mapping[str, Any]) -> int:
        raise KeyError("tenant")

    task = sync_task(app, fair_key=key)
    error = refused_call(task, 5)
    assert str(error) == "shop:sync: the function that is its fair_key raised KeyError: 'tenant'"
    assert isinstance(error.__cause__, KeyError)


def test_arguments_that_do_not_fit_are_refused_before_the_key_is_computed(app: App) -> None:
    called: list[object] = []

    def key(call: Mapping[str, Any]) -> int:
        called.append(call)
        return 1

    refused_call(sync_task(app, concurrency=Limit(1, key)), 1, 2)
    assert called == []


# Names and numbers that belong together


def test_a_limit_without_a_name_has_that_of_its_task_and_a_long_one_is_cut_and_has_a_digest(app: App) -> None:
    options: dict[str, Any] = {
        "concurrency": Limit(3),
        "rate_limit": Rate("10/s"),
        "fair_key": first_shard,
    }
    assert gates_of(sync_task(app, **options)) == "c3:shop:sync r100000/1:shop:sync t1:shop:sync/1"
    names = {
        gates_of(sync_task(app, f"shop.{'deep.' * 20}tasks{n}:send_all_the_letters", concurrency=Limit(1)))
        for n in range(3)
    }
    assert len(names) == 3
    assert all(re.fullmatch(r"c1:send_all_the_le-[a-z2-7]{8}", name) for name in names)


def test_a_function_in_a_function_has_a_name_that_gates_can_have(app: App) -> None:
    (gate,) = gates_in(gates_of(sync_task(app, "shop:test.<locals>.ünsync", concurrency=Limit(1))))
    assert re.fullmatch(r"nsync-[a-z2-7]{8}", gate.name)


def test_tasks_that_are_fair_by_the_same_parameter_share_their_turns(app: App) -> None:
    tasks = [sync_task(app, f"shop:sync{n}", fair_key="account_id") for n in range(2)]
    assert [gates_of(task, 7) for task in tasks] == ["t1:account_id/7"] * 2


def test_tasks_may_share_a_limit_by_its_name(app: App) -> None:
    one = sync_task(app, "shop:one", concurrency=Limit(2, name="account"))
    other = sync_task(app, "shop:other", concurrency=Limit(2, "account_id", name="account"))
    assert (gates_of(one), gates_of(other, 7)) == ("c2:account", "c2:account/7")


def test_one_name_with_two_numbers_is_refused_where_the_second_task_is_declared(app: App) -> None:
    sync_task(app, "shop:one", concurrency=Limit(2, name="account"), rate_limit=Rate("10/s", name="api"))
    assert refusal(lambda: sync_task(app, "shop:two", concurrency=Limit(3, name="account"))) == (
        "the limit 'account' has two numbers, 2 (shop:one) and 3 (shop:two): give both the same, or give one of them "
        "another name="
    )
    assert refusal(lambda: sync_task(app, "shop:two", rate_limit=Rate("10/s", burst=5, name="api"))) == (
        "the limit 'api' has two numbers, 10/s (shop:one) and 10/s, burst 5 (shop:two): give both the same, or give "
        "one of them another name="
    )
    assert list(app.tasks) == ["shop:one"]
    sync_task(app, "shop:two", rate_limit=Rate("600/m", name="api"), concurrency=Limit(9, name="api"))


def test_a_call_may_have_numbers_of_its_own(app: App) -> None:
    task = sync_task(app, concurrency=Limit(2, name="account"))
    assert gates_of(task.options(concurrency=Limit(5, name="account"))) == "c5:account"
    assert gates_of(task.options(rate_limit=Rate("1/s"))) == "c2:account r1000000/1:shop:sync"


def test_a_module_that_is_imported_twice_declares_its_limits_twice(app: App) -> None:
    for number in (2, 3):
        sync_task(app, concurrency=Limit(number, name="account"))
    assert gates_of(app.tasks["shop:sync"]) == "c3:account"


# One queue


def test_a_call_to_another_queue_is_refused_unless_each_queue_counts_for_itself(app: App) -> None:
    task = sync_task(app, queue="mail", concurrency=Limit(1))
    assert refusal(lambda: task.options(queue="bulk")) == (
        "shop:sync has a limit, which counts in its queue 'mail', so its jobs cannot be sent to 'bulk' as well: let "
        "each queue count for itself, with Limit(…, per_queue=True) or Rate(…, per_queue=True), or give the other "
        "queue a task of its own"
    )
    assert task.options(queue="mail").job(7).queue == "mail"
    free = sync_task(
        app, "shop:free", concurrency=Limit(1, per_queue=True), rate_limit=Rate("1/s", per_queue=True)
    )
    assert free.options(queue="bulk").job(7).queue == "bulk"
    half = sync_task(app, "shop:half", concurrency=Limit(1, per_queue=True), rate_limit=Rate("1/s"))
    assert "shop:half has a limit" in refusal(lambda: half.options(queue="bulk"))
    assert sync_task(app, "shop:fair", fair_key="account_id").options(queue="bulk").job(7).queue == "bulk"


def test_tasks_of_two_queues_do_not_share_a_limit_unless_each_queue_counts_for_itself(app: App) -> None:
    sync_task(app, "shop:one", queue="mail", concurrency=Limit(1, name="account"))
    text = "the limit 'account' counts within one queue, and its tasks have two: shop:one (mail) and shop:two (bulk)"
    refused = refusal(lambda: sync_task(app, "shop:two", queue="bulk", concurrency=Limit(1, name="account")))
    assert refused == (
        f"{text}. Send both to one queue, give one of them another name=, or let each queue count for itself with "
        "per_queue=True"
    )
    sync_task(app, "shop:two", queue="bulk", concurrency=Limit(1, name="account", per_queue=True))
    check_limits(app)


def test_the_queues_of_routes_are_checked_when_a_worker_starts(app: App) -> None:
    sync_task(app, "shop:one", queue="mail", concurrency=Limit(1, name="account"))
    sync_task(app, "shop:two", concurrency=Limit(1, name="account"))
    assert "shop:one (mail) and shop:two (default)" in refusal(lambda: check_limits(app))
    app.route("shop:two", queue="mail")
    check_limits(app)


# Without the code


def test_a_job_of_a_task_without_code_has_its_key_among_the_keyword_arguments(app: App) -> None:
    limit = Limit(2, "account_id", name="account")
    job = app.describe("shop:elsewhere", _kwargs={"account_id": 17}, concurrency=limit)
    assert as_sent(job).carried["gates"] == "c2:account/17"
    with pytest.raises(InvalidArguments) as caught:
        app.describe("shop:elsewhere", 17, concurrency=limit)
    assert str(caught.value) == (
        "shop:elsewhere, parameter 'account_id': its value is missing, and the key of its limit must be a string, a "
        "whole number or a UUID"
    )


def test_a_described_job_cannot_get_a_limit_because_its_arguments_are_encoded(app: App) -> None:
    job = sync_task(app).job(7)
    for option in ("concurrency", "rate_limit", "fair_key"):
        options: dict[str, Any] = {option: "account_id"}
        assert f"write task.options({option}=…).job(…)" in refusal(partial(job.with_options, **options))
    limited = sync_task(app, concurrency=Limit(1)).job(7)
    assert (
        as_sent(limited.with_options(priority="low").with_headers({"a": "b"})).carried["gates"]
        == "c1:shop:sync"
    )


@given(st.text(min_size=1))
def test_any_text_can_be_the_value_of_a_key(value: str) -> None:
    limits = Limits.of("shop:sync", {"concurrency": Limit(1, "account_id"), "fair_key": "account_id"})
    assert limits is not None
    found = gates_in(limits.gates({"account_id": value}))
    assert [(gate.kind, gate.number) for gate in found] == [("c", 1), ("t", 1)]
    assert all(isinstance(gate, Gate) and len(str(gate)) <= 64 for gate in found)
