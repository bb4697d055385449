"""Looks for texts in large arguments, which a script leaves to its caller: it would block the server for too long."""

from __future__ import annotations

from typing import Final

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Replies, Talk
from fennelq.broker.verbs.search import Criteria, Hit, Step
from fennelq.errors import BrokerUnavailable
from fennelq.model.job import JobInfo

PAUSES: Final = 4.0
"""After each step, a search pauses so many times as long as the step took: so it takes at most a fifth of a core."""


def sure(keys: QueueKeys, step: Step, criteria: Criteria) -> Talk[tuple[list[Hit], int]]:
    """The hits of a step, without those with large arguments that do not have the texts of the filter; and how many of
    these have a record that cannot be read."""
    if not step.unsure:
        return step.hits, 0
    replies: Replies = yield [verbs.jobs.record(keys, step.hits[number].key) for number in step.unsure]
    wrong, unreadable = set[int](), 0
    for number, reply in zip(step.unsure, replies, strict=True):
        if isinstance(reply, BrokerUnavailable):
            raise reply
        unreadable += isinstance(reply, Exception)
        if not isinstance(reply, JobInfo) or not criteria.has_texts(reply):
            wrong.add(number)
    return [hit for number, hit in enumerate(step.hits) if number not in wrong], unreadable
