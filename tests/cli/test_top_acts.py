"""The keys of `fennelq top` that change something: they count, ask, act, and are recorded like the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App, InvalidFilter, Status
from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.top.acts import Answer, Going, Question, cancel, replay_group
from fennelq.cli.top.rows import Subject
from fennelq.manage.dead.dead import DeadLetters
from tests.cli.screens import Person, before_the_screen
from tests.cli.screens import quick as quick
from tests.cli.test_audit import HERE
from tests.cli.test_top import SECRET, Fleet
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

pytestmark = [pytest.mark.audit(unfinished=True), pytest.mark.usefixtures("quick")]


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(redis_url)
    with capture_logs():
        async with fleet.app, running(fleet.app):
            await fleet.fill()
            yield fleet
            fleet.release.set()


@pytest.fixture
async def one(fleet: Fleet) -> AsyncIterator[Person]:
    async with before_the_screen(fleet.app) as person:
        yield person


async def recorded(app: App) -> dict[str, Any]:
    """The latest operation, without what differs from run to run."""
    (entry,) = await app.audit.list(limit=1)
    assert (entry.who, entry.via) == (HERE, "top")
    names = ("what", "target", "filter", "planned", "done", "state", "outcome", "before", "after")
    return {name: value for name in names if (value := getattr(entry, name)) not in ("", None)}


async def at_queue(one: Person, queue: str) -> None:
    """Move the cursor to a queue."""
    await one.press("2")
    await one.sees("QUEUE", "cards", "images", "1 of 3")
    if queue == "images":
        await one.press("down")
        await one.sees("2 of 3")


async def test_a_queue_is_paused_with_a_side_and_a_reason(one: Person, fleet: Fleet) -> None:
    await at_queue(one, "images")
    await one.press("p")
    await one.sees("Pause queue images?", "Running jobs go on")
    await one.press("shift+tab", "down", "enter", "tab")
    await one.type("disk")
    await one.press("enter")
    await one.sees("images: consuming is paused since ")
    pause = (await fleet.app.queues.info("images")).paused
    assert pause is not None
    assert (pause.what, pause.why, pause.who) == ("consuming", "disk", HERE)
    assert await recorded(fleet.app) == {
        "what": "queue pause",
        "target": "images",
        "filter": "--only consume --why disk",
        "state": "done",
        "before": "not paused",
        "after": "consuming paused",
    }


async def test_a_queue_is_resumed_after_a_yes_and_not_after_a_no(one: Person, fleet: Fleet) -> None:
    await at_queue(one, "cards")
    await one.press("r")
    await one.sees("Resume queue cards?", "the bank is closed")
    await one.press("n")
    await one.sees_no("Resume queue")
    assert (await fleet.app.queues.info("cards")).paused is not None
    await one.press("r")
    await one.sees("Resume queue cards?")
    await one.press("y")
    await one.sees("cards resumed")
    assert (await fleet.app.queues.info("cards")).paused is None
    entry = await recorded(fleet.app)
    assert (entry["what"], entry["before"], entry["after"]) == (
        "queue resume",
        "consuming paused",
        "not paused",
    )
    await one.press("r")
    await one.sees("cards is not paused")


async def test_a_running_job_is_asked_to_stop(one: Person, fleet: Fleet) -> None:
    await one.press("3")
    await one.sees("images:run0")
    await one.press("c")
    text = await one.sees("Cancel job images:run", "It runs: it is asked to stop.", "[redacted]")
    assert SECRET not in text
    job = "images:run0" if "Cancel job images:run0" in text else "images:run1"
    await one.press("y")
    await one.sees(f"{job}: cancelled")
    info = await fleet.app.client.info(job)
    assert info is not None
    assert info.status is Status.CANCELLED
    assert await recorded(fleet.app) == {
        "what": "job cancel",
        "target": job,
        "planned": 1,
        "done": 1,
        "state": "done",
    }


async def test_all_jobs_that_a_filter_finds_are_cancelled_as_one_operation(one: Person, fleet: Fleet) -> None:
    await at_queue(one, "cards")
    await one.press("enter")
    await one.sees("cards:later")
    await one.press("C")
    text = await one.sees("Cancel 3 jobs?", "cards:wait0", "Filter: ", "[redacted]")
    assert SECRET not in text
    await one.press("y")
    await one.sees("3 jobs cancelled or asked to stop")
    (operation,) = await fleet.app.operations.list()
    assert (operation.done, operation.state, operation.total) == (3, "done", 3)
    assert await recorded(fleet.app) == {
        "what": "job cancel",
        "filter": "--where queue:cards",
        "planned": 3,
        "done": 3,
        "state": "done",
        "outcome": f"operation {operation.id} done",
    }
    assert (await fleet.app.queues.info("cards")).waiting == 0


async def test_a_group_of_dead_jobs_is_replayed_and_later_deaths_are_left(one: Person, fleet: Fleet) -> None:
    await one.press("4")
    await one.sees("shop:charge")
    await one.press("R")
    text = await one.sees("Replay 3 dead jobs of shop:charge?", "3 can go back.", "cards:dead0")
    assert SECRET not in text
    await one.press("y")
    await one.sees("3 dead jobs replayed")
    (group,) = {letter.fingerprint for letter in await fleet.app.dlq.list()} or {""}
    assert group == "", "they wait in their queue, which is paused"
    entry = await recorded(fleet.app)
    assert entry["filter"].startswith("--fingerprint ")
    del entry["filter"]
    assert entry == {"what": "dlq replay", "planned": 3, "done": 3, "state": "done", "outcome": "replayed"}


async def test_one_dead_job_is_replayed(one: Person, fleet: Fleet) -> None:
    await one.press("4", "enter")
    await one.sees("cards:dead2")
    await one.press("enter")
    await one.sees("It died after 1 try")
    await one.press("R")
    await one.sees("Replay job cards:dead2?", "ValueError: [red]no money")
    await one.press("y")
    await one.sees("cards:dead2: replayed", "waits")
    assert {letter.id for letter in await fleet.app.dlq.list()} == {"cards:dead0", "cards:dead1"}
    assert await recorded(fleet.app) == {
        "what": "job retry",
        "target": "cards:dead2",
        "planned": 1,
        "done": 1,
        "state": "done",
    }


async def test_a_key_for_which_nothing_is_at_the_cursor_does_nothing(one: Person, fleet: Fleet) -> None:
    await one.press("4")
    await one.sees("shop:charge")
    for key in ("p", "r", "c", "C"):
        await one.press(key)
    assert len(one.top.screen_stack) == 1
    assert await fleet.app.audit.list(limit=1) == []


async def test_a_question_about_a_job_that_is_gone_is_an_answer(one: Person, fleet: Fleet) -> None:
    await one.press("3")
    await one.sees("images:run0", "images:run1")
    fleet.release.set()
    await aeventually(lambda: ended(fleet.app, "images:run0", "images:run1"))
    subject = Subject(queue="images", job="images:run0", state="running")
    assert await cancel(fleet.app, subject) == "images:run0 cannot be cancelled: it is SUCCESS"


async def ended(app: App, *jobs: str) -> bool:
    infos = [await app.client.info(job) for job in jobs]
    return all(info is not None and info.status.ended for info in infos)


async def test_a_replay_that_is_stopped_says_how_far_it_came_and_is_recorded(fleet: Fleet) -> None:
    (group,) = await fleet.app.dlq.groups()
    question = await replay_group(fleet.app, Subject(group=group.fingerprint, task=group.task))
    assert isinstance(question, Question)
    going = Going(question.jobs + 1, lambda _: None)  # as if more were left when it is stopped
    going.stop()
    with pytest.raises(Interrupted, match="Stopped after 3 of 4 jobs"):
        await question.do(fleet.app, Answer(), going)
    entry = await recorded(fleet.app)
    assert (entry["what"], entry["state"], entry["outcome"]) == (
        "dlq replay",
        "interrupted",
        "Stopped after 3 of 4 jobs",
    )


async def test_the_jobs_without_a_group_of_their_own_are_not_replayed_together(fleet: Fleet) -> None:
    with pytest.raises(InvalidFilter, match="stands for jobs of many causes"):
        await replay_group(fleet.app, Subject(group="other"))


async def test_an_act_that_ctrl_c_interrupts_is_recorded_as_interrupted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def replay(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(DeadLetters, "replay", replay)
    async with before_the_screen(fleet.app) as one:
        await one.press("4")
        await one.sees("shop:charge", "1 of 1")
        await one.press("R")
        await one.sees("3 can go back.")
        await one.press("y")
        await begun.wait()
        await one.press("ctrl+c")
    entry = await recorded(fleet.app)
    assert (entry["what"], entry["state"], entry["planned"]) == ("dlq replay", "interrupted", 3)
    assert one.top.return_value == Exit.INTERRUPTED


async def test_an_act_that_redis_refuses_is_a_sentence_and_the_screen_goes_on(
    fleet: Fleet, server: Server
) -> None:
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "viewer", "on", ">pw", "resetkeys", "%R~fq:{shop*"),
            *("+@read", "+@connection", "+time", "+info", "+evalsha_ro", "+eval_ro"),
        )
        app = LocalApp("shop", redis_url=server.url.replace("redis://", "redis://viewer:pw@"))
        try:
            async with app, before_the_screen(app) as one:
                await at_queue(one, "cards")
                await one.press("r")
                await one.sees("Resume queue cards?")
                await one.press("y")
                await one.sees("permission", "QUEUE")
        finally:
            client.execute_command("ACL", "DELUSER", "viewer")
    assert (await fleet.app.queues.info("cards")).paused is not None
