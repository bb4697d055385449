"""Whether everything is as it should be: the checks that a worker makes before it starts, and what needs attention."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from fennelq.web import words
from fennelq.web.attention import shown
from fennelq.web.looks import Look
from fennelq.web.rendering import VERSION
from fennelq.web.visit import Page, Visit


class Check(NamedTuple):
    """A check and its outcome."""

    name: str
    is_fine: bool
    text: str


async def show(visit: Visit) -> Page:
    """The checks."""
    look = await visit.look()
    checks = await checks_of(look)
    found = shown((await look.overview()).needs)
    wrong = sum(not one.is_fine for one in checks)
    return Page(
        template="health.html",
        title="Health",
        section="health",
        values={
            "headline": _headline(wrong, len(checks)),
            "checks": checks,
            "needs": found,
            "look": look,
            "address": visit.app.address.shown,
        },
    )


async def checks_of(look: Look) -> list[Check]:
    """The checks and their outcomes."""
    return [await _redis(look), _queues(look), _served(look), _executors(look), _versions(look)]


def _headline(wrong: int, number: int) -> str:
    if not wrong:
        return "All checks pass"
    checks = f"{words.in_letters(wrong)} of {words.in_letters(number)} checks"
    return words.capital(f"{checks} {words.verb(wrong, 'fails', 'fail')}")


async def _redis(look: Look) -> Check:
    """As a worker checks the server before it starts."""
    is_fine, text = await look.problem_of_redis()
    fine = f"{text}: recent enough, keeps all keys, and this user may run scripts."
    return Check("Redis can be used", is_fine, fine if is_fine else text)


def _queues(look: Look) -> Check:
    wrong = [info for info in look.queues.values() if info.damage]
    if wrong:
        return Check("All queues can be counted", False, f"{wrong[0].name}: {wrong[0].damage}")
    return Check("All queues can be counted", True, f"{words.counted(len(look.queues), 'queue')}.")


def _served(look: Look) -> Check:
    wrong = [info for info in look.queues.values() if info.waiting_because and not info.paused]
    if wrong:
        names = words.listed([info.name for info in wrong], 3)
        return Check(
            "Workers serve all queues that have jobs", False, f"{names}: {wrong[0].waiting_because[0]}"
        )
    return Check(
        "Workers serve all queues that have jobs", True, "No job waits for a worker that is not there."
    )


def _executors(look: Look) -> Check:
    wrong = [one for one in look.executors.values() if one.state in ("blocked", "silent")]
    living = sum(one.alive for one in look.executors.values())
    if wrong:
        names = words.listed([f"{one.name} ({one.state})" for one in wrong], 3)
        return Check("All executors respond", False, names)
    return Check("All executors respond", True, f"{words.counted(living, 'executor')}.")


def _versions(look: Look) -> Check:
    versions = Counter(one.version or "unknown" for one in look.executors.values() if one.alive)
    shown = words.listed([f"{count:,} with {version}" for version, count in versions.most_common(4)])
    if len(versions) > 1:
        return Check("All executors have one version", False, f"{shown}; this page is of {VERSION}")
    return Check("All executors have one version", True, shown or "No executor is running.")
