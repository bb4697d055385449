"""When a recurring job is due: cron expressions on the clocks of zones, intervals, what is missed, what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from fennelq import App, ConfigurationError
from fennelq.broker.verbs.schedules import job_of
from fennelq.model.schedule import When, WireSchedule, preview
from fennelq.task import AnyTask
from tests.kit.apps import LocalApp
from tests.kit.jobs import as_sent, sent

HOUR = 3_600_000
DAY = 24 * HOUR


def a_schedule(**overrides: Any) -> WireSchedule:
    """A schedule of `app:report`; daily at nine, unless other fields are given."""
    fields: dict[str, Any] = {"name": "report", "task": "app:report", "queue": "mail", "args": b"[[],{}]"}
    if "every_ms" not in overrides:
        fields["cron"] = "0 9 * * *"
    return WireSchedule(**fields | overrides)


def ms(text: str, zone: str = "UTC") -> int:
    """A time on the wall of a zone (or with its offset), in milliseconds of the epoch."""
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))
    return round(aware.timestamp() * 1000)


def walls(dues: list[int], zone: str = "UTC") -> list[str]:
    """`10-25 02:30+01`, as a clock in the zone shows them."""
    shown = [datetime.fromtimestamp(due / 1000, ZoneInfo(zone)) for due in dues]
    return [f"{one:%m-%d %H:%M}{one:%z}".removesuffix("00") for one in shown]


# Clocks that are moved

NIGHTS: list[tuple[str, str, str, str, str]] = [
    # zone, expression, from there on, what night it is, the next runs
    ("Europe/Paris", "30 2 * * *", "2026-03-27 12:00", "forward", "03-28 02:30+01, 03-29 03:00+02, 03-30 02:30+02"),
    ("Europe/Paris", "30 2 * * *", "2026-10-23 12:00", "back", "10-24 02:30+02, 10-25 02:30+02, 10-26 02:30+01"),
    ("Europe/Paris", "*/30 * * * *", "2026-03-29 01:00", "forward", "03-29 01:30+01, 03-29 03:00+02, 03-29 03:30+02"),
    ("Europe/Paris", "*/30 * * * *", "2026-10-25 01:30", "back", "10-25 02:00+02, 10-25 02:30+02, 10-25 03:00+01"),
    ("Europe/Paris", "0 2,3 * * *", "2026-03-28 12:00", "forward", "03-29 03:00+02, 03-30 02:00+02, 03-30 03:00+02"),
    ("Europe/Paris", "0 3 * * *", "2026-10-24 12:00", "back", "10-25 03:00+01, 10-26 03:00+01"),
    ("America/New_York", "30 2 * * *", "2026-03-07 12:00", "forward", "03-08 03:00-04, 03-09 02:30-04"),
    ("America/New_York", "30 1 * * *", "2026-10-31 12:00", "back", "11-01 01:30-04, 11-02 01:30-05"),
    ("America/New_York", "15,45 1 * * *", "2026-10-31 12:00", "back", "11-01 01:15-04, 11-01 01:45-04, 11-02 01:15-05"),
    ("Australia/Sydney", "30 2 * * *", "2026-10-03 12:00", "forward", "10-04 03:00+11, 10-05 02:30+11"),
    ("Australia/Sydney", "30 2 * * *", "2026-04-04 12:00", "back", "04-05 02:30+11, 04-06 02:30+10"),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", "half an hour forward", "10-04 02:30+11, 10-05 02:15+11"),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04 12:00", "half an hour back", "04-05 01:45+11, 04-06 01:45+1030"),
    ("Africa/Cairo", "30 0 * * *", "2026-04-23 12:00", "forward at midnight", "04-24 01:00+03, 04-25 00:30+03"),
    ("America/Havana", "30 0 * * *", "2026-10-31 12:00", "back at one", "11-01 00:30-04, 11-02 00:30-05"),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "expression", "after", "night", "runs"), NIGHTS)
def test_a_time_that_is_skipped_runs_at_the_next_valid_one_and_a_time_that_comes_twice_runs_once(
    zone: str, expression: str, after: str, night: str, runs: str
) -> None:
    expected = runs.split(", ")
    assert walls(preview(expression, zone, ms(after, zone), len(expected)), zone) == expected, night


def test_from_within_the_hour_that_comes_again_the_next_run_is_after_it() -> None:
    again = ms("2026-10-25T02:10:00+01:00")
    assert walls(preview("*/20 * * * *", "Europe/Paris", again, 2), "Europe/Paris") == [
        "10-25 03:00+01",
        "10-25 03:20+01",
    ]


def test_six_fields_second_by_second_over_a_gap() -> None:
    before = ms("2026-03-29 01:59:58", "Europe/Paris")
    assert preview("* * * * * *", "Europe/Paris", before, 3) == [before + 1000, before + 2000, before + 3000]


def test_a_year_of_nights_has_a_run_each() -> None:
    for zone in ("Europe/Paris", "America/New_York", "Australia/Lord_Howe"):
        runs = preview("30 2 * * *", zone, ms("2025-12-31 12:00", zone), 365)
        assert len({wall[:5] for wall in walls(runs, zone)}) == 365


# The calendar

DAYS: list[tuple[str, str, list[str]]] = [
    ("0 0 29 2 *", "2026-01-01", ["2028-02-29", "2032-02-29", "2036-02-29"]),
    ("0 0 28-31 2 *", "2027-12-31", ["2028-02-28", "2028-02-29", "2029-02-28"]),
    ("0 0 31 * *", "2026-01-01", ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31", "2026-08-31"]),
    ("0 0 30 * *", "2026-01-30", ["2026-03-30", "2026-04-30"]),
    ("0 0 L * *", "2028-01-01", ["2028-01-31", "2028-02-29", "2028-03-31"]),
    ("0 0 1 * *", "2026-11-15", ["2026-12-01", "2027-01-01"]),
    ("0 0 * * 1-5", "2026-11-19", ["2026-11-20", "2026-11-23"]),
    ("0 0 * * fri", "2026-11-18", ["2026-11-20", "2026-11-27"]),
    ("0 0 * * 7", "2026-11-18", ["2026-11-22", "2026-11-29"]),
    ("0 0 * * sun", "2026-11-18", ["2026-11-22", "2026-11-29"]),
    ("0 0 * * fri#1", "2026-11-18", ["2026-12-04", "2027-01-01"]),
    ("0 0 1 jan,jul *", "2026-11-18", ["2027-01-01", "2027-07-01"]),
    ("0 0 13 * fri", "2026-11-12", ["2026-11-13", "2026-11-20", "2026-11-27", "2026-12-04"]),
    ("@daily", "2026-11-18", ["2026-11-19", "2026-11-20"]),
    ("@weekly", "2026-11-18", ["2026-11-22", "2026-11-29"]),
    ("@monthly", "2026-11-18", ["2026-12-01", "2027-01-01"]),
    ("@yearly", "2026-11-18", ["2027-01-01", "2028-01-01"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "after", "runs"), DAYS)
def test_days_are_those_of_the_calendar(expression: str, after: str, runs: list[str]) -> None:
    found = preview(expression, "UTC", ms(after), len(runs))
    assert [f"{datetime.fromtimestamp(run / 1000, UTC):%Y-%m-%d}" for run in found] == runs


@pytest.mark.parametrize(
    ("expression", "runs"),
    [
        ("* * * * *", ["00:01:00", "00:02:00"]),
        ("@hourly", ["01:00:00", "02:00:00"]),
        ("*/20 * * * *", ["00:20:00", "00:40:00", "01:00:00"]),
        ("0 22-2 * * *", ["01:00:00", "02:00:00", "22:00:00"]),
        ("* * * * * 15,45", ["00:00:15", "00:00:45", "00:01:15"]),
        ("* * * * * */25", ["00:00:25", "00:00:50", "00:01:00"]),
        ("30 9 * * * 7", ["09:30:07"]),
    ],
)
def test_a_sixth_field_counts_seconds_and_names_stand_for_expressions(
    expression: str, runs: list[str]
) -> None:
    found = preview(expression, "UTC", ms("2026-11-18"), len(runs))
    assert [f"{datetime.fromtimestamp(run / 1000, UTC):%H:%M:%S}" for run in found] == runs


def test_the_moment_itself_is_not_after_it() -> None:
    nine = ms("2026-11-18 09:00")
    assert a_schedule().next_after(nine - 1) == nine
    assert a_schedule().next_after(nine) == nine + DAY


# Intervals


def test_an_interval_counts_from_the_epoch_or_from_its_start() -> None:
    assert [*islice(a_schedule(every_ms=30_000).after(ms("2026-11-18 09:00:01")), 2)] == [
        ms("2026-11-18 09:00:30"),
        ms("2026-11-18 09:01:00"),
    ]
    start = ms("2026-11-18 09:00:07")
    assert [*islice(a_schedule(every_ms=30_000, start_ms=start).after(0), 2)] == [start, start + 30_000]


def test_nothing_runs_before_the_start_nor_after_the_end() -> None:
    start, end = ms("2026-11-18 09:00"), ms("2026-11-20 09:00")
    daily = a_schedule(start_ms=start, end_ms=end)
    assert [*daily.after(0)] == [start, start + DAY, end]
    assert daily.next_after(end) is None
    assert [*a_schedule(every_ms=DAY // 2, start_ms=start, end_ms=start + DAY).after(0)] == [
        start,
        start + DAY // 2,
        start + DAY,
    ]


# What is missed


def test_the_last_thousand_of_too_many_ticks_and_the_one_after_them() -> None:
    fast = a_schedule(every_ms=50)
    found, following = fast.last_ticks(0, 10_000_000_020)
    assert found == [*range(10_000_000_000 - 999 * 50, 10_000_000_001, 50)]
    assert following == 10_000_000_050


@pytest.mark.parametrize(
    ("expression", "length"),
    [("* * * * * *", HOUR), ("* * * * *", 3 * DAY), ("0 9 * * 1-5", 99 * DAY), ("* * 1 1 *", DAY), ("0 0 29 2 *", DAY)],
)  # fmt: skip
def test_after_years_of_silence_the_last_ticks_are_found_at_once(expression: str, length: int) -> None:
    schedule = a_schedule(cron=expression, tz="Europe/Paris")
    first = schedule.next_after(ms("2020-01-01"))
    assert first is not None
    assert schedule.last_ticks(first, first + length) == expected_last(schedule, first, first + length)
    found, following = schedule.last_ticks(first, ms("2026-11-18"))
    assert len(found) <= 1000
    assert found[-1] <= ms("2026-11-18") < cast("int", following)


def expected_last(schedule: WireSchedule, first: int, until: int) -> tuple[list[int], int | None]:
    ticks = [first, *takewhile(lambda due: due <= until, schedule.after(first))]
    return ticks[-1000:], schedule.next_after(until)


def test_the_first_ticks_are_no_more_than_asked_for() -> None:
    fast = a_schedule(every_ms=100)
    assert fast.first_ticks(1000, 1350) == ([1000, 1100, 1200, 1300], 1400)
    assert fast.first_ticks(1000, 9000, 2) == ([1000, 1100], 1200)
    assert fast.first_ticks(1000, 999) == ([], 1000)
    assert fast.first_ticks(None, 9000) == ([], None)
    assert a_schedule(every_ms=100, end_ms=1100).first_ticks(1000, 9000) == ([1000, 1100], None)


@pytest.mark.parametrize(
    ("catchup", "run"), [("none", []), ("last", [5]), ("all:1", [5]), ("all:3", [3, 4, 5]), ("all:9", [1, 2, 3, 4, 5])]
)  # fmt: skip
def test_what_is_caught_up(catchup: str, run: list[int]) -> None:
    assert a_schedule(catchup=catchup).caught_up([1, 2, 3, 4, 5]) == run
    assert a_schedule(catchup=catchup).caught_up([]) == []


# Jitter


@given(st.integers(0, 2**42), st.integers(1, DAY))
def test_a_run_is_put_off_by_at_most_the_jitter_and_every_executor_computes_the_same(
    due: int, jitter: int
) -> None:
    put_off = a_schedule(jitter_ms=jitter).put_off(due)
    assert due <= put_off <= due + jitter
    assert put_off == WireSchedule.from_wire(a_schedule(jitter_ms=jitter).to_wire()).put_off(due)


def test_jitter_spreads_the_schedules_of_one_minute() -> None:
    starts = {a_schedule(name=f"s{n}", jitter_ms=60_000).put_off(0) // 6000 for n in range(200)}
    assert starts == set(range(10))


def test_without_jitter_a_run_starts_when_it_is_due_and_with_it_not_after_the_end() -> None:
    assert a_schedule().put_off(7) == 7
    daily = a_schedule(jitter_ms=DAY, end_ms=ms("2026-11-20"))
    assert max(daily.put_off(ms("2026-11-20") - n) for n in range(50)) <= ms("2026-11-20")


# The job of a tick


def test_a_tick_makes_the_same_job_on_every_executor() -> None:
    schedule = a_schedule(options=b'{"r":1}', priority="high", max_deliveries=2)
    job = job_of(schedule, 1_795_000_000_000)
    assert job == job_of(WireSchedule.from_wire(schedule.to_wire()), 1_795_000_000_000)
    assert job.id == "mail:cron.report.1795000000000"
    assert job.carried == {"priority": "high", "max_deliveries": 2, "keep_ms": DAY, "options": '{"r":1}'}


def test_a_job_that_is_put_off_expires_later() -> None:
    schedule = a_schedule(jitter_ms=60_000, expires_ms=5000)
    job = job_of(schedule, DAY)
    assert job.carried["at_ms"] == schedule.put_off(DAY)
    assert job.carried["expires_ms"] == 5000 + schedule.put_off(DAY) - DAY


# On the wire


def test_a_schedule_is_read_as_it_was_written() -> None:
    whole = a_schedule(
        options=b'{"r":1}',
        priority="low",
        expires_ms=1000,
        max_deliveries=3,
        tz="Europe/Paris",
        overlap="queue",
        catchup="all:3",
        jitter_ms=5,
        start_ms=1000,
        end_ms=10**13,
    )
    for schedule in (whole, a_schedule(), a_schedule(every_ms=50)):
        assert WireSchedule.from_wire(schedule.to_wire()) == schedule


def test_equal_schedules_are_equal_texts_and_what_is_as_usual_is_left_out() -> None:
    assert a_schedule().to_wire() == (
        b'{"args":"[[],{}]","cron":"0 9 * * *","name":"report","queue":"mail","task":"app:report"}'
    )
    assert a_schedule(tz="UTC", catchup="none").to_wire() == a_schedule().to_wire()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense",
        b"[]",
        b"7",
        b"{}",
        b'{"name":"x"}',
        a_schedule().to_wire()[:-1] + b',"shards":4}',
        a_schedule().to_wire()[:-1] + b',"overlap":"merge"}',
        a_schedule().to_wire().replace(b"0 9 * * *", b"0 9 * * * * *"),
        a_schedule().to_wire().replace(b'"0 9 * * *"', b"9"),
    ],
)
def test_what_this_version_cannot_read_is_refused_and_not_half_understood(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the schedule cannot be read: "):
        WireSchedule.from_wire(raw)


def test_a_field_of_a_later_version_is_named() -> None:
    raw = a_schedule().to_wire()[:-1] + b',"shards":4}'
    with pytest.raises(
        ValueError, match=r"^the schedule cannot be read: 'shards' is not a field of a schedule$"
    ):
        WireSchedule.from_wire(raw)


def test_a_schedule_is_shown_under_the_name_that_users_import_and_can_be_pickled() -> None:
    schedule = a_schedule()
    assert repr(schedule).startswith("Schedule(name=")
    assert pickle.loads(pickle.dumps(schedule)) == schedule


# What is refused, and why: at import, in the caller

BAD_CRON = [
    ("0 9", "five fields"),
    ("", "five fields"),
    ("0 0 1 1 * 0 2027", "five fields"),
    ("60 * * * *", "out of range"),
    ("0 24 * * *", "out of range"),
    ("0 0 32 * *", "out of range"),
    ("*/0 * * * *", "step"),
    ("0 9 * * xyz", "not acceptable"),
    ("0 0 30 2 *", "never happens"),
    ("@reboot", "this alias does not exist"),
    ("H * * * *", "hash"),
    ("R * * * *", "jitter"),
    ("0 r(1-5) * * *", "jitter"),
    (cast("str", 9), "not a text"),
]


@pytest.fixture
def app() -> App:
    return LocalApp("shop", redis_url="redis://nowhere:1")


Declare = Callable[[App, str, When], object]


def by_app(app: App, expression: str, when: When) -> None:
    @app.cron(expression, name="report", **when)
    async def report() -> None: ...


def by_task(app: App, expression: str, when: When) -> None:
    @app.task
    async def report(number: int) -> None: ...

    report.cron(expression, args=(7,), name="report", **when)


declared = pytest.mark.parametrize("declare", [by_app, by_task])


@declared
@pytest.mark.parametrize(("expression", "reason"), BAD_CRON)
def test_an_expression_that_cannot_be_read_is_refused_where_it_is_declared(
    app: App, declare: Declare, expression: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)^schedule report: .*{reason}"):
        declare(app, expression, {})


@declared
@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ({"tz": "Europe/Pariss"}, "did you mean 'Europe/Paris'"),
        ({"tz": "nowhere at all"}, "IANA"),
        ({"tz": "../etc/passwd"}, "not a time zone"),
        ({"tz": ""}, "not a time zone"),
        ({"tz": 1}, "tz= is the name of a zone"),
        ({"overlap": "maybe"}, "allow, skip or queue"),
        ({"catchup": "all"}, "none, last or all"),
        ({"catchup": "all:0"}, "none, last or all"),
        ({"catchup": "all:1001"}, "none, last or all"),
        ({"catchup": "all:²"}, "none, last or all"),
        ({"catchup": 3}, "none, last or all"),
        ({"jitter": -1}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"jitter": "5 s"}, "jitter"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is what is wrong with it
        ({"start": "2026-01-01"}, "time zone"),
        ({"start": datetime(2027, 1, 1, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)}, "before start"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_where_it_is_declared(
    app: App, declare: Declare, when: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^schedule report: .*{reason}"):
        declare(app, "0 9 * * *", cast("When", when))


@pytest.mark.parametrize(
    "interval", [0, -1, 0.001, float("inf"), float("nan"), "30", timedelta(days=-1), 1e12]
)
def test_an_interval_is_a_length_of_time(app: App, interval: Any) -> None:
    with pytest.raises(ConfigurationError, match="interval"):
        app.every(interval)(some_function)


async def some_function() -> None: ...


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 101, "é"])
def test_a_schedule_has_a_name_that_can_be_part_of_a_key(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not valid"):
        a_schedule(name=name)


def test_a_misspelt_option_is_named_with_the_right_one(app: App) -> None:
    misspelt: Any = {"overlp": "skip"}
    with pytest.raises(ConfigurationError, match=r"unknown option 'overlp': did you mean 'overlap'"):
        app.cron("@daily", **misspelt)
    task = app.task(some_function)
    with pytest.raises(ConfigurationError, match=r"unknown option 'overlp': did you mean 'overlap'"):
        task.cron("@daily", **misspelt)


def test_missing_arguments_are_an_error_where_the_schedule_is_declared(app: App) -> None:
    async def report(number: int) -> None: ...

    with pytest.raises(Exception, match="number"):
        app.cron("@daily")(report)


@pytest.mark.parametrize(
    ("option", "value"), [("key", "k"), ("job_id", "j"), ("delay", 5), ("at", datetime(2030, 1, 1, tzinfo=UTC))]
)  # fmt: skip
def test_options_of_a_single_call_are_refused_for_a_recurring_one(
    app: App, option: str, value: object
) -> None:
    given_option: Any = {option: value}
    task = app.task(some_function).options(**given_option)
    with pytest.raises(ConfigurationError, match=f"{option}= belongs to a single call"):
        task.every(60)
    with pytest.raises(ConfigurationError, match=f"{option}= belongs to a call"):
        app.cron("@daily", **given_option)(some_function)


def test_two_schedules_of_one_name_are_refused(app: App) -> None:
    task = app.task(some_function)
    assert task.every(60) == task.every(60)
    with pytest.raises(ConfigurationError, match="declared twice"):
        task.every(61)
    assert task.every(61, name="other").name == "other"


# What is declared


def test_a_schedule_carries_the_options_of_its_job(app: App) -> None:
    @app.every(60, queue="mail", priority="high", expires=5, max_deliveries=1, retries=7)
    async def report() -> None: ...

    (schedule,) = app.schedules.declared.values()
    assert (schedule.queue, schedule.priority, schedule.expires_ms) == ("mail", "high", 5000)
    assert schedule.max_deliveries == 1
    assert report.queue == "mail"


def test_a_task_can_have_several_schedules_with_arguments_and_options(app: App) -> None:
    @app.task(queue="mail")
    async def report(number: int, kind: str = "short") -> None: ...

    weekly: AnyTask = report.options(priority="low", queue="slow")
    weekly.cron("@weekly", args=(1,), kwargs={"kind": "long"}, name="weekly")
    report.every(60, args=(2,), name="minutely")
    declared = app.schedules.declared
    assert declared["weekly"].args == b'[[1],{"kind":"long"}]'
    assert (declared["weekly"].queue, declared["weekly"].priority) == ("slow", "low")
    assert (declared["minutely"].args, declared["minutely"].queue) == (b"[[2],{}]", "mail")


def test_decorators_of_a_task_can_be_stacked_and_mind_their_options(app: App) -> None:
    @app.cron("0 18 * * *", name="evening", priority="low")
    @app.cron("0 9 * * *", name="morning")
    @app.task(queue="mail")
    async def report() -> None: ...

    declared = app.schedules.declared
    assert [declared[name].queue for name in ("morning", "evening")] == ["mail", "mail"]
    assert [declared[name].priority for name in ("morning", "evening")] == ["normal", "low"]
    assert len(app.tasks) == 1


def test_a_schedule_is_named_after_its_task() -> None:
    app = LocalApp("shop", redis_url="redis://nowhere:1")
    app.every(60)(some_function)
    assert list(app.schedules.declared) == [f"{__name__}.some_function"[-100:]]


def test_a_described_job_may_be_of_a_task_that_is_not_here(app: App) -> None:
    job = as_sent(app.describe("elsewhere:report", 7, queue="mail"))
    schedule = WireSchedule.of("r", job, cron=None, every=timedelta(minutes=1), when={})
    assert (schedule.task, schedule.every_ms, schedule.args) == ("elsewhere:report", 60_000, b"[[7],{}]")


def test_a_job_made_by_hand_is_refused_what_a_described_one_is() -> None:
    job = sent("mail", "1", "a:b", delay_ms=5)
    with pytest.raises(ConfigurationError, match="delay="):
        WireSchedule.of("r", job, cron="@daily", every=None, when={})


# Any expression, any moment

ZONES = st.sampled_from(
    ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Chatham", "UTC"]
)
MOMENTS = st.integers(ms("2000-01-01"), ms("2037-01-01"))


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """Something a field of an expression may be."""
    number = st.integers(low, high)
    ranged = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.integers(1, high).map(lambda step: f"*/{step}")
    listed = st.lists(number, min_size=1, max_size=4).map(lambda some: ",".join(map(str, some)))
    return st.one_of(st.just("*"), number.map(str), ranged, stepped, listed)


EXPRESSIONS = st.one_of(
    st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 6)).map(" ".join),
    st.tuples(fields(0, 59), fields(0, 23), st.just("* * *"), fields(0, 59)).map(" ".join),
    st.sampled_from(["0 0 31 * *", "0 0 29 2 *", "30 2 * * *", "* * * * *", "@hourly", "0 0 L * *"]),
)


@given(EXPRESSIONS, MOMENTS)
def test_in_utc_ticks_are_those_of_croniter(expression: str, moment: int) -> None:
    start = datetime.fromtimestamp(moment / 1000, UTC).replace(tzinfo=None)
    times = croniter(expression, start, ret_type=datetime, max_years_between_matches=50)
    expected = [round(times.get_next().replace(tzinfo=UTC).timestamp() * 1000) for _ in range(8)]
    assert preview(expression, "UTC", moment, 8) == expected


@given(EXPRESSIONS, ZONES, MOMENTS)
def test_ticks_are_strictly_increasing_and_later_than_asked(expression: str, zone: str, moment: int) -> None:
    ticks = preview(expression, zone, moment, 8)
    assert len(ticks) == 8
    assert all(one < other for one, other in pairwise([moment, *ticks]))


@given(EXPRESSIONS, ZONES, MOMENTS)
def test_outside_transitions_ticks_are_croniters_in_every_zone(
    expression: str, zone: str, moment: int
) -> None:
    wall = datetime.fromtimestamp(moment / 1000, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    times = croniter(expression, wall, ret_type=datetime, max_years_between_matches=50)
    for tick, expected in zip(
        preview(expression, zone, moment, 8), (times.get_next() for _ in range(8)), strict=True
    ):
        shown = datetime.fromtimestamp(tick / 1000, ZoneInfo(zone))
        if near_a_transition(shown):
            return
        assert shown.replace(tzinfo=None) == expected


def near_a_transition(moment: datetime) -> bool:
    day = timedelta(days=1)
    return len({(moment + shift).utcoffset() for shift in (-day, timedelta(), day)}) > 1


@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(0, 5))
def test_a_tick_is_the_next_one_from_wherever_before_it_one_asks(
    expression: str, zone: str, moment: int, place: int
) -> None:
    ticks = preview(expression, zone, moment, 7)
    schedule = a_schedule(cron=expression, tz=zone)
    assert schedule.next_after(ticks[place]) == ticks[place + 1]
    assert schedule.next_after(ticks[place + 1] - 1) == ticks[place + 1]


@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(0, 3 * DAY))
def test_ticks_up_to_a_moment_and_the_one_after_are_all_there_are(
    expression: str, zone: str, moment: int, length: int
) -> None:
    schedule = a_schedule(cron=expression, tz=zone)
    first = schedule.next_after(moment)
    assert first is not None
    until = first + length
    found, following = schedule.first_ticks(first, until)
    assert found[0] == first
    assert [*islice(schedule.after(first - 1), len(found) + 1)] == [*found, following]
    if len(found) < 1000:
        assert schedule.last_ticks(first, until) == (found, following)
        assert found[-1] <= until < cast("int", following)
