"""Conversations: several steps with Redis, written once; a runner sends their rounds and returns the replies."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Pause, Round, Talk, ask, ask_all, pause, together
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Command, Step, as_is

A = TypeVar("A")


def echo(number: int) -> Command[int]:
    return Command(["ECHO", number], int)


def double(number: int) -> Talk[int]:
    return (yield from ask(echo(number))) * 2


def twice(number: int) -> Talk[int]:
    first = yield from double(number)
    return (yield from double(first))


def nothing(number: int) -> Talk[int]:
    return number
    yield


def held(talk: Generator[Any, Any, A]) -> tuple[A, list[list[int]]]:
    """What a conversation returns, and the numbers of each of its rounds: every step is replied to with its number."""
    rounds: list[list[int]] = []
    replies: list[int] | None = None
    while True:
        try:
            said: Round = talk.send(replies)
        except StopIteration as end:
            return cast("A", end.value), rounds
        assert not isinstance(said, Pause)
        replies = [cast("int", step.words[1]) for step in said if isinstance(step, Command)]
        rounds.append(replies)


def test_steps_follow_each_other_and_a_conversation_may_hold_another() -> None:
    assert held(twice(3)) == (12, [[3], [6]])


def test_steps_that_are_asked_together_share_a_round() -> None:
    assert held(ask_all(map(echo, [1, 2, 3]))) == ([1, 2, 3], [[1, 2, 3]])


def test_asking_for_nothing_takes_no_round() -> None:
    assert held(ask_all(list[Command[int]]())) == ([], [])
    assert held(together(list[Talk[int]]())) == ([], [])


def test_conversations_side_by_side_share_their_rounds_and_end_one_by_one() -> None:
    talks = [twice(1), nothing(7), double(3), ask_all(map(echo, [4, 5]))]
    assert held(together(talks)) == ([4, 7, 6, [4, 5]], [[1, 3, 4, 5], [2]])


def test_a_conversation_beside_others_may_not_pause() -> None:
    with pytest.raises(AssertionError, match="may not pause"):
        held(together([pause(1.0)]))


def test_what_is_found_on_the_way_is_read_as_part_of_another_conversation() -> None:
    def finding() -> Finding[int]:
        for number in (1, 2):
            yield Found((yield from double(number)))

    def all_of_it() -> Talk[list[int]]:
        found, finds = list[int](), Finds(finding())
        while (one := (yield from finds.next())) is not None:
            found.append(one)
        assert (yield from finds.next()) is None
        return found

    assert held(all_of_it()) == ([2, 4], [[1], [2]])


def test_without_a_loop_verbs_and_commands_share_a_round_trip_and_a_forgotten_script_is_taught(
    redis_url: str,
) -> None:
    broker = BlockingBroker(address_of(redis_url))
    open_queue = verbs.queues.open_queue(queue_keys("shop", "mail"))
    broker.ask(Command(["SCRIPT", "FLUSH"], as_is))
    steps: list[Step[Any]] = [echo(1), open_queue, echo(2)]
    replies = broker.send_all(steps)
    assert (replies[0], replies[2]) == (1, 2)
    with pytest.raises(ReplyError, match="unknown command"):
        broker.send_all([echo(1), Command(["NOSUCH"], as_is), echo(2)])
    assert broker.ask(echo(3)) == 3
    broker.close()


async def test_a_command_is_sent_by_the_same_words_with_a_loop(redis_url: str) -> None:
    broker = Broker(address_of(redis_url))
    assert await broker.ask(echo(5)) == 5
    await broker.close()
