"""Removes, one at a time, what scripts and modules do, and reports what no test detects."""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Final

from tests.mutation.kept import Kept
from tests.mutation.modules import Modules
from tests.mutation.running import Asked, Key, Kind, judged, report
from tests.mutation.scripts import Scripts

KINDS: Final[tuple[Kind, ...]] = (Modules(), Scripts())


def main() -> int:
    asked = arguments()
    fine = [run(kind, asked) for kind in KINDS if chosen(kind, asked.names)]
    return max(fine, default=0)


def arguments() -> argparse.Namespace:
    known = [name for kind in KINDS for name in kind.names()]
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"what to mutate; default: {', '.join(known)}"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name contains this")
    parser.add_argument(
        "--equivalent",
        action="store_true",
        help="also those that are known to change nothing: they take the longest",
    )
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("-j", "--at-once", type=int, default=2, metavar="N", help="mutants at once (2)")
    parser.add_argument(
        "--seconds",
        dest="until",
        type=lambda text: time.monotonic() + float(text),
        default=math.inf,
        metavar="N",
        help="begin nothing after N seconds; the next run goes on",
    )
    parser.add_argument("--again", action="store_true", help="also what earlier runs have judged")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return asked


def chosen(kind: Kind, asked: list[str]) -> list[str]:
    return [name for name in kind.names() if not asked or name in asked]


def run(kind: Kind, asked: argparse.Namespace) -> int:
    """The exit code of one kind: 1 when a person has to look, 2 when nothing can be judged."""
    names = chosen(kind, asked.names)
    found = [m for name in names for m in kind.mutants_in(name) if asked.only in m.name]
    mutants = [m for m in found if asked.equivalent or kind.key_of(m) not in kind.equivalent]
    verdicts = Kept("verdicts")
    if not asked.again:
        mutants = [m for m in mutants if not verdicts.has_noticed(m)]
    if asked.list:
        mutants = [mutant for mutant in mutants if kind.can_be_loaded(mutant)]
        print(*(mutant.name for mutant in mutants), f"{len(mutants)} mutants", sep="\n")
        return 0
    if not mutants:
        print("no mutant is left to judge")
        return 0
    began = time.monotonic()
    mutants.sort(key=lambda mutant: kind.key_of(mutant) in kind.equivalent)
    judge = judged(kind, names, mutants, Asked(asked.at_once, asked.until, verdicts))
    if not judge.ready:
        return 2
    unfit = set[Key]() if asked.names or asked.only else kind.equivalent.keys() - set(map(kind.key_of, found))
    fine = report(kind, judge.verdicts, time.monotonic() - began, unfit)
    if judge.left:
        print(f"  {judge.left} mutants are left for the next run")
    return 0 if fine and not judge.left else 1


if __name__ == "__main__":
    sys.exit(main())
