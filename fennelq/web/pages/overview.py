"""The first page: what needs attention, in sentences, and then the figures."""

from __future__ import annotations

from typing import Final

from fennelq.web import words
from fennelq.web.attention import shown
from fennelq.web.charts import chart_of
from fennelq.web.looks import Look
from fennelq.web.rows import executor_rows, queue_rows, rate_of, slots_of, with_times
from fennelq.web.visit import Page, Visit

_MOST_NEEDS: Final = 12
_MOST_QUEUES: Final = 12
_MOST_ROWS: Final = 6


async def show(visit: Visit) -> Page:
    """The overview."""
    look = await visit.look()
    known, running = await look.overview(), await look.running()
    groups, found = known.groups, shown(known.needs)
    queues = [row for row in sorted(queue_rows(look), key=lambda row: row.rank) if row.is_busy]
    first = [row.name for row in queues[:_MOST_QUEUES]]  # they are read before the others
    drawn = await chart_of(visit, look, [*dict.fromkeys([*first, *look.queues])])
    used, slots = slots_of(look.executors.values())
    schedules = [one for one in known.schedules if one.next_run]
    return Page(
        template="overview.html",
        title="Overview",
        values={
            "look": look,
            "headline": _headline(look, len(found)),
            "calm": _calm(look, len(schedules)),
            "is_new": _is_new(look),
            "needs": found[:_MOST_NEEDS],
            "more_needs": max(0, len(found) - _MOST_NEEDS),
            "figures": _figures(look, used, slots, running[0].seconds if running else None),
            "groups": groups[:_MOST_ROWS],
            "group_count": len(groups),
            "dead": sum(info.dead for info in look.queues.values()),
            "queues": with_times(look, queues[:_MOST_QUEUES]),
            "drawn": drawn,
            "busy": len(queues),
            "executors": executor_rows(look.executors.values())[:_MOST_ROWS],
            "living": sum(one.alive for one in look.executors.values()),
            "used": used,
            "slots": slots,
            "schedules": sorted(schedules, key=lambda one: (one.next_run or look.at, one.name))[:_MOST_ROWS],
            "schedule_count": len(schedules),
        },
    )


def _is_new(look: Look) -> bool:
    """Whether nothing has ever happened here."""
    seen = any(info.ended or info.waiting or info.running or info.scheduled for info in look.queues.values())
    return not seen and not look.executors


def _headline(look: Look, number: int) -> str:
    if _is_new(look):
        return "Nothing has happened here yet"
    if not number:
        return "Nothing needs attention"
    return words.capital(f"{words.in_letters(number)} {'thing needs' if number == 1 else 'things need'} you")


def _calm(look: Look, schedules: int) -> str:
    living = sum(one.alive for one in look.executors.values())
    parts = [words.counted(len(look.queues), "queue"), words.counted(living, "executor")]
    return ", ".join([*parts, words.counted(schedules, "schedule")])


def _figures(look: Look, used: int, slots: int, longest: float | None) -> list[tuple[str, str, str, str]]:
    queues, snapshot = look.queues.values(), look.snapshot
    waiting = sum(info.waiting for info in queues)
    oldest = min(
        (info for info in queues if info.waiting_since),
        key=lambda info: info.waiting_since or look.at,
        default=None,
    )
    since = oldest.waiting_since if oldest else None
    age = words.duration((look.at - since).total_seconds()) if since else None
    wait = look.series.times([*look.queues], look.at.timestamp()).wait
    ends, failed = rate_of(snapshot, "succeeded", "died", "cancelled"), rate_of(snapshot, "retried", "died")
    tries = rate_of(snapshot, "succeeded", "retried", "died")
    share = None if tries is None or failed is None else 100 * failed / tries if tries else 0.0
    total = sum(info.ended.get("succeeded", 0) for info in queues)
    died = sum(info.ended.get("died", 0) for info in queues)
    return [
        ("Ended per second", words.number(ends), "jobs" if ends else "", f"{total:,} succeeded so far"),
        (
            "Waiting",
            words.number(waiting),
            "",
            f"oldest {age}, in {oldest.name}" if oldest and age else "none is late",
        ),
        (
            "Running",
            words.number(used),
            f"of {slots:,} slots",
            f"longest {words.duration(longest)}" if longest else "–",
        ),
        ("Wait before start, p95", *words.measured(wait.p95), "of the last 20 minutes"),
        (
            "Tries that failed",
            words.number(share),
            "%" if share is not None else "",
            f"{died:,} jobs died so far",
        ),
    ]
