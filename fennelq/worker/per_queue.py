"""Runs the same verb for many queues. The error of a queue whose keys are damaged or forbidden does not stop others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import Verb
from fennelq.worker.outage import LogThrottle

A = TypeVar("A")


def concerns_one_queue(error: BaseException) -> bool:
    """Whether the error is about the keys of one queue, and not about Redis or the way to it."""
    trouble = classify(error)
    return trouble is Trouble.BUG or (trouble is Trouble.FATAL and str(error).startswith("NOPERM"))


async def run_per_queue(
    broker: Broker,
    queues: Sequence[QueueKeys],
    verb_of: Callable[[QueueKeys], Verb[A]],
    throttle: LogThrottle,
) -> list[tuple[QueueKeys, A]]:
    """Run a verb for each queue in one round trip; returns the queues where it succeeded, with their replies."""
    verbs: list[Verb[A]] = [verb_of(keys) for keys in queues]
    replies = await broker.run_each(verbs)
    return answered(queues, replies, throttle)


def answered(
    queues: Sequence[QueueKeys], replies: Sequence[A | BaseException], throttle: LogThrottle
) -> list[tuple[QueueKeys, A]]:
    """The queues with a reply. Logs the errors of the others; raises when Redis itself is in trouble."""
    found: list[tuple[QueueKeys, A]] = []
    for keys, reply in zip(queues, replies, strict=True):
        if not isinstance(reply, BaseException):
            found.append((keys, reply))
        elif isinstance(reply, Exception) and concerns_one_queue(reply):
            throttle.warn(reply, queue=keys.queue)
        else:
            raise reply
    return found
