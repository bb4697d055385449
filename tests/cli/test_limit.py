"""`fennelq limit`, and what the other commands show of jobs in lines."""

from __future__ import annotations

import pytest

from fennelq.broker.keys import queue_keys
from fennelq.cli.exits import Exit
from tests.cli.shop import TASKS, Shop
from tests.cli.test_lists import on_terminal
from tests.cli.test_queue import hand_back
from tests.cli.test_queue import take_two as take_the_lane
from tests.kit.server import Server

LIMITED = """
from fennelq import Limit, Rate

@app.task(queue="mail", concurrency=Limit(1, key="account_id", name="account"))
async def sync(account_id: int) -> int:
    return account_id

@app.task(queue="mail", rate_limit=Rate("10/s", burst=5))
async def send() -> None: ...
"""


@pytest.fixture
def limited(shop: Shop) -> Shop:
    """The project with two limited tasks in the queue `mail`, and three jobs of the account 7."""
    (shop.folder / "tasks.py").write_text(TASKS + LIMITED)
    for _ in range(3):
        shop.ok("enqueue", "sync", "7")
    return shop


def test_list_shows_the_numbers_of_the_code_what_was_set_and_what_waits(limited: Shop) -> None:
    assert limited.ok("limit", "list").rows == [
        ["mail", "account", "concurrency", "1", "", "2", "1", "tasks:sync"],
        ["mail", "tasks:send", "rate", "10/s, burst 5", "", "0", "0", "tasks:send"],
    ]
    limited.ok("limit", "set", "account", "3", "--queue", "mail")
    assert limited.ok("limit", "list", "-q", "mail").rows[0][3:5] == ["1", "3"]
    account, _ = limited.ok("limit", "list", "--json").json
    assert account == {
        "name": "account",
        "queue": "mail",
        "kind": "concurrency",
        "code": "1",
        "changed": "3",
        "tasks": ["tasks:sync"],
        "gates": 1,
        "waiting": 2,
        "problem": "",
    }
    assert limited.ok("limit", "list", "-q", "default").rows == []
    limited.work()


def test_set_and_reset_say_what_counts_now(limited: Shop) -> None:
    answer = limited.ok("limit", "set", "account", "3", "--queue", "mail")
    assert answer.out == "concurrency account in mail: 3; the code says 1\n"
    answer = limited.ok("limit", "set", "send", "50/s", "-q", "mail")
    assert answer.out == "rate tasks:send in mail: 50/s, burst 5; the code says 10/s, burst 5\n"
    assert (
        limited.ok("limit", "set", "send", "50/s", "-q", "mail", "--burst", "1", "--json").json["changed"]
        == "50/s"
    )
    assert limited.ok("limit", "reset", "account", "-q", "mail").out == "concurrency account in mail: 1\n"
    again = limited.ok("limit", "reset", "account", "-q", "mail")
    assert (again.out, again.err) == ("", "nothing was set for account in mail\n")
    assert [one["changed"] for one in limited.ok("limit", "reset", "send", "-q", "mail", "--json").json] == [
        None
    ]
    limited.work()


def test_what_cannot_be_set_is_refused_with_an_exit_code_and_advice(limited: Shop) -> None:
    unknown = "queue 'mail' has no limit 'acount': did you mean 'account'?"
    no_queue = "queue 'mial' does not exist: did you mean 'mail'?"
    for words, code, error in [
        ("set acount 3 -q mail", Exit.NOT_FOUND, unknown),
        ("reset acount -q mail", Exit.NOT_FOUND, unknown),
        ("set account 3 -q mial", Exit.NOT_FOUND, no_queue),
        ("list -q mial", Exit.NOT_FOUND, no_queue),
        (
            "set acount 3",
            Exit.NOT_FOUND,
            "no task has a limit 'acount': did you mean 'account'? For one that only ",
        ),
        (
            "reset acount",
            Exit.NOT_FOUND,
            "no task has a limit 'acount': did you mean 'account'? For one that only ",
        ),
        ("set account 3 -q default", Exit.NOT_FOUND, "queue 'default' has no limit 'account'"),
        ("set account 0 -q mail", Exit.CONFIGURATION, "Limit(0): use a whole number from 1 to 1000000. "),
        (
            "set account 5/s -q mail",
            Exit.CONFIGURATION,
            "limit 'account' of queue 'mail' counts running jobs: write a number, like 3\n",
        ),
        (
            "set send 5",
            Exit.CONFIGURATION,
            "limit 'send' of queue 'mail' counts how many jobs start per second: write a rate, like 50/s\n",
        ),
    ]:
        answer = limited.run("limit", *words.split())
        assert answer.code == code
        assert answer.err.startswith(f"fennelq: {error}")
    limited.work()


def test_without_queue_the_limit_is_that_of_the_tasks_that_have_it(limited: Shop) -> None:
    answer = limited.ok("limit", "set", "sync", "3")
    assert answer.out == "concurrency account in mail: 3; the code says 1\n"
    assert limited.ok("limit", "reset", "account").out == "concurrency account in mail: 1\n"
    limited.ok("queue", "purge", "mail", "--yes")


def test_a_limit_of_two_queues_needs_the_name_of_one(shop: Shop) -> None:
    each = 'concurrency=Limit(1, name="crm", per_queue=True)'
    tasks = "".join(f'@app.task(queue="{queue}", {each})\nasync def in_{queue}(): ...\n' for queue in "ab")
    (shop.folder / "tasks.py").write_text(f"{TASKS}\nfrom fennelq import Limit\n{tasks}")
    for words in ("set crm 3", "reset crm"):
        answer = shop.run("limit", *words.split())
        assert (answer.code, answer.err) == (
            Exit.USAGE,
            "fennelq: queues a, b have a limit 'crm': add --queue with one of them\n",
        )
    assert shop.ok("limit", "set", "in_b", "3").out == "concurrency crm in b: 3; the code says 1\n"


def test_a_queue_whose_jobs_are_all_in_lines_is_not_shown_as_empty(limited: Shop) -> None:
    assert on_terminal(limited, 80, "queue", "peek", "mail", "--retry") == [
        "No jobs between two tries in mail."
    ]
    limited.do(take_the_lane)
    assert on_terminal(limited, 80, "queue", "peek", "mail") == [
        "No jobs waiting in mail, but 2 in lines (add --lines)."
    ]
    limited.do(hand_back)
    limited.ok("queue", "purge", "mail", "--yes")


def test_jobs_in_lines_are_shown_and_purged(limited: Shop) -> None:
    assert limited.ok("queue", "list").rows == [
        ["default", "0", "0", "0", "0", "0", "0", "0"],
        ["mail", "1", "0", "0", "0", "0", "2", "1"],
    ]
    found = [row[0] for row in limited.ok("queue", "peek", "mail", "--lines").rows]
    assert len(found) == 2
    assert limited.run("queue", "peek", "mail", "--lines", "--retry").code == Exit.USAGE
    assert limited.ok("job", "show", found[0], "--json").json["place"] == "line"
    assert limited.ok("job", "cancel", "-q", "mail", "--dry-run").out == "3 jobs would be cancelled\n"
    answer = limited.run("queue", "purge", "mail")
    assert answer.err == "fennelq: Cancel 3 jobs in mail (1 waiting, 2 in lines)? Add --yes to do it.\n"
    assert limited.ok("queue", "purge", "mail", "--yes").out == "3 jobs cancelled\n"
    assert limited.ok("queue", "list").rows[1] == ["mail", "0", "0", "0", "0", "0"]


def test_list_fits_into_a_narrow_and_a_wide_terminal(limited: Shop) -> None:
    assert on_terminal(limited, 60, "limit", "list") == [
        "QUEUE  LIMIT       CODE           SET  IN LINES  TASKS",
        "mail   account     1                          2  tasks:sync",
        "mail   tasks:send  10/s, burst 5              0  tasks:send",
        "Not shown in 60 columns: kind, gates.",
    ]
    assert on_terminal(limited, 120, "limit", "list") == [
        "QUEUE  LIMIT       KIND         CODE           SET  IN LINES  GATES  TASKS",
        "mail   account     concurrency  1                          2      1  tasks:sync",
        "mail   tasks:send  rate         10/s, burst 5              0      0  tasks:send",
    ]
    assert on_terminal(limited, 60, "queue", "list") == [
        "QUEUE    WAITING  RUNNING  SCHEDULED  RETRY  DEAD  IN LINES",
        "default        0        0          0      0     0         0",
        "mail           1        0          0      0     0         2",
        "Not shown in 60 columns: lines.",
    ]
    limited.work()


@pytest.mark.audit(skip="a key is of a wrong type")
def test_a_queue_that_cannot_be_read_hides_the_limits_of_no_other(shop: Shop, server: Server) -> None:
    (shop.folder / "tasks.py").write_text(
        TASKS + LIMITED + "@app.task(concurrency=Limit(2))\nasync def report() -> None: ...\n"
    )
    for words in (["report"], ["sync", "7"]):
        shop.ok("enqueue", *words)
    with server.client() as client:
        client.set(queue_keys("shop", "mail")["limits"], "mine")
    answer = shop.ok("limit", "list")
    assert answer.rows == [
        ["default", "tasks:report", "concurrency", "2", "", "0", "0", "tasks:report"],
        ["mail", "account", "concurrency", "1", "?", "?", "?", "tasks:sync"],
        ["mail", "tasks:send", "rate", "10/s, burst 5", "?", "?", "?", "tasks:send"],
    ]
    assert answer.err.count("has a problem with queue 'mail': it has a key of a wrong type (WRONGTYPE") == 1
    report, account, _ = shop.ok("limit", "list", "--json").json
    assert (report["problem"], "WRONGTYPE" in account["problem"]) == ("", True)


@pytest.mark.audit(skip="a key is of a wrong type")
def test_a_command_that_meets_a_damaged_key_ends_with_a_sentence(limited: Shop, server: Server) -> None:
    with server.client() as client:
        client.set(queue_keys("shop", "mail")["limits"], "mine")
        client.hset(queue_keys("shop", "mail")["paused"], "who", "me")
    for words in ("limit set account 3", "queue pause mail", "queue resume mail"):
        answer = limited.run(*words.split())
        assert (answer.code, answer.out) == (Exit.CONFIGURATION, "")
        assert answer.err.startswith("fennelq: Redis at redis://")
        assert "has a key of a wrong type (WRONGTYPE" in answer.err
        assert "`fennelq queue list` and `fennelq info` name such a key" in answer.err
