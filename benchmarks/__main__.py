"""``python -m benchmarks``: measure, print the table, write the JSON, exit 1 when a bar is missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine, record, report
from benchmarks.contestant import FENNELQ, FLOOR, ROOT, Contestant
from benchmarks.loops import uvloop_installed
from benchmarks.peers import PEERS, installed
from benchmarks.rows import FULL, QUICK, Row
from benchmarks.server import Engine, ServerMissing, binary_of
from benchmarks.session import Measured, Plan, measure


def main() -> int:
    wanted = _arguments()
    plan = _plan(wanted)
    machine.stay_on_two_cores()
    before = machine.description()
    measured = measure(plan)
    judged = report.judge(plan, measured)
    record.write(wanted.json, plan, measured, judged, before)
    _print(plan, measured, judged, wanted.json)
    return int(bool(report.failed(judged)) and not wanted.no_fail)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=[], help="only these, by name; default: all")
    parser.add_argument("--repeats", type=int, help="samples per contestant (default 3, with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes: a first impression in two minutes"
    )
    parser.add_argument(
        "--contestants", nargs="+", default=["fennelq", "floor"], help="default: fennelq,floor"
    )
    parser.add_argument("--peers", nargs="+", default=[], help=f"installed on demand: {', '.join(PEERS)}")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument(
        "--loop", choices=["uvloop", "asyncio"], default="uvloop" if uvloop_installed() else "asyncio"
    )
    parser.add_argument(
        "--json", type=Path, default=ROOT / ".bench" / "latest.json", help="where the record goes"
    )
    parser.add_argument("--no-fail", action="store_true", help="exit 0 although a bar was missed")
    return parser.parse_args()


def _names(words: Sequence[str]) -> list[str]:
    """Names set apart by commas or blanks, in one word or several."""
    return " ".join(words).replace(",", " ").split()


def _plan(wanted: argparse.Namespace) -> Plan:
    _require_server(wanted.server)
    rows = QUICK if wanted.quick else FULL
    repeats = wanted.repeats or (1 if wanted.quick else 3)
    peers = _names(wanted.peers)
    _require(peers, PEERS)
    contestants = [*_chosen(_names(wanted.contestants)), *(installed(name) for name in peers)]
    return Plan(_rows(rows, _names(wanted.rows)), contestants, repeats, wanted.server, wanted.loop)


def _rows(rows: Sequence[Row], names: Sequence[str]) -> Sequence[Row]:
    known = {row.name: row for row in rows}
    _require(names, known)
    return [known[name] for name in names] if names else rows


def _chosen(names: Sequence[str]) -> Sequence[Contestant]:
    known = {side.name: side for side in (FENNELQ, FLOOR)}
    _require(names, known)
    return [known[name] for name in names]


def _require(names: Sequence[str], known: Mapping[str, Row | Contestant]) -> None:
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")


def _print(plan: Plan, measured: Measured, judged: Sequence[report.Judged], written: Path) -> None:
    print(f"\n{_circumstances(plan, measured)}\n")
    print(report.table_of(judged))
    if any(contestant.is_peer for contestant in plan.contestants):
        print("\n" + report.peers_table_of(plan, measured))
    for (row, name), reason in measured.failures.items():
        print(f"\n{row}: {name} was not measured: {reason.splitlines()[-1]}")
    missed = report.failed(judged)
    print(f"\n{_sum(judged, missed)}\nrecord: {written}")


def _require_server(engine: Engine) -> None:
    try:
        binary_of(engine)
    except ServerMissing as missing:
        sys.exit(str(missing))


def _circumstances(plan: Plan, measured: Measured) -> str:
    loops = ", ".join(f"{name} on {loop}" for name, loop in measured.loops.items())
    return (
        f"{measured.server}; clients on {plan.loop}; workers: {loops or 'none'}; median (lowest..highest)\n"
        f"other programs took up to {measured.most_disturbed:.0%} of the machine during a sample"
    )


def _sum(judged: Sequence[report.Judged], missed: Sequence[report.Judged]) -> str:
    bars = sum(1 for line in judged if line.verdict)
    if not bars:
        return "fennelq did not compete: nothing to judge"
    names = "".join(f"\n  {line.row}: {line.line.label.strip()}" for line in missed)
    return f"{len(missed)} of {bars} bars NOT met:{names}" if missed else f"all {bars} bars met"


if __name__ == "__main__":
    sys.exit(main())
