"""`fennelq queue` and `fennelq info`."""

from __future__ import annotations

from fennelq import App, clock
from fennelq.broker import verbs
from fennelq.broker.keys import LANES, executors_key
from fennelq.broker.verb import Command
from fennelq.cli.exits import Exit
from tests.cli.shop import Shop


def test_list_counts_the_jobs_of_each_queue_by_place(shop: Shop) -> None:
    shop.kill(1)
    for words in (["1"], ["2", "--priority", "high"], ["3", "--delay", "1h"]):
        shop.ok("enqueue", "welcome", *words)
    assert shop.ok("queue", "list").rows == [
        ["default", "0", "0", "0", "0", "1"],
        ["mail", "2", "0", "1", "0", "0"],
    ]
    default, mail = shop.ok("queue", "list", "--json").json
    assert default["ended"]["died"] == 1
    assert mail["lanes"] == {"high": 1, "normal": 1}


def test_what_runs_is_not_counted_as_waiting(shop: Shop) -> None:
    for n in range(3):
        shop.ok("enqueue", "welcome", str(n))
    shop.do(take_two)
    assert shop.ok("queue", "list").rows[1] == ["mail", "1", "2", "0", "0", "0"]
    assert len(shop.ok("queue", "peek", "mail").rows) == 1
    assert shop.ok("queue", "purge", "mail", "--yes").out == "1 job cancelled\n"
    assert shop.ok("queue", "list").rows[1] == ["mail", "0", "2", "0", "0", "0"]
    shop.do(hand_back)
    shop.work()


async def take_two(app: App) -> None:
    """Be an executor that takes two jobs."""
    keys = app.client.keys("mail")
    await app.client.ask(
        verbs.runs.fetch(keys, consumer="me", free=2, lanes=tuple(LANES.values()), lifetimes=app.lifetimes)
    )


async def hand_back(app: App) -> None:
    """Be that executor as it stops."""
    keys = app.client.keys("mail")
    pending = await app.client.ask(verbs.executors.beat(keys, "me", 0, []))
    await app.client.ask(verbs.runs.release(keys, pending.stranded))


def test_peek_shows_what_comes_next(shop: Shop) -> None:
    ids = [
        shop.ok("enqueue", "welcome", *words).out.strip()
        for words in (["1"], ["2"], ["3", "--priority", "high"], ["4", "--delay", "1h"])
    ]
    assert [row[0] for row in shop.ok("queue", "peek", "mail").rows] == [ids[2], ids[0], ids[1]]
    assert [row[0] for row in shop.ok("queue", "peek", "mail", "-n", "1").rows] == [ids[2]]
    [later] = shop.ok("queue", "peek", "mail", "--scheduled", "--json").json
    assert (later["id"], later["arguments"], later["status"]) == (ids[3], [[4], {}], "SCHEDULED")
    assert shop.ok("queue", "peek", "mail", "--retry").rows == []
    assert shop.run("queue", "peek", "mail", "--retry", "--scheduled").code == Exit.USAGE


def test_purge_counts_first_and_needs_a_yes_in_a_pipe(shop: Shop) -> None:
    for words in (["1"], ["2"], ["3", "--delay", "1h"]):
        shop.ok("enqueue", "welcome", *words)
    assert shop.ok("queue", "purge", "mail", "--dry-run").out == "3 jobs would be cancelled\n"
    answer = shop.run("queue", "purge", "mail")
    assert answer.code == Exit.USAGE
    assert answer.err == "fennelq: Cancel 3 jobs in mail (2 waiting, 1 scheduled)? Add --yes to do it.\n"
    assert shop.ok("queue", "purge", "mail", "--yes", "--json").json == {"cancelled": 3}
    assert shop.ok("queue", "purge", "mail", "--yes").out == "0 jobs to cancel\n"
    assert shop.run("queue", "purge", "a b").code == Exit.USAGE


def test_purge_leaves_the_dead_and_other_queues_alone(shop: Shop) -> None:
    shop.kill(1)
    shop.ok("enqueue", "charge", "7")
    shop.ok("enqueue", "welcome", "1")
    shop.ok("queue", "purge", "default", "--yes")
    assert shop.ok("queue", "list").rows == [
        ["default", "0", "0", "0", "0", "1"],
        ["mail", "1", "0", "0", "0", "0"],
    ]


def test_purge_of_many_goes_on_to_the_end(shop: Shop) -> None:
    async def send(app: App) -> None:
        task = app.tasks["tasks:welcome"]
        await app.enqueue([task.job(n) for n in range(250)])

    shop.do(send)
    assert shop.ok("queue", "purge", "mail", "--yes").out == "250 jobs cancelled\n"


def test_info_shows_the_app_redis_and_the_executors(shop: Shop, redis_url: str) -> None:
    shop.ok("enqueue", "welcome", "1")
    given = shop.ok("info", "--json").json
    assert (given["app"], given["path"], given["redis"]) == ("shop", "tasks:app", redis_url)
    assert given["server"].startswith(("valkey ", "redis "))
    assert given["memory"] > 0
    assert {queue["name"]: queue["waiting"] for queue in given["queues"]} == {"default": 0, "mail": 1}
    assert given["executors"] == []
    shown = shop.ok("info").rows
    assert ["app", "shop"] in shown
    assert ["mail", "1", "0", "0", "0", "0"] in shown


WITHOUT_WORKER = "jobs wait in default, mail: no worker runs; start one with `fennelq worker`\n"


def test_jobs_that_wait_without_a_worker_are_named_below_the_table(shop: Shop) -> None:
    shop.ok("enqueue", "welcome", "1")
    shop.ok("enqueue", "charge", "1", "--delay", "1h")
    for command in (["queue", "list"], ["info"]):
        assert shop.ok(*command).err == WITHOUT_WORKER
    for queue in shop.ok("queue", "list", "--json").json:
        assert queue["waiting_because"] == ["no worker runs; start one with `fennelq worker`"]
    shop.work()
    shop.ok("queue", "purge", "default", "--yes")
    assert shop.ok("queue", "list").err == ""


def test_queues_and_tasks_that_no_worker_serves_are_named_below_the_table(shop: Shop) -> None:
    async def note(app: App) -> None:
        now = clock.wall_ms()
        old = b'[{"queue":"default","task":"tasks:charg","why":"unknown task \'tasks:charg\'"}]'
        facts = b'{"beat_ms":%d,"interval":60,"queues":["default"],"too_old_for":%b}' % (now, old)
        await app.client.ask(Command(["HSET", executors_key(app.namespace), "anna", facts], int))

    shop.ok("enqueue", "welcome", "1")
    shop.ok("enqueue", "charge", "1")
    shop.do(note)
    assert shop.ok("queue", "list").err.splitlines() == [
        "jobs wait in default: 1 of 1 executor cannot run some of them: unknown task 'tasks:charg'",
        "jobs wait in mail: no worker serves queue 'mail' (the running ones serve: default); "
        "start one with `fennelq worker -q mail`, or without -q for every queue",
    ]
    shop.work()


def test_info_distinguishes_executors_that_work_from_those_that_ended(shop: Shop) -> None:
    async def note(app: App) -> None:
        here = b'{"beat_ms":%d,"interval":1,"running":2,"concurrency":8,"stuck":1,"done":5,"queues":["mail"]}'
        names = {
            "a": here % clock.wall_ms(),
            "b": here % 1,
            "c": b'{"died":"SIGKILL","beat_ms":1}',
            "d": b"nonsense",
            "e": b'{"beat_ms":1e30,"queues":3}',
        }
        for name, facts in names.items():
            await app.client.ask(Command(["HSET", executors_key(app.namespace), name, facts], int))

    shop.do(note)
    states = {one["name"]: one["state"] for one in shop.ok("info", "--json").json["executors"]}
    assert states == {"a": "works", "b": "silent", "c": "ended: SIGKILL", "d": "silent", "e": "works"}
    [row] = [row for row in shop.ok("info").rows if row[0] == "a"]
    assert (row[1:6], row[-1]) == (["works", "2", "8", "1", "5"], "mail")
