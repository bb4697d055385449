"""Adds names to the lists in which others look for them: queues to those of an app, and apps to those of a server."""

from __future__ import annotations

from collections.abc import Iterable

from fennelq.broker import verbs
from fennelq.broker.talk import Replies, Talk
from fennelq.broker.verb import Step


def noted(app: str, queues: Iterable[str]) -> Talk[int]:
    """List these queues, and the app; returns how many of the queues are new.

    The list of apps is only for people who choose one: where Redis refuses it, because its user may touch the keys of
    this app alone, everything else goes on.
    """
    names = [*queues]
    steps: list[Step[int]] = [verbs.queues.note_queues(app, names)] if names else []
    replies: Replies = yield [*steps, verbs.queues.note_app(app)]
    added = replies[0] if names else 0
    if isinstance(added, BaseException):
        raise added
    return int(added)
