"""Sends many items: groups them by queue, cuts each group into pages, and gives every item its own reply.

A call takes items of one queue, up to a limit. When one of its items makes it fail, all items are sent again one by
one, so that a bad item does not fail the others. An error of one queue does not stop the other queues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fennelq.broker.talk import Talk
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import MOST_JOBS
from fennelq.errors import BrokerUnavailable

T = TypeVar("T")
A = TypeVar("A")

MOST_BYTES = 1 << 20


class Limits(NamedTuple):
    """The most items and bytes of one call. An item that is larger than this is sent alone."""

    items: int = MOST_JOBS
    bytes: int = MOST_BYTES


ONE_CALL = Limits()


def dispatch(
    items: Sequence[T],
    queue_of: Callable[[T], str],
    call: Callable[[str, list[T]], Talk[Sequence[A]]],
    size: Callable[[T], int] | None = None,
) -> Talk[list[A | Exception]]:
    """The reply for each item, in order, or its error. `call` sends a page of items to one queue."""
    if len(items) == 1:
        return (yield from _alone(items[0], queue_of, call))
    replies: list[Any] = [None] * len(items)
    by_queue: defaultdict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        try:
            by_queue[queue_of(item)].append(place)
        except Exception as error:
            # The item does not name a valid queue: its reply is this error, and the other items are sent.
            replies[place] = error
    # Send one queue after the other: so a round trip carries 1 MiB at most, whatever the number of queues.
    for queue, places in by_queue.items():
        if len(places) == len(items):
            return (yield from in_pages(items, partial(call, queue), size))
        received = yield from in_pages([items[place] for place in places], partial(call, queue), size)
        for place, reply in zip(places, received, strict=True):
            replies[place] = reply
    return replies


def _alone(
    item: T, queue_of: Callable[[T], str], call: Callable[[str, list[T]], Talk[Sequence[A]]]
) -> Talk[list[A | Exception]]:
    """The same for one item. Most calls have one item, and save a microsecond without grouping and paging."""
    try:
        return [*(yield from call(queue_of(item), [item]))]
    except Exception as error:
        return [error]


def by_queues(items: Iterable[T], queue_of: Callable[[T], str]) -> dict[str, list[T]]:
    """The items of each queue, for a caller that sends to many queues side by side."""
    by_queue: dict[str, list[T]] = {}
    for item in items:
        by_queue.setdefault(queue_of(item), []).append(item)
    return by_queue


def pages(items: Sequence[T], most: int = MOST_JOBS) -> Iterator[list[T]]:
    """The items in lists of at most `most`, in order, for a caller whose calls do not reply to each item."""
    return _pages(items, None, Limits(most)) if items else iter(())


def concerns_the_call(error: Exception) -> bool:
    """Whether the call itself is wrong. Then it may succeed without its bad item."""
    return classify(error) is Trouble.BUG and not isinstance(error, BrokerUnavailable)


def in_pages(
    items: Sequence[T],
    call: Callable[[list[T]], Talk[Sequence[A]]],
    size: Callable[[T], int] | None = None,
    *,
    limits: Limits = ONE_CALL,
    splits: Callable[[Exception], bool] = concerns_the_call,
) -> Talk[list[A | Exception]]:
    """Send the items of one queue in pages. After an error that `splits`, the items of a page are sent one by one."""
    if not items:
        return []
    replies: list[A | Exception] = []
    for page in _pages(items, size, limits) if len(items) > 1 else [list(items)]:
        replies += yield from _replies(page, call, splits)
    return replies


def raise_first(replies: Iterable[object]) -> None:
    """Raises the first error among the replies, for a caller that does not handle errors one by one."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def first_page(
    items: Sequence[T], size: Callable[[T], int] | None = None, limits: Limits = ONE_CALL
) -> list[T]:
    """The first items, as many as one call takes."""
    return next(_pages(items, size, limits))


def _replies(
    page: list[T], call: Callable[[list[T]], Talk[Sequence[A]]], splits: Callable[[Exception], bool]
) -> Talk[Sequence[A | Exception]]:
    try:
        return (yield from call(page))
    except Exception as error:
        if len(page) == 1 or not splits(error):
            return [error] * len(page)
    one_by_one: list[A | Exception] = []
    for item in page:
        one_by_one += yield from _replies([item], call, splits)
    return one_by_one


def _pages(items: Sequence[T], size: Callable[[T], int] | None, limits: Limits) -> Iterator[list[T]]:
    """Split the items into pages. Without items, yield one empty page."""
    if size is None:
        # The loop below would take a microsecond per waiter of a thousand results.
        yield from (list(items[at : at + limits.items]) for at in range(0, max(1, len(items)), limits.items))
        return
    page: list[T] = []
    room = limits.bytes
    for item in items:
        try:
            cost = size(item)
        except Exception:
            # The size is unknown because the item cannot be encoded. It cannot be sent either: its page fails, and then
            # the items of the page are sent one by one.
            cost = 0
        if page and (len(page) >= limits.items or cost > room):
            yield page
            page, room = [], limits.bytes
        page.append(item)
        room -= cost
    yield page
