"""Why a job ran more than once, in words: a part of its story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from fennelq.model.because import capital
from fennelq.model.happened import nth
from fennelq.model.job import Status
from fennelq.model.runs import REPLAYED, Life, StoryRun, fate

_GROUPS: Final = {
    "failed": "failed",
    "died": "died",
    "lost": "lost with the executor",
    "handed back": "handed back by an executor that was stopped",
    "not begun": "put back before it began",
    "too old": "refused by code that was too old",
    "put off": "put off",
}
"""The outcome of a run → the words for several runs with this outcome."""


def earlier(life: Life) -> Iterator[str]:
    """Why the job had more than one run, in some sentences. They begin with a capital, and end without a full stop."""
    yield from _of_copies(life) if life.doubled else ()
    runs = [run for run in life.runs if not _is_in_state(life, run)]
    if len(runs) == 1:
        yield capital(_of_one(life, runs[0]))
    elif runs:
        yield _of_many(runs)
    if number := life.left_out:
        many = f"{number:,} more runs" if number > 1 else "One more run"
        too_old = any(run.outcome == "too old" for run in life.runs)
        kind = (
            "further runs by code that is too old"
            if too_old
            else "runs that are snoozed or refused by a rate"
        )
        yield f"{many} began, and left no line in its history, as {kind}"
    if life.info.replays:
        yield _of_replays(life)


def moment_of(moment: datetime) -> str:
    """A moment within a sentence."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _is_in_state(life: Life, run: StoryRun) -> bool:
    """Whether the sentences about the state and the copies of the job are also about this run."""
    status = life.info.status
    if run.outcome in ("running", "succeeded", "cancelled", "outrun"):
        return True
    if run.outcome == "lost" and status is Status.DEAD:
        return life.info.reason == "crash_loop"
    is_last = run.number == len(life.runs)
    if run.outcome == "too old":
        return is_last and (life.info.waiting_because is not None or status is Status.DEAD)
    in_state = {Status.DEAD: "died", Status.RETRY: "failed"}.get(status)
    return is_last and run.outcome == in_state


def _of_one(life: Life, run: StoryRun) -> str:
    """Why the job did not end with this run."""
    on = f"executor {run.executor}" if run.executor else "an executor"
    which = f"the {nth(run.number)} run" if len(life.runs) > 1 else "its run"
    more = f" ({run.more})" if run.more else ""
    return {
        "lost": f"{on} {fate(run.more)} during {which}{_taken_over(life, run)}",
        "failed": f"{which} failed{more}",
        "died": f"it died after {which}{more}",
        "handed back": f"{on} was stopped, as by a deploy, and handed {which} back, which costs no try",
        "not begun": f"a reply of Redis to {on} was lost before {which} began, which costs no try",
        "too old": f"the code of {on} was too old for it{more}",
        "put off": f"{which} was put off: snoozed, or refused by a rate",
    }.get(run.outcome, f"{which} on {on}: {run.outcome}{more}")


def _taken_over(life: Life, run: StoryRun) -> str:
    """What happened after a run was lost."""
    later = life.runs[run.number :]
    if not later:
        return ", and its lease has run out"
    refused = "" if run.more else ". If it goes on, its outcome is refused"
    return (
        f"; when its lease had run out, {later[0].executor or 'another executor'} took the job over{refused}"
    )


def _of_copies(life: Life) -> Iterator[str]:
    """Why there are two copies."""
    yield "A second copy was sent, because a run took unusually long"
    outrun, copy = life.last("outrun"), life.traces.copy
    if outrun is not None:
        yield f"The run on {outrun.executor or 'an executor'} was stopped, because the other copy was first"
    if copy is not None and life.info.status is Status.EXECUTING:
        yield f"The other copy runs on {copy.executor}" if copy.executor else "It waits for another executor"


def _of_replays(life: Life) -> str:
    replays = life.info.replays
    times = {1: "once", 2: "twice"}.get(replays, f"{replays:,} times")
    last = next((event.at for event in reversed(life.events) if event.what == REPLAYED), None)
    when = "" if last is None else f", {'the last time ' if replays > 1 else ''}at {moment_of(last)}"
    return f"It was dead, and was replayed {times}{when}"


def _of_many(runs: Sequence[StoryRun]) -> str:
    """Why a job did not end with these runs, by the number of runs for each reason."""
    latest = {run.outcome: run.more for run in runs if run.more}
    parts: list[str] = []
    for outcome, number in Counter(run.outcome for run in runs).items():
        more = latest.get(outcome)
        why = f" ({'last: ' if number > 1 else ''}{more})" if more else ""
        parts.append(f"{number:,} {_in_group(outcome, number)}{why}")
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"Of its {len(runs):,} earlier runs, {listed}"


def _in_group(outcome: str, number: int) -> str:
    if outcome in ("failed", "died"):
        return _GROUPS[outcome]
    return f"{'was' if number == 1 else 'were'} {_GROUPS.get(outcome, outcome)}"
