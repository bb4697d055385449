"""What needs attention, as pages show it: `fennelq.manage.attention` finds it and has the sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fennelq.manage.attention import Need, Urgency
from fennelq.web import words
from fennelq.web.visit import link

_DOTS: Final = {Urgency.URGENT: "dead", Urgency.SOON: "retry", Urgency.NOTE: "wait"}
_PAGES: Final = {
    "queue": ("queues", "See the queue"),
    "group": ("dead", "Look and replay"),
    "executor": ("executors", "Look into it"),
    "schedule": ("schedules", "See the schedule"),
}


class ShownNeed(NamedTuple):
    """Something that needs attention, on a page."""

    dot: str
    """Its colour: dead, retry or wait."""
    sentence: str
    advice: str
    do: str
    to: str
    """The page about it; empty when there is none."""


def shown(needs: Iterable[Need]) -> list[ShownNeed]:
    """What needs attention."""
    return [_shown(need) for need in needs]


def _shown(need: Need) -> ShownNeed:
    section, do = _PAGES.get(need.of, ("", ""))
    to = link(section, need.name) if section else ""
    # The page behind the link offers what a command would do.
    advice = "" if need.advice.startswith("fennelq ") else words.capital(need.advice)
    return ShownNeed(_DOTS[need.urgency], f"{words.capital(need.sentence)}.", advice, do, to)
