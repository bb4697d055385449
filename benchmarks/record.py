"""The JSON of a run: everything measured, the verdicts, and what it ran on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.figures import Sample, Series
from benchmarks.report import Judged
from benchmarks.session import Measured, Plan


def write(
    path: Path, plan: Plan, measured: Measured, judged: Sequence[Judged], before: dict[str, Any]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_document(plan, measured, judged, before), indent=1) + "\n")


def _document(
    plan: Plan, measured: Measured, judged: Sequence[Judged], before: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": before,
        "versions": machine.versions(),
        "server": measured.server,
        "loop": {"wanted": plan.loop, "seen": measured.loops},
        "repeats": plan.repeats,
        "sizes": {row.name: vars(row) for row in plan.rows},
        "lines": [_line(line) for line in judged],
        "failures": {" ".join(place): reason for place, reason in measured.failures.items()},
        "neighbours": {" ".join(place): shares for place, shares in measured.neighbours.items()},
        "samples": {
            " ".join(place): [_sample(one) for one in taken] for place, taken in measured.samples.items()
        },
    }


def _line(judged: Judged) -> dict[str, Any]:
    return {
        "row": judged.row,
        "label": judged.line.label.strip(),
        "unit": judged.line.unit,
        "fennelq": _series(judged.fennelq),
        "floor": _series(judged.floor),
        "ratio": judged.ratio,
        "bar": str(judged.line.bar or ""),
        "verdict": judged.verdict,
        "stretch": judged.stretch,
    }


def _series(series: Series | None) -> dict[str, Any] | None:
    return {"median": series.median, "values": list(series.values)} if series else None


def _sample(sample: Sample) -> dict[str, Any]:
    return {"figures": sample.figures, "raw": sample.raw}
