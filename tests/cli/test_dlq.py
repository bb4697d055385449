"""`fennelq dlq`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fennelq import App
from fennelq.broker.verb import Command
from fennelq.cli.exits import Exit
from fennelq.manage.dead import dead, search
from tests.cli.shop import Shop


def count(shop: Shop) -> int:
    """How many are dead."""
    return int(shop.ok("dlq", "replay", "--dry-run", "--json").json["count"])


def test_list_prints_one_line_per_dead_job(shop: Shop) -> None:
    ids = shop.kill(2)
    rows = shop.ok("dlq", "list").rows
    assert [row[1:] for row in rows] == [
        [job, "tasks:charge", "tasks.CardRefused", f"no money for {n}"]
        for n, job in reversed(list(enumerate(ids)))
    ]
    assert shop.ok("dlq", "list", "--oldest", "-n", "1").rows[0][1] == ids[0]


def test_list_shows_that_there_is_more(shop: Shop) -> None:
    shop.kill(2)
    assert shop.ok("dlq", "list", "--limit", "1").err == "1 of 2 shown: --limit 0 lists all\n"
    assert shop.ok("dlq", "list", "--limit", "0").err == ""


def test_list_prints_json(shop: Shop) -> None:
    [job] = shop.kill(1)
    [letter] = shop.ok("dlq", "list", "--json").json
    assert (letter["id"], letter["error_type"], letter["queue"]) == (job, "tasks.CardRefused", "default")
    assert shop.ok("dlq", "list", "--queue", "mail", "--json").json == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--queue", "default"], 1),
        (["--queue", "mail"], 0),
        (["--queue", "mail", "--queue", "default"], 1),
        (["--task", "charge"], 1),
        (["--task", "tasks:welcome"], 0),
        (["--error", "CardRefused"], 1),
        (["--error", "ValueError"], 0),
        (["--since", "2h"], 1),
        (["--until", "2h"], 0),
        (["--since", "2001-01-01"], 1),
        (["--until", "2001-01-01T12:00Z"], 0),
    ],
)
def test_filters_narrow_what_is_listed(shop: Shop, words: list[str], found: int) -> None:
    shop.kill(1)
    assert len(shop.ok("dlq", "list", *words).rows) == found
    assert shop.ok("dlq", "replay", "--dry-run", "--json", *words).json["count"] == found


def test_a_filter_selects_what_is_listed_replayed_exported_and_removed(shop: Shop) -> None:
    ids = shop.kill(4)
    where = '"money for 2" task:charge'
    assert [row[1] for row in shop.ok("dlq", "list", "--where", where).rows] == [ids[2]]
    assert shop.ok("dlq", "list", "--group", "--where", where, "--json").json[0]["jobs"] == 1
    assert json.loads(shop.ok("dlq", "export", "--where", where).out)["id"] == ids[2]
    assert shop.ok("dlq", "replay", "--where", f"id:{ids[0]}").out == "1 dead job replayed\n"
    assert shop.ok("dlq", "purge", "--where", where, "--yes").out == "1 dead job removed\n"
    assert [row[1] for row in shop.ok("dlq", "list", "--oldest").rows] == [ids[1], ids[3]]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--where", "taks:charge"], Exit.USAGE, "unknown filter word 'taks': did you mean 'task'?"),
        (["--where", "state:waiting"], Exit.USAGE, "state:waiting selects no dead job"),
        (["--where", "since:2099-01-01"], Exit.USAGE, "is in the future"),
        (["--since", "2099-01-01"], Exit.USAGE, "'2099-01-01' is in the future: write a time before now"),
        (["--where", "card.*"], Exit.USAGE, "looks like a pattern"),
        (["--where", "queue:mial"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["--where", "mial:unknown"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["mial:unknown"], Exit.NOT_FOUND, "queue 'mial' does not exist: did you mean 'mail'?"),
        (["--where", "  "], Exit.USAGE, "an empty filter selects every dead job"),
        (["--where", "", "--all"], Exit.USAGE, "an empty filter selects every dead job"),
        (["--since", "1h", "--until", "2h"], Exit.USAGE, "since is later than until: no job"),
        (["--since", "1h", "--where", "until:2h"], Exit.USAGE, "since is later than until: no job"),
    ],
)
def test_a_wrong_selection_removes_nothing(shop: Shop, words: list[str], code: Exit, sentence: str) -> None:
    shop.kill(2)
    answer = shop.run("dlq", "purge", *words, "--yes")
    assert answer.code == code
    assert sentence in " ".join(answer.err.replace("│", " ").split())
    assert count(shop) == 2


@pytest.mark.audit(skip="a key is damaged")
def test_a_damaged_queue_does_not_stop_the_others_and_is_named(shop: Shop) -> None:
    ids = shop.kill(2)

    async def damage(app: App) -> None:
        await app.client.ask(Command(["SADD", "fq:{shop}:queues", "mail"], int))
        await app.client.ask(Command(["SET", app.client.keys("mail")["dlq"], "what?"], bool))

    shop.do(damage)
    assert [row[1] for row in shop.ok("dlq", "list", "--oldest").rows] == ids
    assert [row[0] for row in shop.ok("dlq", "list", "--group").rows] == ["2"]
    for words, out in (
        (["replay", ids[0]], "1 dead job replayed\n"),
        (["replay", "--dry-run", "--json"], None),
        (["purge", "--all", "--dry-run"], "1 dead job would be removed\n"),
        (["purge", "--all", "--yes"], "1 dead job removed\n"),
        (["purge", "--all", "--yes"], "0 dead jobs to remove\n"),
    ):
        answer = shop.run("dlq", *words)
        if words == ["replay", ids[0]]:
            assert (answer.code, answer.err) == (0, "")
        else:
            assert answer.code == Exit.FAILED
            assert "not all dead jobs are counted" in answer.err
            assert "has a problem with queue 'mail'" in answer.err
        assert out is None or answer.out == out
    assert shop.run("dlq", "list", "--queue", "mail").code == Exit.CONFIGURATION


@pytest.mark.parametrize("when", ["yesterday", "2h30", "-3h", "99999999999999d", "2026-13-01", ""])
def test_a_time_that_cannot_be_read_is_a_usage_error(shop: Shop, when: str) -> None:
    answer = shop.run("dlq", "list", f"--since={when}")
    assert answer.code == Exit.USAGE
    assert "Traceback" not in answer.err


def fingerprint_of_charge(shop: Shop) -> str:
    """Of the jobs that `shop.kill` kills."""
    (group,) = shop.ok("dlq", "list", "--group", "--json").json
    return str(group["fingerprint"])


def test_groups_are_listed_with_their_numbers_the_largest_first(shop: Shop) -> None:
    shop.kill(3)
    shop.ok("enqueue", "shout")
    shop.work()
    (charges, shouts) = shop.ok("dlq", "list", "--group").rows
    assert (charges[0], charges[2:4], charges[5]) == (
        "3",
        ["tasks:charge", "tasks.CardRefused"],
        "no money for 0",
    )
    assert (shouts[0], shouts[2:4]) == ("1", ["tasks:shout", "ValueError"])
    assert r"\x1b[2Jlook" in shouts[5]


def test_groups_as_json_have_the_first_and_the_newest_death(shop: Shop) -> None:
    shop.kill(2)
    (group,) = shop.ok("dlq", "list", "--group", "--json").json
    assert group.keys() == {
        "fingerprint",
        "task",
        "error_type",
        "reason",
        "message",
        "jobs",
        "first",
        "newest",
    }
    letters = shop.ok("dlq", "list", "--oldest", "--json").json
    assert (group["first"], group["newest"]) == (letters[0]["died_at"], letters[1]["died_at"])
    assert (group["jobs"], group["fingerprint"]) == (2, letters[0]["fingerprint"])


def test_groups_can_be_filtered_and_limited(shop: Shop) -> None:
    shop.kill(2)
    shop.ok("enqueue", "shout")
    shop.work()
    assert [row[0] for row in shop.ok("dlq", "list", "--group", "--task", "shout").rows] == ["1"]
    assert shop.ok("dlq", "list", "--group", "--queue", "mail").rows == []
    answer = shop.ok("dlq", "list", "--group", "-n", "1")
    assert (len(answer.rows), answer.err) == (1, "1 of 2 groups shown: --limit 0 lists all\n")
    assert shop.run("dlq", "list", "--group", "--queue", "nosuch").code == Exit.NOT_FOUND
    assert shop.run("dlq", "list", "--group", "--oldest").code == Exit.USAGE


def test_a_fingerprint_selects_the_jobs_of_a_group(shop: Shop) -> None:
    shop.kill(2)
    fingerprint = fingerprint_of_charge(shop)
    shop.ok("enqueue", "shout")
    shop.work()
    for word in (fingerprint, fingerprint.upper()):
        assert len(shop.ok("dlq", "list", "--fingerprint", word).rows) == 2
    assert shop.ok("dlq", "replay", "--fingerprint", "0000beef").out == "0 dead jobs to replay\n"
    plan = shop.ok("dlq", "replay", "--dry-run", "--fingerprint", fingerprint, "--json").json
    assert plan["count"] == 2
    assert shop.ok("dlq", "purge", "--fingerprint", fingerprint, "--yes").out == "2 dead jobs removed\n"
    assert [row[2] for row in shop.ok("dlq", "list").rows] == ["tasks:shout"]


@pytest.mark.parametrize("text", ["beef", "0000beefx", "xyz", "", "0000beef 0000beef", "\x1b[2J"])
def test_what_is_no_fingerprint_is_a_usage_error(shop: Shop, text: str) -> None:
    answer = shop.run("dlq", "list", "--fingerprint", text)
    assert answer.code == Exit.USAGE
    assert "8 hexadecimal digits" in " ".join(answer.err.replace("│", " ").split())
    assert "\x1b[2J" not in answer.err


def test_show_names_the_group_and_how_many_others_are_like_it(shop: Shop) -> None:
    first, *_ = shop.kill(3)
    facts = shop.ok("dlq", "show", first, "--json").json
    assert (facts["fingerprint"], facts["others_like_it"]) == (fingerprint_of_charge(shop), 2)
    assert f"fingerprint\t{facts['fingerprint']}\n" in shop.ok("dlq", "show", first).out


def test_show_prints_everything(shop: Shop) -> None:
    [job] = shop.kill(1)
    shown = shop.ok("dlq", "show", job).out
    assert "CardRefused: no money for 0" in shown
    assert "Traceback" in shown
    assert "arguments\t[[0],{}]" in shown
    facts = shop.ok("dlq", "show", job, "--json").json
    assert (facts["id"], facts["tries"], facts["arguments"]) == (job, 1, [[0], {}])


def test_show_of_a_job_that_is_not_dead_prints_its_status(shop: Shop) -> None:
    waiting = shop.ok("enqueue", "welcome", "1").out.strip()
    answer = shop.run("dlq", "show", waiting)
    assert (answer.code, answer.err) == (Exit.NOT_FOUND, f"fennelq: {waiting} is not dead: it is SENT\n")
    assert shop.run("dlq", "show", "mail:unknown").code == Exit.NOT_FOUND
    assert shop.run("dlq", "show", "no-id").code == Exit.USAGE


def test_replay_without_a_filter_goes_ahead_in_a_pipe(shop: Shop) -> None:
    ids = shop.kill(2)
    assert shop.ok("dlq", "replay").out == "2 dead jobs replayed\n"
    assert [shop.ok("job", "show", job, "--json").json["status"] for job in ids] == ["SENT", "SENT"]
    assert shop.ok("dlq", "replay").out == "0 dead jobs to replay\n"


def test_replay_with_an_empty_filter_replays_nothing(shop: Shop) -> None:
    """A shell makes `--where "$FILTER"` empty when the variable is not set."""
    ids = shop.kill(2)
    for words in (["--where", ""], ["--where", " ", "--yes"]):
        answer = shop.run("dlq", "replay", *words)
        assert answer.code == Exit.USAGE
        assert "an empty filter selects every dead job: write one, or leave out --where" in answer.err
    assert len(shop.ok("dlq", "list").rows) == len(ids)


def test_replay_takes_ids_and_filters(shop: Shop) -> None:
    first, second, third = shop.kill(3)
    assert shop.ok("dlq", "replay", second, "--json").json == {
        "replayed": 1,
        "key_taken": 0,
        "gone": 0,
        "broken": 0,
        "skipped": 0,
        "died_anew": 0,
        "stopped": "",
    }
    assert shop.ok("dlq", "replay", "--limit", "1", "--rate", "50").out == "1 dead job replayed\n"
    assert [row[1] for row in shop.ok("dlq", "list").rows] == [third]
    assert shop.ok("job", "show", first, "--json").json["replays"] == 1


def test_a_dry_run_only_counts(shop: Shop) -> None:
    shop.kill(2)
    assert shop.ok("dlq", "replay", "--dry-run").out.startswith("2 dead jobs would be replayed\n")
    assert shop.ok("dlq", "purge", "--dry-run", "--limit", "1").out == "1 dead job would be removed\n"
    assert count(shop) == 2


@pytest.mark.audit(skip="a record was robbed of its arguments")
def test_jobs_that_could_not_be_replayed_are_listed_and_the_command_fails(shop: Shop) -> None:
    [job] = shop.kill(1)

    async def rob(app: App) -> None:
        record = app.client.keys("default").record(job.partition(":")[2])
        await app.client.broker.ask(Command(["HDEL", record, "a"], int))

    shop.do(rob)
    answer = shop.run("dlq", "replay")
    assert answer.code == Exit.FAILED
    assert answer.out == "0 dead jobs replayed; 1 still dead, because their records cannot be read\n"


def test_purge_needs_a_yes_in_a_pipe(shop: Shop) -> None:
    shop.kill(2)
    answer = shop.run("dlq", "purge", "--error", "CardRefused")
    assert answer.code == Exit.USAGE
    assert answer.err == "fennelq: Remove 2 dead jobs for good? Add --yes to do it.\n"
    assert count(shop) == 2
    assert shop.ok("dlq", "purge", "--error", "CardRefused", "--yes").out == "2 dead jobs removed\n"
    assert shop.ok("dlq", "purge", "--all", "--yes", "--json").json == {"count": 0}


def test_purge_without_a_filter_is_refused(shop: Shop) -> None:
    shop.kill(2)
    for words in ([], ["--yes"], ["--limit", "1", "--yes"]):
        answer = shop.run("dlq", "purge", *words)
        assert (answer.code, answer.out) == (Exit.USAGE, "")
        assert answer.err.startswith(
            "fennelq: this removes every dead job of the app: select jobs by their ids"
        )
    assert count(shop) == 2
    assert (
        shop.run("dlq", "purge", "--all").err == "fennelq: Remove 2 dead jobs for good? Add --yes to do it.\n"
    )
    assert shop.ok("dlq", "purge", "--all", "--yes").out == "2 dead jobs removed\n"
    assert shop.ok("dlq", "purge", "--queue", "default", "--yes").out == "0 dead jobs to remove\n"


def test_purge_of_one_leaves_the_others(shop: Shop) -> None:
    first, second = shop.kill(2)
    assert shop.ok("dlq", "purge", first, "--yes", "--json").json == {"removed": 1}
    assert [row[1] for row in shop.ok("dlq", "list").rows] == [second]
    assert shop.run("job", "show", first).code == Exit.NOT_FOUND


def test_export_writes_a_line_of_json_per_dead_job(shop: Shop, tmp_path: Path) -> None:
    ids = shop.kill(3)
    lines = [json.loads(line) for line in shop.ok("dlq", "export").out.splitlines()]
    assert [line["id"] for line in lines] == ids
    assert [line["arguments"] for line in lines] == [[[n], {}] for n in range(3)]
    assert all("CardRefused" in line["traceback"] for line in lines)
    file = tmp_path / "dead.jsonl"
    answer = shop.ok("dlq", "export", "--limit", "2", "--output", str(file))
    assert (answer.out, answer.err) == ("", f"2 dead jobs written to {file}\n")
    assert len(file.read_text().splitlines()) == 2


def test_an_export_that_cannot_be_written_is_a_sentence(shop: Shop) -> None:
    answer = shop.run("dlq", "export", "--output", "/nowhere/dead.jsonl")
    assert (answer.code, answer.err) == (
        Exit.FAILED,
        "fennelq: /nowhere/dead.jsonl cannot be written: No such file or directory\n",
    )


def test_the_message_of_an_error_cannot_control_the_terminal(shop: Shop) -> None:
    job = shop.ok("enqueue", "shout").out.strip()
    shop.work()
    for words in (["list"], ["show", job], ["export"]):
        out = shop.ok("dlq", *words).out
        assert "\x1b" not in out
        assert "\t" not in out.splitlines()[0].replace("\t", "", 5)
    assert shop.ok("dlq", "list").rows[0][-1] == r"\x1b[2Jlook\tat\nme"


def test_a_long_list_goes_page_by_page(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.kill(5)
    monkeypatch.setattr(search, "PAGE", 2)
    monkeypatch.setattr(dead, "MOST_JOBS", 2)
    assert len(shop.ok("dlq", "list", "-n", "0").rows) == 5
    assert len(shop.ok("dlq", "export").rows) == 5
    assert shop.ok("dlq", "replay").out == "5 dead jobs replayed\n"
