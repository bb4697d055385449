"""The stacks of an executor as text. Names and paths come from another process: control characters are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fennelq.cli import output
from fennelq.manage.executors.info import ExecutorStacks, Stack
from fennelq.model.times import shown

_MOST_NAMED: Final = 5
_KINDS: Final = {"loop": "event loop", "thread": "thread", "task": "task"}


def show_stacks(stacks: ExecutorStacks) -> None:
    """Print the stacks; those that are the same are printed once, with the jobs of all."""
    output.title(stacks.executor)
    if stacks.blocked is not None and stacks.blocked.ago is None:
        output.line(
            f"its event loop has been blocked for {shown(stacks.blocked.seconds)} at {stacks.blocked.at}, "
            f"by {stacks.blocked.job}"
        )
    for same in _alike(stacks.stacks):
        output.line("")
        output.line(_heading(same))
        for frame in same[0].frames:
            output.line(f"  {frame}")
    if stacks.left_out:
        output.note(f"{output.counted(stacks.left_out, 'further stack')} did not fit into the answer.")


def _alike(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Stacks with the same calls, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Stack]] = {}
    for stack in stacks:
        groups.setdefault((stack.kind, *stack.frames), []).append(stack)
    return list(groups.values())


def _heading(same: list[Stack]) -> str:
    """`event loop MainThread: shop:report (mail:7), 12 s`; of several, their number and some of their jobs."""
    first = same[0]
    kind = _KINDS.get(first.kind, first.kind)
    title = f"{kind} {first.name}" if len(same) == 1 else f"{len(same):,} {kind}s"
    jobs = [_job(stack) for stack in same if stack.job is not None]
    more = f" and {len(jobs) - _MOST_NAMED:,} more" if len(jobs) > _MOST_NAMED else ""
    return f"{title}: {'; '.join(jobs[:_MOST_NAMED])}{more}" if jobs else title


def _job(stack: Stack) -> str:
    seconds = shown(stack.seconds)
    return f"{stack.job}, {seconds}" if seconds else str(stack.job)
