"""Dispatch: many items, of many queues, in pages; each item gets its own reply or its own error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.dispatch import Limits, by_queues, dispatch, first_page, in_pages, pages, raise_first
from fennelq.broker.talk import Talk
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.errors import BrokerUnavailable

Call = tuple[str, list[str]]


class Calls:
    """What is sent, call by call. Each item is replied to with its name in capitals, unless its call fails."""

    def __init__(self, failing: Callable[[str, list[str]], Exception | None] = lambda _, __: None) -> None:
        self.made: list[Call] = []
        self._failing = failing

    def __call__(self, queue: str, page: list[str]) -> Talk[Sequence[str]]:
        self.made.append((queue, page))
        if (error := self._failing(queue, page)) is not None:
            raise error
        return [item.upper() for item in page]
        yield


def queue_of(item: str) -> str:
    queue, _, _ = item.rpartition(":")
    if not queue:
        raise ValueError(f"{item} names no queue")
    return queue


@pytest.fixture
def broker() -> Broker:
    """Nothing is asked of it."""
    return Broker(address_of("redis://127.0.0.1:1/0"))


async def test_items_are_grouped_by_queue_and_each_gets_its_own_reply(broker: Broker) -> None:
    calls = Calls()
    items = ["a:1", "b:1", "a:2", "c:1", "b:2"]
    assert await broker.converse(dispatch(items, queue_of, calls)) == ["A:1", "B:1", "A:2", "C:1", "B:2"]
    assert calls.made == [("a", ["a:1", "a:2"]), ("b", ["b:1", "b:2"]), ("c", ["c:1"])]


async def test_a_queue_takes_so_many_items_and_bytes_per_call(broker: Broker) -> None:
    calls = Calls()
    items = [f"a:{n}" for n in range(250)] + ["b:large", "b:small", "b:small"]
    sizes = {"b:large": 1 << 20, "b:small": 1 << 19}
    await broker.converse(dispatch(items, queue_of, calls, lambda item: sizes.get(item, 1)))
    assert [len(page) for queue, page in calls.made if queue == "a"] == [100, 100, 50]
    assert [page for queue, page in calls.made if queue == "b"] == [["b:large"], ["b:small", "b:small"]]


async def test_an_item_that_is_larger_than_a_call_goes_alone(broker: Broker) -> None:
    calls = Calls()
    await broker.converse(dispatch(["a:1", "a:2", "a:3"], queue_of, calls, lambda item: 2 << 20))
    assert [page for _, page in calls.made] == [["a:1"], ["a:2"], ["a:3"]]


async def test_an_item_that_makes_its_call_fail_fails_alone(broker: Broker) -> None:
    bad = ReplyError("ERR this one")
    calls = Calls(lambda _, page: bad if "a:2" in page else None)
    replies = await broker.converse(dispatch(["a:1", "a:2", "a:3", "b:1"], queue_of, calls))
    assert replies == ["A:1", bad, "A:3", "B:1"]
    assert [page for queue, page in calls.made if queue == "a"] == [
        ["a:1", "a:2", "a:3"],
        ["a:1"],
        ["a:2"],
        ["a:3"],
    ]


@pytest.mark.parametrize(
    "error",
    [
        LinkDown("gone"),
        ReplyError("NOPERM this key"),
        ReplyError("OOM"),
        BrokerUnavailable("no patience is left"),
    ],
)
async def test_a_queue_that_fails_stops_no_other_and_is_not_asked_item_by_item(
    broker: Broker, error: Exception
) -> None:
    calls = Calls(lambda queue, _: error if queue == "a" else None)
    replies = await broker.converse(dispatch(["a:1", "b:1", "a:2"], queue_of, calls))
    assert replies == [error, "B:1", error]
    assert calls.made == [("a", ["a:1", "a:2"]), ("b", ["b:1"])]


async def test_an_item_that_names_no_queue_is_not_sent_and_the_others_are(broker: Broker) -> None:
    calls = Calls()
    first, odd, last = await broker.converse(dispatch(["a:1", "odd", "a:2"], queue_of, calls))
    assert (first, last, calls.made) == ("A:1", "A:2", [("a", ["a:1", "a:2"])])
    assert isinstance(odd, ValueError)


async def test_an_item_whose_size_is_not_known_fails_by_itself(broker: Broker) -> None:
    bad = TypeError("it cannot be packed")
    calls = Calls(lambda _, page: bad if "a:odd" in page else None)

    def size(item: str) -> int:
        if item == "a:odd":
            raise bad
        return 1

    replies = await broker.converse(dispatch(["a:1", "a:odd", "a:2"], queue_of, calls, size))
    assert replies == ["A:1", bad, "A:2"]


async def test_the_caller_decides_after_which_errors_a_page_is_split(broker: Broker) -> None:
    error = LinkDown("gone")
    calls = Calls(lambda _, page: error if len(page) > 1 else None)
    talk = in_pages(["1", "2", "3"], lambda page: calls("a", page), splits=lambda e: e is error)
    assert await broker.converse(talk) == ["1", "2", "3"]
    with pytest.raises(LinkDown):
        raise_first(await broker.converse(in_pages(["1", "2"], lambda page: calls("a", page))))


async def test_for_no_items_nothing_is_sent(broker: Broker) -> None:
    calls = Calls()
    assert await broker.converse(dispatch(list[str](), queue_of, calls)) == []
    assert await broker.converse(in_pages(list[str](), lambda page: calls("a", page))) == []
    assert calls.made == []
    assert first_page(list[str]()) == []


def test_the_items_of_a_queue_stay_in_their_order() -> None:
    assert by_queues(["a:2", "b:2", "a:1", "b:1", "a:3"], queue_of) == {
        "a": ["a:2", "a:1", "a:3"],
        "b": ["b:2", "b:1"],
    }


@pytest.mark.parametrize(
    ("items", "cut"), [("", []), ("ab", ["ab"]), ("abc", ["ab", "c"]), ("abcd", ["ab", "cd"])]
)
def test_items_are_cut_into_pages_and_none_into_no_page(items: str, cut: list[str]) -> None:
    assert ["".join(page) for page in pages(items, 2)] == cut


def test_of_several_errors_the_first_is_raised() -> None:
    first, second = ReplyError("ERR first"), ReplyError("ERR second")
    with pytest.raises(ReplyError) as raised:
        raise_first(["fine", first, second])
    assert raised.value is first
    raise_first(["fine"])


def test_the_first_page_is_what_one_call_takes() -> None:
    assert first_page("abcdef", lambda _: 3, Limits(items=4, bytes=100)) == [*"abcd"]
    assert first_page("abcdef", lambda _: 3, Limits(items=4, bytes=8)) == [*"ab"]
