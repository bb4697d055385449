"""Recurring jobs: `@app.cron`, `@app.every`, `task.cron`, `task.every`, and `app.schedules` at run time."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from structlog.testing import capture_logs

from fennelq import App, ConfigurationError, ScheduleInfo, Status, UnknownSchedule, current_job
from fennelq.broker.keys import AppKeys
from fennelq.broker.verb import Command, as_is
from tests.features.conftest import MakeApp
from tests.kit.clock import ServerClock
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

MINUTE = 60_000


def due_of(job_id: str) -> int:
    """The tick that a job belongs to, in milliseconds."""
    return int(job_id.rpartition(".")[2])


class Runs:
    """What has run, when, and for which ticks."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.late_ms: list[float] = []
        self.arguments: list[object] = []

    def note(self, argument: object = None) -> None:
        job = current_job().id
        self.jobs.append(job)
        self.arguments.append(argument)
        if ":cron." in job and ".now." not in job:
            self.late_ms.append(time.time() * 1000 - due_of(job))

    @property
    def ticks(self) -> list[int]:
        return [due_of(job) for job in self.jobs]


@pytest.fixture
def runs() -> Runs:
    return Runs()


# Declared in code


async def test_a_task_runs_at_an_interval(app: App, runs: Runs) -> None:
    @app.every(0.05)
    async def sweep() -> None:
        runs.note()

    async with running(app):
        await aeventually(lambda: len(runs.jobs) >= 10)
    first = runs.ticks[0]
    assert runs.ticks == [first + 50 * n for n in range(len(runs.ticks))]
    assert first % 50 == 0


async def test_a_task_runs_on_a_cron_schedule_to_the_second(app: App, runs: Runs) -> None:
    @app.cron("* * * * * *", tz="Europe/Paris")
    async def report() -> None:
        runs.note()

    async with running(app):
        await aeventually(lambda: len(runs.jobs) >= 2)
    assert [tick % 1000 for tick in runs.ticks] == [0, 0]


async def test_a_plain_function_may_recur_and_can_still_be_called_and_sent(app: App, runs: Runs) -> None:
    @app.every(0.05)
    def sweep(number: int = 1) -> int:
        runs.note(number)
        return number

    async with running(app):
        assert await app.call(sweep.job(7), timeout=30) == 7
        await aeventually(lambda: runs.arguments.count(1) >= 2)


async def test_one_task_has_several_schedules_with_arguments_and_options(app: App, runs: Runs) -> None:
    @app.task
    async def report(number: int, kind: str = "short") -> None:
        runs.note((number, kind))

    report.every(0.05, args=(1,), name="one")
    report.options(queue="other", priority="high").every(
        0.07, kwargs={"number": 2, "kind": "long"}, name="two"
    )
    async with running(app):
        await aeventually(lambda: {(1, "short"), (2, "long")} <= set(runs.arguments))
        infos = {info.name: info for info in await app.schedules.list()}
    assert (infos["one"].last_job or "").startswith("default:cron.one.")
    assert (infos["two"].last_job or "").startswith("other:cron.two.")


async def test_a_recurring_job_fails_and_is_retried_like_any_other(app: App, runs: Runs) -> None:
    @app.every(60, retries=1)
    async def report() -> str:
        if current_job().tries == 1:
            raise ConnectionError("the first try fails")
        return "done"

    async with running(app):
        await aeventually(lambda: names(app))
        result = await app.schedules.run(await only_name(app))
        assert await result.get(timeout=30) == "done"


async def names(app: App) -> list[str]:
    return [info.name for info in await app.schedules.list()]


async def only_name(app: App) -> str:
    (name,) = await names(app)
    return name


async def test_jobs_of_a_queue_that_no_worker_has_opened_are_found(app: App, runs: Runs) -> None:
    @app.task(queue="unheard-of")
    async def report() -> None:
        runs.note()

    other = app.describe(report.name, queue="quite-new")
    await app.schedules.add(other, every=0.05, name="s")
    async with running(app):
        await aeventually(lambda: runs.jobs)
    assert runs.jobs[0].startswith("quite-new:cron.s.")


async def test_a_schedule_whose_task_no_longer_exists_harms_no_other(app: App, runs: Runs) -> None:
    @app.every(0.05)
    async def report() -> None:
        runs.note()

    await app.schedules.add(app.describe("shop.gone:report"), every=0.05, name="gone")
    async with running(app):
        await aeventually(lambda: len(runs.jobs) >= 5)
        gone = await app.schedules.get("gone")
        assert gone.run_count > 0
        assert gone.last_status in (Status.SENT, Status.SCHEDULED, Status.EXECUTING, None)
    await app.schedules.remove("gone")


# Exactly once


async def test_however_many_executors_there_are_each_tick_runs_once(make_app: MakeApp, runs: Runs) -> None:
    apps = [make_app() for _ in range(5)]

    async def sweep() -> None:
        runs.note()

    for app in apps:
        app.every(0.05)(sweep)
    async with running(apps[0]), running(apps[1]), running(apps[2]), running(apps[3]), running(apps[4]):
        await aeventually(lambda: len(runs.jobs) >= 20)
        # Runs that have begun may be noted before those of the tick before; none may be missing in the end.
    ticks = sorted(runs.ticks)
    assert ticks == [*range(ticks[0], ticks[-1] + 50, 50)]


# At run time


@pytest.fixture
def report(app: App, runs: Runs) -> App:
    """An app with the task `report`, to be scheduled."""

    @app.task(name="shop:report")
    async def report(number: int = 0) -> int:
        runs.note(number)
        return number

    return app


async def add(app: App, number: int = 0, *, name: str = "s", every: float = 0.05) -> ScheduleInfo:
    return await app.schedules.add(app.describe("shop:report", number), name=name, every=every)


async def test_a_schedule_that_was_just_added_has_not_run(report: App) -> None:
    info = await add(report, 7)
    assert (info.name, info.declared, info.paused, info.run_count) == ("s", False, False, 0)
    assert info.next_run is not None


async def test_a_schedule_that_is_added_while_a_worker_runs_is_followed(report: App, runs: Runs) -> None:
    async with running(report):
        await add(report, 7)
        await aeventually(lambda: runs.arguments[:3] == [7] * 3)


async def test_a_schedule_that_is_changed_runs_by_its_new_definition(report: App, runs: Runs) -> None:
    async with running(report):
        await add(report, 1, every=3600)
        assert (await add(report, 2)).schedule.every_ms == 50
        await aeventually(lambda: runs.arguments[:3] == [2] * 3)


async def test_a_paused_schedule_does_not_run_until_it_is_resumed(report: App, runs: Runs) -> None:
    async with running(report):
        await add(report)
        await aeventually(lambda: len(runs.jobs) >= 3)
        await report.schedules.pause("s")
        last = (await report.schedules.get("s")).last_job
        assert last is not None
        await report.result(last).get(timeout=30)
        before = len(runs.jobs)
        info = await report.schedules.get("s")
        assert (info.paused, info.next_run) == (True, None)
        await asyncio.sleep(0.2)  # the passing of time is what this is about
        assert len(runs.jobs) == before
        await report.schedules.resume("s")
        await aeventually(lambda: len(runs.jobs) >= before + 3)
        assert runs.ticks[before] - runs.ticks[before - 1] >= 200, "nothing is made up for"


async def test_what_the_code_declares_can_be_paused_and_stays_paused_in_the_next_version(
    make_app: MakeApp, runs: Runs
) -> None:
    old, new = make_app(), make_app()
    old.every(0.05, name="s")(noting(runs))
    new.every(0.06, name="s")(noting(runs))
    async with running(old):
        await aeventually(lambda: runs.jobs)
        await old.schedules.pause("s")
    async with running(new):
        await aeventually(lambda: has_interval(new, 60))
        assert (await new.schedules.get("s")).paused
        before = len(runs.jobs)
        await new.schedules.resume("s")
        await aeventually(lambda: len(runs.jobs) > before)


def noting(runs: Runs) -> Callable[[], Coroutine[Any, Any, None]]:
    """The same function in every version of the code."""

    async def sweep() -> None:
        runs.note()

    return sweep


async def has_interval(app: App, ms: int) -> bool:
    return (await app.schedules.get("s")).schedule.every_ms == ms


async def test_a_new_version_of_the_code_adds_changes_and_removes(make_app: MakeApp, runs: Runs) -> None:
    old, new = make_app(), make_app()
    for name in ("kept", "changed", "vanished"):
        old.every(60, name=name)(noting(runs))
    new.every(60, name="kept")(noting(runs))
    new.every(90, name="changed")(noting(runs))
    new.every(60, name="new")(noting(runs))
    async with running(old):
        await aeventually(lambda: has_schedules(old, ["changed", "kept", "vanished"]))
        await add(old, name="runtime", every=3600)
        async with running(new):
            await aeventually(lambda: has_schedules(new, ["changed", "kept", "new", "runtime"]))
            assert (await new.schedules.get("changed")).schedule.every_ms == 90_000
            assert (await new.schedules.get("runtime")).declared is False


async def has_schedules(app: App, wanted: list[str]) -> bool:
    return await names(app) == wanted


async def test_a_removed_schedule_runs_no_more(report: App, runs: Runs) -> None:
    async with running(report):
        await add(report)
        await aeventually(lambda: runs.jobs)
        await report.schedules.remove("s")
        await aeventually(lambda: is_quiet(runs))
        assert await names(report) == []


async def is_quiet(runs: Runs) -> bool:
    before = len(runs.jobs)
    await asyncio.sleep(0.15)  # three ticks
    return len(runs.jobs) == before


async def test_a_schedule_is_run_by_hand_paused_or_not(report: App, runs: Runs) -> None:
    async with running(report):
        before = await add(report, 7, every=3600)
        for paused in (False, True):
            result = await report.schedules.run("s")
            assert await result.get(timeout=30) == 7
            if not paused:
                await report.schedules.pause("s")
        info = await report.schedules.get("s")
    assert (info.run_count, info.last_job, info.last_status) == (2, runs.jobs[1], Status.SUCCESS)
    assert info.last_run is not None
    assert before.last_run is None
    assert len({*runs.jobs}) == 2


async def test_a_run_by_hand_is_minded_by_the_runs_that_must_not_overlap(report: App, runs: Runs) -> None:
    gate = asyncio.Event()

    @report.task(name="shop:slow")
    async def slow() -> None:
        runs.note()
        await gate.wait()

    await report.schedules.add(slow.job(), name="s", every=0.05, overlap="skip")
    await report.schedules.pause("s")
    async with running(report):
        await report.schedules.run("s")
        await aeventually(lambda: runs.jobs)
        await report.schedules.resume("s")
        await aeventually(lambda: has_skipped(report, 3))
        assert len(runs.jobs) == 1
        gate.set()
        await aeventually(lambda: len(runs.jobs) > 1)
        await report.schedules.remove("s")


async def has_skipped(app: App, number: int) -> bool:
    return (await app.schedules.get("s")).skipped >= number


async def test_two_runs_by_hand_at_the_same_moment_are_two_jobs(report: App) -> None:
    await add(report, every=3600)
    results = await asyncio.gather(*(report.schedules.run("s") for _ in range(20)))
    assert len({result.id for result in results}) == 20


async def test_an_error_about_a_missing_schedule_contains_the_nearest_name(report: App) -> None:
    await add(report, name="nightly", every=3600)
    schedules = report.schedules
    for asked in (schedules.get, schedules.pause, schedules.resume, schedules.remove, schedules.run):
        with pytest.raises(UnknownSchedule, match="'nihgtly': did you mean 'nightly'") as raised:
            await asked("nihgtly")
        assert raised.value.name == "nihgtly"


async def test_what_the_code_declares_can_only_be_changed_and_removed_there(report: App, runs: Runs) -> None:
    report.every(3600, name="s")(noting(runs))
    async with running(report):
        await aeventually(lambda: has_schedules(report, ["s"]))
        with pytest.raises(ConfigurationError, match="declared in code"):
            await add(report)
        with pytest.raises(ConfigurationError, match="declared in code"):
            await report.schedules.remove("s")
        assert (await report.schedules.get("s")).declared


async def test_what_makes_no_sense_is_refused_before_anything_is_sent(report: App) -> None:
    job = report.describe("shop:report")
    with pytest.raises(ConfigurationError, match="either a cron expression or an interval"):
        await report.schedules.add(job, name="s")
    with pytest.raises(ConfigurationError, match="five fields"):
        await report.schedules.add(job, name="s", cron="9")
    with pytest.raises(ConfigurationError, match="belongs to a single call"):
        await report.schedules.add(report.describe("shop:report", key="k"), name="s", every=60)
    assert await names(report) == []


async def test_a_schedule_that_is_over_has_no_next_run(report: App) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    info = await report.schedules.add(report.describe("shop:report"), name="s", every=60, end=past)
    assert (info.next_run, info.paused) == (None, False)


async def test_schedules_are_listed_by_name(report: App) -> None:
    for name in ("b", "c", "a"):
        await add(report, name=name, every=3600)
    assert await names(report) == ["a", "b", "c"]


async def test_thousands_of_schedules_are_listed_each_once(report: App) -> None:
    wanted = [f"s{n:04}" for n in range(1200)]
    await asyncio.gather(*(add(report, name=name, every=3600) for name in wanted))
    assert await names(report) == wanted


# What is known of it


async def test_what_a_run_has_failed_of_is_known_at_once_and_kept(report: App, runs: Runs) -> None:
    @report.task(name="shop:fail", retries=0)
    async def fail(when: int) -> None:
        runs.note()
        if len(runs.jobs) == when:
            raise ValueError("no such user")

    await report.schedules.add(fail.job(1), name="s", every=3600)
    async with running(report):
        await report.schedules.run("s")
        await aeventually(lambda: has_failed(report))
        info = await report.schedules.get("s")
        assert info.last_status is Status.DEAD
        assert info.last_error_at is not None
        assert abs(info.last_error_at - datetime.now(UTC)) < timedelta(seconds=10)
        assert info.error_count == 1
        await report.schedules.add(fail.job(1), name="s", every=0.05)
        await aeventually(lambda: len(runs.jobs) >= 4)
        assert await has_failed(report), "and it stays known"
        assert (await report.schedules.get("s")).error_count == 1
        await report.schedules.remove("s")


async def has_failed(app: App) -> bool:
    return (await app.schedules.get("s")).last_error == "ValueError: no such user"


# Ticks that were missed, by travelling in time


@pytest.mark.parametrize(
    ("catchup", "run"), [("none", 0), ("last", 1), ("all:3", 3), ("all:2", 2), ("all:1000", 3)]
)
async def test_of_three_days_without_a_worker_those_run_that_are_to_be_caught_up(
    make_app: MakeApp, runs: Runs, server_clock: ServerClock, catchup: str, run: int
) -> None:
    def version() -> App:
        app = make_app()
        app.cron("0 9 * * *", tz="Europe/Paris", name="s", catchup=catchup)(noting(runs))
        return app

    server_clock.stop_at(at("2026-03-27T20:00:00+01:00"))
    async with running(app := version()):
        await aeventually(lambda: has_schedules(app, ["s"]))
    server_clock.stop_at(at("2026-03-30T20:00:00+02:00"))
    async with running(app := version()):
        await aeventually(lambda: is_due(app, "2026-03-31T09:00:00+02:00"))
        await aeventually(lambda: len(runs.jobs) == run)
        info = await app.schedules.get("s")
    days = [at(f"2026-03-{day}T09:00:00+0{offset}:00") for day, offset in ((28, 1), (29, 2), (30, 2))]
    assert sorted(runs.ticks) == days[len(days) - run :]
    assert (info.run_count, info.skipped) == (run, 3 - run)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def is_due(app: App, text: str) -> bool:
    return (await app.schedules.get("s")).next_run == datetime.fromisoformat(text)


async def test_in_autumn_the_hour_that_comes_twice_has_its_runs_once(
    app: App, runs: Runs, server_clock: ServerClock
) -> None:
    server_clock.stop_at(at("2026-10-25T01:50:00+02:00"))
    app.cron("0,30 2 * * *", tz="Europe/Paris", name="s", catchup="all:9")(noting(runs))
    async with running(app):
        await aeventually(lambda: has_schedules(app, ["s"]))
        for _ in range(20):
            server_clock.pass_by(10 * MINUTE)
            await app.schedules.resume("s")  # wakes the executor, as its own clock would
            await aeventually(lambda: nothing_is_due(app, server_clock))
        await aeventually(lambda: len(runs.jobs) == 2)
    assert sorted(runs.ticks) == [at("2026-10-25T02:00:00+02:00"), at("2026-10-25T02:30:00+02:00")]


async def nothing_is_due(app: App, clock: ServerClock) -> bool:
    due = (await app.schedules.get("s")).next_run
    return due is not None and due.timestamp() * 1000 > clock.now()


async def test_runs_are_put_off_by_up_to_the_jitter(app: App, runs: Runs) -> None:
    app.every(0.2, jitter=0.15, name="s")(noting(runs))
    async with running(app):
        await aeventually(lambda: len(runs.jobs) >= 8)
    schedule = app.schedules.declared["s"]
    for tick, late in zip(runs.ticks, runs.late_ms, strict=True):
        assert late >= schedule.put_off(tick) - tick


# Services


SERVICE = """
from fennelq import App

app = App("shop", redis_url={url!r}, schedule_interval=0.02, heartbeat_interval=0.1)


async def work() -> None: ...


for name, every in {schedules!r}.items():
    app.task(name="shop:work")(work).every(every, name=name)

if __name__ == "__main__":
    print(app.service)
"""


class MakeService(Protocol):
    """`make_service("orders", report=60)`: the app "shop" of a module of this name, with these schedules."""

    def __call__(self, module: str, **schedules: float) -> App: ...


@pytest.fixture
def make_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> MakeService:
    monkeypatch.syspath_prepend(tmp_path)

    def make(module: str, **schedules: float) -> App:
        (tmp_path / f"{module}.py").write_text(SERVICE.format(url=redis_url, schedules=schedules))
        monkeypatch.delitem(sys.modules, module, raising=False)
        app: App = importlib.import_module(module).app
        return app

    return make


async def test_a_service_of_the_same_app_leaves_the_schedules_of_another_alone(
    make_service: MakeService,
) -> None:
    orders, mails, quiet = (
        make_service("orders", a=60, b=60),
        make_service("mails", c=60),
        make_service("quiet"),
    )
    async with orders, mails, quiet:
        for app in (orders, mails, quiet, orders):
            async with running(app):
                await aeventually(partial(has_declared, app))
        services = {info.name: info.service for info in await orders.schedules.list()}
    assert services == {"a": "orders:shop", "b": "orders:shop", "c": "mails:shop"}


async def has_declared(app: App) -> bool:
    """Whether a worker of this service has declared all it has to."""
    keys = AppKeys("shop")
    words = ["HGET", keys["cron:sources"], f"at:{app.service}"]
    return bool(await app.client.ask(Command(words, as_is)) == b"done")


async def test_of_two_services_that_declare_the_same_name_the_first_has_it(make_service: MakeService) -> None:
    orders, mails = make_service("orders", report=60), make_service("mails", report=30, other=30)
    async with orders, mails, running(orders):
        await aeventually(lambda: has_schedules(orders, ["report"]))
        with capture_logs() as logged:
            async with running(mails):
                await aeventually(
                    lambda: "schedules_of_another_service" in [line["event"] for line in logged]
                )
        report = await orders.schedules.get("report")
    assert (report.service, report.schedule.every_ms) == ("orders:shop", 60_000)
    assert report.service_seen is not None
    (line,) = [line for line in logged if line["event"] == "schedules_of_another_service"]
    assert (line["log_level"], line["schedules"]) == ("warning", {"report": "code:orders:shop"})


async def test_what_a_new_version_removes_is_named(make_service: MakeService) -> None:
    async with make_service("orders", kept=60, vanished=60) as old, running(old):
        await aeventually(lambda: has_schedules(old, ["kept", "vanished"]))
    with capture_logs() as logged:
        async with make_service("orders", kept=60) as new, running(new):
            await aeventually(lambda: has_schedules(new, ["kept"]))
    (line,) = [line for line in logged if line["event"] == "schedules_removed"]
    assert (line["log_level"], line["service"], line["schedules"]) == ("warning", "orders:shop", ["vanished"])


def test_a_service_has_the_same_name_as_a_script_and_in_a_worker(
    make_service: MakeService, tmp_path: Path
) -> None:
    imported = make_service("orders").service
    for words in (["orders.py"], ["-m", "orders"]):
        script = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert script.stdout.strip() == imported == "orders:shop"


def test_services_that_share_a_function_which_makes_their_apps_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "common.py").write_text("from fennelq import App\ndef made(): return App('shop')\n")
    for module in ("billing", "stock"):
        (tmp_path / f"{module}.py").write_text("import common\napp = common.made()\n")
    monkeypatch.syspath_prepend(tmp_path)
    services = [importlib.import_module(module).app.service for module in ("billing", "stock")]
    assert services == ["billing:shop", "stock:shop"]


def test_an_app_made_by_a_function_later_belongs_to_the_module_of_the_function() -> None:
    assert App("shop").service == f"{__name__}:shop"


# After a flush


async def test_after_a_flush_the_schedules_of_the_code_come_back_by_themselves(
    app: App, runs: Runs, server: Server
) -> None:
    app.every(0.05, name="s")(noting(runs))
    async with running(app):
        await aeventually(lambda: runs.jobs)
        server.flush()
        await aeventually(lambda: has_schedules(app, ["s"]))
        before = len(runs.jobs)
        await aeventually(lambda: len(runs.jobs) >= before + 3)


async def test_damaged_numbers_of_a_schedule_hide_no_other_schedule(app: App, server: Server) -> None:
    for name in ("a", "b", "c"):
        await app.schedules.add(app.describe("shop:report"), name=name, every=3600)
    with server.client() as client:
        for field in ("runs", "skipped", "next", "last_run", "last_error_at"):
            for damage in ("what?", "9" * 40):
                client.hset(AppKeys("shop").schedule("b"), field, damage)
                shown = await app.schedules.list()
                assert [info.name for info in shown] == ["a", "b", "c"], field
    await app.schedules.remove("b")
