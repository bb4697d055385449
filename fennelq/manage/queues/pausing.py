"""Pauses a queue, and ends its pause."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Talk, ask
from fennelq.executors import Executors
from fennelq.manage.choices import check_choice
from fennelq.model.checks import REASON, check_line
from fennelq.model.pause import QueuePause, QueueSide
from fennelq.waiting.reasons import executors_of


def paused(keys: QueueKeys, only: QueueSide | None, why: str, who: str | None) -> Talk[QueuePause]:
    """Pause one side of a queue, or both."""
    sides, by = _sides(only), this_user() if who is None else who
    if why:
        check_line("why", why)
    if by:
        check_line("who", by)
    pause = yield from ask(verbs.queues.pause(keys, sides, by, why))
    return with_ignoring(pause, keys.queue, (yield from executors_of(keys.app)))


def resumed(keys: QueueKeys, only: QueueSide | None) -> Talk[QueuePause | None]:
    """End the pause of one side of a queue, or of both, and wake all executors that have met it."""
    page = yield from ask(verbs.queues.resume(keys, _sides(only)))
    before = page.before
    while page.more:
        page = yield from ask(verbs.queues.resume(keys, ()))
    return before


def with_ignoring(pause: QueuePause, queue: str, executors: Executors | None) -> QueuePause:
    """The pause, with the executors that ignore it. Nothing is known of them when the user of Redis may not read what
    executors report."""
    if executors is None or not pause.consuming:
        return pause
    return replace(pause, ignored_by=executors.ignoring_pause(queue))


def this_user() -> str:
    """The user of this process and its host: `anna@web-1`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id of a container need not have a name
        user = str(os.getuid())
    shown = f"{user}@{socket.gethostname()}"
    return shown if REASON.fullmatch(shown) else ascii(shown)[:500]


def _sides(only: QueueSide | None) -> Sequence[QueueSide]:
    if only is None:
        return get_args(QueueSide)
    check_choice("only", only, QueueSide)
    return [only]
