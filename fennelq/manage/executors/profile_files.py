"""A profile as text for other programs: collapsed stacks, and the format of speedscope."""

from __future__ import annotations

import json
from typing import Any, Final

from fennelq import __version__
from fennelq.manage.executors.profile import ExecutorProfile, ProfiledCall, ProfiledStack
from fennelq.streams import clean

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_MOST_PROFILES: Final = 20
_SECONDS: Final = 0.01
"""Of one sample."""


def collapsed(profile: ExecutorProfile) -> str:
    """One line for each stack: the task and the calls, the innermost last, with semicolons, and the value."""
    return "".join(
        f"{';'.join([_word(stack.task), *(_word(str(call)) for call in stack.calls)])} {stack.value}\n"
        for stack in profile.stacks
    )


def speedscope(profile: ExecutorProfile) -> str:
    """A document for https://www.speedscope.app: a profile of everything, and one of each task."""
    frames: dict[ProfiledCall, int] = {}
    for stack in profile.stacks:
        for call in (ProfiledCall(stack.task, "", 0), *stack.calls):
            frames.setdefault(call, len(frames))
    shown = [_frame(call) for call in frames]
    parts = [("all", profile.stacks)]
    for task in profile.tasks[:_MOST_PROFILES]:
        parts.append((task.task, [stack for stack in profile.stacks if stack.task == task.task]))  # noqa: PERF401
    document = {
        "$schema": _SCHEMA,
        "exporter": f"fennelq {__version__}",
        "name": clean(f"{profile.executor}, {profile.seconds:g} s"),
        "activeProfileIndex": 0,
        "shared": {"frames": shown},
        "profiles": [_part(name, stacks, frames, memory=profile.memory) for name, stacks in parts],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _part(name: str, stacks: Any, frames: dict[ProfiledCall, int], *, memory: bool) -> dict[str, Any]:
    some: list[ProfiledStack] = list(stacks)
    weights = [stack.value if memory else round(stack.value * _SECONDS, 2) for stack in some]
    return {
        "type": "sampled",
        "name": clean(name),
        "unit": "bytes" if memory else "seconds",
        "startValue": 0,
        "endValue": round(sum(weights), 2),
        "samples": [
            [frames[ProfiledCall(stack.task, "", 0)], *(frames[call] for call in stack.calls)]
            for stack in some
        ],
        "weights": weights,
    }


def _frame(call: ProfiledCall) -> dict[str, Any]:
    name = {"name": clean(call.function)}
    return {**name, "file": clean(call.file), "line": call.line} if call.file else name


def _word(text: str) -> str:
    """A part of a line, which the readers of this format cut at semicolons."""
    return clean(text).replace(";", ",")
