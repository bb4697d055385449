"""What does not exist exits with 3, and the sentence names the nearest that does."""

from __future__ import annotations

import pytest

from fennelq.cli.exits import Exit, code_of
from fennelq.errors import InvalidJobId
from tests.cli.shop import Shop


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "peek", "mial"],
        ["queue", "running", "mial"],
        ["queue", "purge", "mial", "--yes"],
        ["dlq", "list", "--queue", "mial"],
        ["dlq", "replay", "--queue", "default", "--queue", "mial"],
        ["dlq", "purge", "--queue", "mial", "--yes"],
        ["dlq", "export", "--queue", "mial"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["", "json"])
def test_a_queue_that_does_not_exist(shop: Shop, words: list[str], json: list[str]) -> None:
    sentence = "fennelq: queue 'mial' does not exist: did you mean 'mail'?\n"
    assert shop.run(*words, *json) == (Exit.NOT_FOUND, "", sentence)


def test_a_queue_exists_once_a_job_was_sent_to_it(shop: Shop) -> None:
    assert (
        shop.run("queue", "peek", "new").err == "fennelq: queue 'new' does not exist; known: default, mail\n"
    )
    shop.ok("enqueue", "welcome", "1", "--queue", "new")
    assert len(shop.ok("queue", "peek", "new").rows) == 1


@pytest.mark.parametrize(("task", "nearest"), [("welcom", "welcome"), ("task:welcome", "tasks:welcome")])
@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["job", "cancel"], "0 jobs to cancel\n"),
        (["dlq", "replay"], "0 dead jobs to replay\n"),
        (["dlq", "purge"], "0 dead jobs to remove\n"),
    ],
    ids=["cancel", "replay", "purge"],
)
def test_a_task_that_the_app_does_not_have_is_named_when_no_job_matches(
    shop: Shop, words: list[str], out: str, task: str, nearest: str
) -> None:
    sentence = f"fennelq: the app has no task {task!r}: did you mean {nearest!r}?\n"
    assert shop.run(*words, "--task", task, "--yes") == (Exit.OK, out, sentence)
    assert shop.run(*words, "--task", nearest, "--yes") == (Exit.OK, out, "")


@pytest.mark.parametrize("words", [["job", "show"], ["job", "wait"], ["dlq", "show"]], ids=" ".join)
def test_a_job_that_does_not_exist(shop: Shop, words: list[str]) -> None:
    never = "it was never sent, or it ended too long ago"
    unknown = f"fennelq: job mail:unknown has no record: {never}\n"
    assert shop.run(*words, "mail:unknown") == (Exit.NOT_FOUND, "", unknown)
    misspelt = "fennelq: job mial:x has no record, and queue 'mial' does not exist: did you mean 'mail'?\n"
    assert shop.run(*words, "mial:x") == (Exit.NOT_FOUND, "", misspelt)


@pytest.mark.parametrize("words", [["job", "cancel"], ["job", "retry"]], ids=" ".join)
def test_of_several_jobs_the_unknown_are_named(shop: Shop, words: list[str]) -> None:
    [dead] = shop.kill(1)
    answer = shop.run(*words, dead, "mial:x")
    assert answer.code == Exit.NOT_FOUND
    assert answer.rows[1] == ["mial:x", "unknown"]
    misspelt = "fennelq: job mial:x has no record, and queue 'mial' does not exist: did you mean 'mail'?\n"
    assert answer.err == misspelt


@pytest.mark.parametrize(("word", "done"), [("replay", "replayed"), ("purge", "removed")])
def test_dead_jobs_that_are_named_but_unknown(shop: Shop, word: str, done: str) -> None:
    [dead] = shop.kill(1)
    sentence = "fennelq: job mail:x has no record: it was never sent, or it ended too long ago\n"
    nothing = {"replay": "0 dead jobs to replay\n", "purge": "0 dead jobs to remove\n"}[word]
    assert shop.run("dlq", word, "mail:x", "--yes") == (Exit.NOT_FOUND, nothing, sentence)
    both = shop.run("dlq", word, dead, "mail:x", "--yes")
    assert both == (Exit.NOT_FOUND, f"1 dead job {done}\n", sentence), "the one that exists is not forgotten"


@pytest.mark.parametrize("words", [["job", "show"], ["job", "cancel"], ["dlq", "show"], ["dlq", "replay"]])
def test_what_is_not_an_id_is_a_usage_error(shop: Shop, words: list[str]) -> None:
    answer = shop.run(*words, "nonsense")
    assert answer.code == Exit.USAGE
    assert "'nonsense' is not a job id" in " ".join(answer.err.split())
    assert code_of(InvalidJobId("nonsense")) == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["wroker"], "No such command 'wroker'. Did you mean 'worker'?"),
        (["cronn", "list"], "No such command 'cronn'. Did you mean 'cron'?"),
        (["dlq", "lst"], "No such command 'lst'. Did you mean 'list'?"),
    ],
    ids=str,
)
def test_an_unknown_command_names_the_nearest(shop: Shop, words: list[str], sentence: str) -> None:
    answer = shop.run(*words)
    assert answer.code == Exit.USAGE
    assert sentence in answer.err
