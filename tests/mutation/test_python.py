"""The generator of Python mutants makes each kind of change, and each of them makes a difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.mutation.modules import Modules
from tests.mutation.python import mutants_of

MODULE = '''\
"""A module."""

import asyncio

_logger = None
LIMIT = 3


class Shop:
    """A class."""

    __slots__ = ("kept",)

    def __init__(self, kept: list[int]) -> None:
        self.kept = kept

    def note(self, n: int) -> None:
        """Keep it."""
        if crash.at is not None:
            crash.at("noted")
        self.kept.append(n)
        _logger.info("noted", n=n, why="it is large" if n > 9 else "")


def early(n: int, out: list[int]) -> None:
    if n < LIMIT:
        return
    out.append(n)


def both(a: bool, b: bool) -> str:
    return "yes" if a and b else "no"


def large(n: int) -> bool:
    return n >= LIMIT


def half(n: int) -> float:
    return n / 2


def evens(numbers: list[int]) -> list[int]:
    return [n for n in numbers if n % 2 == 0]


def pairs(names: list[str], answers: list[int]) -> dict[str, int]:
    out = {}
    for name, answer in zip(names, answers, strict=True):
        out[name] = answer
    return out


def skipping(numbers: list[int]) -> int:
    total = 0
    for n in numbers:
        if n < 0:
            continue
        if n > 9:
            break
        total += n
    return total


def caught(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1


def demand(n: int) -> str:
    if n < 0:
        raise ValueError(n)
    return "fine"


def greet(name: str, *, loud: bool = False, mark: str = ".") -> str:
    return (name.upper() if loud else name) + mark


def shout(name: str) -> str:
    return greet(name, loud=True)


def split(text: str) -> list[str]:
    return str.split(text, ",")


async def patient(work) -> None:
    async with asyncio.timeout(1):
        await asyncio.shield(work)
'''

MUTANTS = {mutant.function + ": " + mutant.change: mutant for mutant in mutants_of("shop.py", MODULE)}


def loaded(name: str) -> dict[str, Any]:
    """The names of a mutant."""
    names: dict[str, Any] = {}
    exec(compile(MUTANTS[name].source, "shop.py", "exec"), names)
    return names


def appended(function: str) -> Callable[[dict[str, Any]], Any]:
    def run(names: dict[str, Any]) -> Any:
        out: list[int] = []
        names[function](1, out)
        names[function](3, out)
        return out

    return run


def called(function: str, *args: Any) -> Callable[[dict[str, Any]], Any]:
    def run(names: dict[str, Any]) -> Any:
        try:
            return names[function](*args)
        except ValueError as error:
            return type(error)

    return run


DIFFERENCES: dict[str, tuple[Callable[[dict[str, Any]], Any], Any]] = {
    "early: removed: return": (appended("early"), [1, 3]),
    "early: if n < LIMIT → true": (appended("early"), []),
    "early: if n < LIMIT → false": (appended("early"), [1, 3]),
    "early: n < LIMIT → <=": (appended("early"), []),
    "early: removed: out.append(n)": (appended("early"), []),
    "both: without 'a' in: a and b": (called("both", False, True), "yes"),
    "both: without 'b' in: a and b": (called("both", True, False), "yes"),
    "both: if a and b → true": (called("both", False, False), "yes"),
    "both: if a and b → false": (called("both", True, True), "no"),
    "large: n >= LIMIT → >": (called("large", 3), False),
    "large: return n >= LIMIT → True": (called("large", 1), True),
    "large: return n >= LIMIT → False": (called("large", 4), False),
    "half: n / 2 → *": (called("half", 4), 8),
    "half: return n / 2 → 0.0": (called("half", 4), 0.0),
    "evens: return [n for n in numbers if n % 2 == 0] → []": (called("evens", [2]), []),
    "evens: swapped: [n for n in numbers if n % 2 == 0]": (called("evens", [2, 4]), [4, 2]),
    "evens: only the first of: numbers": (called("evens", [2, 4]), [2]),
    "evens: if n % 2 == 0 → true": (called("evens", [1, 2]), [1, 2]),
    "evens: if n % 2 == 0 → false": (called("evens", [1, 2]), []),
    "pairs: swapped: answers": (called("pairs", ["a", "b"], [1, 2]), {"a": 2, "b": 1}),
    "pairs: only the first of: zip(names, answers, strict=True)": (
        called("pairs", ["a", "b"], [1, 2]),
        {"a": 1},
    ),
    "pairs: removed: out[name] = answer": (called("pairs", ["a"], [1]), {}),
    "pairs: return out → {}": (called("pairs", ["a"], [1]), {}),
    "skipping: backwards: numbers": (called("skipping", [1, 10, 2]), 2),
    "skipping: removed: continue": (called("skipping", [-1, 2]), 1),
    "skipping: removed: break": (called("skipping", [10, 2]), 12),
    "skipping: removed: total += n": (called("skipping", [1]), 0),
    "skipping: total += n → -=": (called("skipping", [1]), -1),
    "skipping: return total → 0": (called("skipping", [1]), 0),
    "caught: not caught: ValueError": (called("caught", "x"), ValueError),
    "demand: removed: raise ValueError(n)": (called("demand", -1), "fine"),
    "shout: greet() without loud=True": (called("shout", "anna"), "anna."),
    "split: str.split() without ','": (called("split", "a,b c"), ["a,b", "c"]),
}


@pytest.mark.parametrize("change", DIFFERENCES)
def test_a_change_makes_a_difference(change: str) -> None:
    observe, expected = DIFFERENCES[change]
    original: dict[str, Any] = {}
    exec(compile(MODULE, "shop.py", "exec"), original)
    assert observe(loaded(change)) == expected
    assert observe(original) != expected


NOT_RUN = {
    "Shop.note: removed: self.kept.append(n)",
    "Shop.note: removed: _logger.info('noted', n=n, why='it is large' if n > 9 els…",
    "patient: without the limit: asyncio.timeout(1)",
    "patient: without the shield: work",
    "patient: removed: await asyncio.shield(work)",
}


def test_nothing_else_is_changed() -> None:
    """No docstring, no annotation, no `__slots__`, nothing of what is logged, no point of a crash, nothing outside of
    functions."""
    others = set(MUTANTS) - set(DIFFERENCES) - NOT_RUN
    assert others == {
        "greet: (name.upper() if loud else name) + mark → -",
        "greet: if loud → true",
        "greet: if loud → false",
        "skipping: only the first of: numbers",
        "skipping: removed: total = 0",
        "skipping: if n < 0 → true",
        "skipping: if n < 0 → false",
        "skipping: n < 0 → <=",
        "skipping: if n > 9 → true",
        "skipping: if n > 9 → false",
        "skipping: n > 9 → >=",
        "caught: return int(text) → 0",
        "caught: return -1 → 0",
        "demand: if n < 0 → true",
        "demand: if n < 0 → false",
        "demand: n < 0 → <=",
        "split: return str.split(text, ',') → []",
    }


def test_a_condition_that_names_something_goes_on_naming_it() -> None:
    source = "def f(d):\n    if (n := d.get(1)) is not None:\n        return n\n    return 0\n"
    (mutant,) = (m for m in mutants_of("f.py", source) if m.change.endswith("→ true"))
    names: dict[str, Any] = {}
    exec(mutant.source, names)
    assert names["f"]({}) is None


def test_what_is_changed_twice_in_a_function_has_two_names() -> None:
    source = "def f(a):\n    g(a)\n    h()\n    g(a)\n"
    assert [mutant.change for mutant in mutants_of("f.py", source)] == [
        "removed: g(a)",
        "removed: h()",
        "removed: g(a) (2)",
    ]


def test_the_key_of_a_mutant_stays_when_lines_move() -> None:
    moved = mutants_of("shop.py", "# a line\n" + MODULE)
    keys = [Modules().key_of(mutant) for mutant in moved]
    assert keys == [Modules().key_of(mutant) for mutant in MUTANTS.values()]


def test_a_method_whose_call_of_super_is_removed_fits_the_method_that_exists() -> None:
    code = "class Kept(dict):\n    def __init__(self):\n        super().__init__()\n        self.size = 1\n"
    found: dict[str, Any] = {}
    exec(compile(code, "kept", "exec"), found)
    (mutant,) = [one for one in mutants_of("kept.py", code) if "super" in one.change]
    changed: dict[str, Any] = {}
    exec(compile(mutant.source, "kept", "exec"), changed)
    found["Kept"].__init__.__code__ = changed["Kept"].__init__.__code__
    assert found["Kept"]().size == 1
