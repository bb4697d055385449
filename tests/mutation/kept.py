"""What earlier runs have found out, in the folder `.mutation`, so that an interrupted run goes on where it ended.

A verdict is kept for mutants that were noticed, as long as the mutated file and the test that noticed stay as they are.
What each test runs, and how long it takes, is kept as long as fennelq, the test and what tests share stay as they are.
Other tests of its file do not count.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.mutation.mutants import Mutant

PROJECT: Final = Path(__file__).parents[2]
FOLDER: Final = PROJECT / ".mutation"


class Kept:
    """Texts by key, each valid while the files that it depends on have the same content."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self._path = folder / f"{name}.jsonl"
        self._entries: dict[str, tuple[str, Any]] = {}
        if self._path.exists():
            for line in self._path.read_text("utf-8").splitlines():
                key, state, value = json.loads(line)
                self._entries[key] = state, value

    def get(self, key: str, state: str) -> Any:
        """What was kept for a key in this state of its files, or None."""
        kept, value = self._entries.get(key, ("", None))
        return value if kept == state else None

    def put(self, key: str, state: str, value: Any) -> None:
        self._entries[key] = state, value
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, state, value]) + "\n")

    def has_noticed(self, mutant: Mutant) -> bool:
        """Whether a test has noticed a mutant; otherwise it has to be judged."""
        state, test = self._entries.get(_key_of(mutant), ("", ""))
        return state == _state_of_verdict(mutant, test)

    def notice(self, mutant: Mutant, test: str) -> None:
        self.put(_key_of(mutant), _state_of_verdict(mutant, test), test)


def _key_of(mutant: Mutant) -> str:
    return f"{mutant.file} {mutant.function} {mutant.change}"


def _state_of_verdict(mutant: Mutant, test: str) -> str:
    return digest([mutant.source, *_text_of_test(test)])


def state_of_test(test: str) -> str:
    """Changes with fennelq, this test and everything that tests share."""
    return digest([_state_of_everything_else(), *_text_of_test(test)])


def _text_of_test(test: str) -> list[str]:
    """The test, and its file without the other tests."""
    path, _, name = test.partition("::")
    return [text for of, text in _statements_of(PROJECT / path) if not of or of == name.partition("[")[0]]


@cache
def _statements_of(file: Path) -> list[tuple[str, str]]:
    """Each statement of a file, with its name if it is a test."""
    if not file.is_file():
        return []
    text = file.read_text("utf-8")
    statements = ast.parse(text).body
    ends = [*(_first_line(statement) for statement in statements[1:]), None]
    lines = text.splitlines()
    return [
        (_name_of_test(statement), "\n".join(lines[_first_line(statement) : end]))
        for statement, end in zip(statements, ends, strict=True)
    ]


def _first_line(statement: ast.stmt) -> int:
    marks = getattr(statement, "decorator_list", [])
    return min(statement.lineno, *(int(mark.lineno) for mark in marks)) - 1 if marks else statement.lineno - 1


def _name_of_test(statement: ast.stmt) -> str:
    name = str(getattr(statement, "name", ""))
    return name if name.startswith("test_") else ""


@cache
def _state_of_everything_else() -> str:
    return digest(path.read_text("utf-8") for path in sorted(_shared()))


def _shared() -> Iterator[Path]:
    for suffix in ("py", "lua"):
        yield from (PROJECT / "fennelq").rglob(f"*.{suffix}")
    for path in (PROJECT / "tests").rglob("*.py"):
        if not path.name.startswith("test_") and path.parent.name != "mutation":
            yield path


def digest(texts: Iterable[str]) -> str:
    found = sha256()
    for text in texts:
        found.update(text.encode() + b"\0")
    return found.hexdigest()
