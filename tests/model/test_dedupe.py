"""Keys that are computed, and the options that say what duplicates do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

import pytest

from fennelq import App, AsyncTask, ConfigurationError, InvalidArguments, Limit, dedupe
from fennelq.model.wire import WireJob
from tests.kit.jobs import as_sent


@pytest.fixture
def app() -> App:
    """An app that is not connected."""
    return App("shop", redis_url="redis://localhost:1")


def indexing(app: App, **options: Any) -> AsyncTask[[int, str], None]:
    """A task with the parameters `user_id` and `text`."""

    async def index(user_id: int, text: str) -> None: ...

    options = {"key": dedupe.arguments("user_id"), **options}
    return app.task(name="shop:index", **options)(index)


# Keys from arguments


@dataclass
class Order:
    id: UUID
    lines: list[int]


def keyed(app: App, *parameters: str) -> Any:
    @app.task(name="shop:pay", key=dedupe.arguments(*parameters), dedupe="until_done")
    async def pay(order: Order, cents: float, to: str = "me", *, note: str | None = None) -> None: ...

    return pay


def key_of(job: Any) -> str:
    key = str(as_sent(job).carried["idempotency"])
    assert key.startswith(f"{job.task}:")
    return key.removeprefix(f"{job.task}:")


ORDER = Order(UUID(int=5), [1, 2])


def test_equal_calls_have_one_key_however_they_are_written(app: App) -> None:
    pay = keyed(app)
    first = key_of(pay.job(ORDER, 5.0))
    assert first == key_of(pay.job(order=ORDER, cents=5, to="me", note=None))
    others = [
        pay.job(ORDER, 6),
        pay.job(ORDER, 5, "you"),
        pay.job(ORDER, 5, note=""),
        pay.job(Order(UUID(int=5), [2, 1]), 5),
    ]
    assert len({first, *map(key_of, others)}) == 5
    assert len(first) == 20


class Colour(Enum):
    RED = 1


def test_a_default_counts_as_it_would_be_sent(app: App) -> None:
    defaults: dict[str, Any] = {
        "price": 1.0,
        "exact": Decimal("1.0"),
        "wait": timedelta(seconds=1),
        "colour": Colour.RED,
        "at": datetime(2020, 1, 1, tzinfo=UTC),
        "pages": (),
        "raw": b"abc",
    }

    @app.task(name="shop:all", key=dedupe.arguments(), dedupe="until_done")
    async def every(
        price: float = 1,
        exact: Decimal = defaults["exact"],
        wait: timedelta = defaults["wait"],
        colour: Colour = Colour.RED,
        at: datetime = defaults["at"],
        pages: tuple[int, ...] = (),
        raw: bytes = b"abc",
        *more: int,
        text: str = cast("Any", None),
        **others: int,
    ) -> None: ...

    usual = key_of(every.job())
    assert {name: key_of(every.job(**{name: value})) for name, value in defaults.items()} == dict.fromkeys(
        defaults, usual
    )
    assert key_of(every.job(1)) == usual
    others = [every.job(2.0), every.job(text="a"), every.job(anything=1), every.job(*defaults.values(), 5)]
    assert len({usual, *map(key_of, others)}) == 5


def test_a_key_of_some_arguments_can_be_read_when_they_are_short(app: App) -> None:
    assert key_of(keyed(app, "to").job(ORDER, 5)) == "to=me"
    task = indexing(app)
    assert key_of(task.job(-3, "x")) == "user_id=-3"
    both = task.options(key=dedupe.arguments("text", "user_id"))
    assert key_of(both.job(7, "a.b-c")) == "text=a.b-c,user_id=7"
    unreadable = [
        key_of(both.job(7, text)) for text in ("7", "a b", "true", "null", "x" * 40, "", "a,user_id=8")
    ]
    assert {len(key) for key in unreadable} == {20}
    assert len(set(unreadable)) == 7


def test_a_call_without_arguments_has_a_key(app: App) -> None:
    @app.task(name="shop:tidy", key=dedupe.arguments())
    async def tidy() -> None: ...

    assert key_of(tidy.job()) == "()"


def test_a_function_may_compute_the_key(app: App) -> None:
    def last_digit(call: Mapping[str, Any]) -> str:
        return f"u{call['user_id'] % 10}"

    assert key_of(indexing(app, key=last_digit).job(47, "x")) == "u7"


def an_int(_: Mapping[str, Any]) -> Any:
    return 42


def two_words(_: Mapping[str, Any]) -> str:
    return "a b"


def unknown_parameter(call: Mapping[str, Any]) -> str:
    return str(call["missing"])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (an_int, "the function that computes the key returned an int object: idempotency key must be"),
        (two_words, "the function that computes the key returned a str object: idempotency key 'a b'"),
        (unknown_parameter, "the function that computes the key raised KeyError: 'missing'"),
    ],
)
def test_a_key_that_cannot_be_computed_is_the_callers_error(app: App, key: Any, message: str) -> None:
    task = indexing(app, key=key)
    with pytest.raises(InvalidArguments, match=message):
        task.job(7, "x")


def test_a_call_by_name_needs_a_key_that_is_a_text(app: App) -> None:
    with pytest.raises(ConfigurationError, match="the parameters of far:away are not known here"):
        app.describe("far:away", 42, key=dedupe.arguments(), dedupe="until_done")
    job = app.describe("far:away", 42, key="a", dedupe="until_done")
    assert as_sent(job).carried == {"idempotency": "far:away:a", "dedupe": ">"}


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dedupe": "sometimes"},
            "dedupe 'sometimes' is not one of until_start, until_done, throttle, debounce",
        ),
        ({"on_duplicate": "ignore"}, "on_duplicate 'ignore' is not one of return, raise, replace"),
        ({"dedupe": "until_done", "on_duplicate": "replace"}, 'dedupe="latest" replaces them too'),
        ({"dedupe": "throttle", "ttl": 5, "on_duplicate": "replace"}, 'dedupe="latest" replaces them too'),
        ({"on_duplicate": "replace"}, 'a key without dedupe= holds the key after that: dedupe="latest"'),
        ({"dedupe": "latest", "on_duplicate": "raise"}, 'does not fit: use dedupe="until_start" with it'),
        ({"dedupe": "debounce", "wait": 1, "on_duplicate": "return"}, 'use dedupe="until_start" with it'),
        ({"dedupe": "debounce"}, 'dedupe="debounce" needs wait='),
        ({"dedupe": "debounce", "wait": 5, "max_wait": 4}, "max_wait=4 is shorter than wait=5"),
        ({"dedupe": "debounce", "wait": 0}, "wait must be at least a millisecond, not 0"),
        ({"wait": 5}, 'wait= is how long dedupe="debounce" waits: add dedupe="debounce"'),
        ({"dedupe": "latest", "max_wait": 5}, 'waits, and this is dedupe="latest"'),
        ({"dedupe": "throttle"}, 'dedupe="throttle" needs ttl='),
        ({"dedupe": "throttle", "ttl": 0}, 'dedupe="throttle" needs ttl='),
        ({"dedupe": "until_done", "ttl": 5}, 'to hold a key for a time use dedupe="throttle"'),
        ({"key": dedupe.arguments}, "key=dedupe.arguments needs parentheses"),
        (
            {"key": dedupe.arguments("usr_id")},
            "shop:index has no parameter 'usr_id', .*: did you mean 'user_id'?",
        ),
    ],
)
def test_a_combination_that_makes_no_sense_names_the_mode_that_does(
    app: App, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        indexing(app, **options)


def test_no_limit_has_a_name_that_latest_gives(app: App) -> None:
    with pytest.raises(ConfigurationError, match="'latest:mine' is taken by dedupe=\"latest\""):
        Limit(1, name="latest:mine")


@pytest.mark.parametrize("fixed", ["delay", "at"])
def test_a_debounced_call_has_no_due_time_of_its_own(app: App, fixed: str) -> None:
    value: Any = 5 if fixed == "delay" else datetime.now(UTC)
    task = indexing(app, dedupe="debounce", wait=5)
    with pytest.raises(
        ConfigurationError, match=f'dedupe="until_start" and on_duplicate="replace" with {fixed}='
    ):
        task.options(**{fixed: value})
    with pytest.raises(ConfigurationError, match=f"{fixed}= decides what becomes of duplicates"):
        task.job(7, "a").with_options(**{fixed: value})


def test_a_call_that_may_replace_has_no_id_of_its_own(app: App) -> None:
    task = indexing(app, dedupe="latest")
    with pytest.raises(ConfigurationError, match='dedupe="latest" gives its arguments to the job that waits'):
        task.options(job_id="mine")


def test_dedupe_without_a_key_is_an_error_of_the_call(app: App) -> None:
    @app.task(name="shop:tidy", dedupe="until_done")
    async def tidy() -> None: ...

    with pytest.raises(ConfigurationError, match="shop:tidy has dedupe=, and this call has no key"):
        tidy.job()
    assert key_of(tidy.options(key="k").job()) == "k"


def test_a_task_may_have_a_key_for_all_its_calls_only_with_a_mode_that_frees_it(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r'key= belongs to a call: .*, or add dedupe="until_done"$'):
        indexing(app, key="all")
    task = indexing(app, key="all", dedupe="until_done")
    assert key_of(task.job(7, "a")) == "all"


def test_a_call_with_another_mode_starts_from_nothing(app: App) -> None:
    task = indexing(app, dedupe="debounce", wait=5, max_wait=50)
    assert as_sent(task.options(dedupe="until_start").job(7, "a")).carried == {
        "idempotency": "shop:index:user_id=7",
        "dedupe": "<",
    }


def test_a_schedule_refuses_dedupe_and_names_overlap(app: App) -> None:
    task = indexing(app, dedupe="until_done")
    with pytest.raises(
        ConfigurationError, match=r'overlap="skip" leaves a run out.*a second task without key='
    ):
        task.every(30, args=(7, "a"))
    with pytest.raises(
        ConfigurationError, match=r"key= belongs to a single call.*a second task without key="
    ):
        indexing(app).every(30, args=(7, "a"))


def test_a_described_job_is_not_made_to_expire_before_it_is_due(app: App) -> None:
    due: list[dict[str, Any]] = [{"dedupe": "debounce", "wait": 5}, {"delay": 5}]
    for options in due:
        job = indexing(app).options(**options).job(7, "a")
        assert as_sent(job.with_options(expires=6)).carried["expires_ms"] == 6000
        with pytest.raises(ConfigurationError, match="it would never run"):
            job.with_options(expires=5)


@pytest.mark.parametrize(
    "options",
    [{"dedupe": "latest"}, {"on_duplicate": "raise"}, {"wait": 5}, {"max_wait": 5}, {"key": "x"}, {"ttl": 5}],
)
def test_a_described_job_keeps_what_it_does_about_duplicates(app: App, options: dict[str, Any]) -> None:
    task = indexing(app, dedupe="until_done")
    with pytest.raises(ConfigurationError, match="decides what becomes of duplicates"):
        task.job(7, "a").with_options(**options)
    with pytest.raises(ConfigurationError, match="key= is computed from the arguments"):
        indexing(app).job(8, "a").with_options(key=dedupe.arguments())


# On the wire


def test_a_latest_job_has_its_other_limits_too(app: App) -> None:
    task = indexing(app, dedupe="latest", concurrency=Limit(3, key="user_id"))
    gates = str(as_sent(task.job(7, "a")).carried["gates"]).split()
    assert [gate.partition("/")[0] for gate in gates] == ["c3:shop:index", "c1:latest:shop:index"]
    assert gates[1] != str(as_sent(task.job(8, "a")).carried["gates"]).split()[1]


def test_a_job_that_is_handed_over_keeps_what_it_does_about_duplicates(app: App) -> None:
    task = indexing(app, dedupe="debounce", wait=60, max_wait=600)
    job = as_sent(task.job(7, "a"))
    assert WireJob.from_wire(job.to_wire()).carried == job.carried
    assert job.carried == {
        "idempotency": "shop:index:user_id=7",
        "dedupe": "<",
        "wait_ms": 60_000,
        "max_wait_ms": 600_000,
    }
