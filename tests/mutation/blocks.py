"""The blocks of a Lua file: functions, branches and the bodies of loops. A script can log each block that it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from tests.mutation.mutants import characters, closing, without_comments

OUTSIDE: Final = -1
"""What is in no block runs whenever the script runs."""

_WORD = re.compile(r"\b(function|then|else|elseif|do|repeat|end|until)\b")


class Block(NamedTuple):
    start: int
    """Behind the word that begins it: a statement may stand here."""
    end: int


@cache
def blocks_of(source: str) -> list[Block]:
    """The blocks of a file, in no particular order."""
    code = without_comments(source)
    found: list[Block] = []
    open_since: list[int] = []
    for word, place in _words(code):
        if word in ("else", "elseif", "end", "until"):
            found.append(Block(open_since.pop(), place))
        if word in ("then", "else", "do", "repeat"):
            open_since.append(place + len(word))
        elif word == "function":
            open_since.append(closing(code, code.index("(", place)) + 1)
    return found


def _words(code: str) -> Iterator[tuple[str, int]]:
    outside_of_strings = {place for place, _ in characters(code, 0)}
    for match in _WORD.finditer(code):
        if match.start() in outside_of_strings:
            yield match[1], match.start()


def block_at(source: str, place: int) -> int:
    """The number of the innermost block around a place of a file, or `OUTSIDE`."""
    around = [
        (block.end - block.start, number)
        for number, block in enumerate(blocks_of(source))
        if block.start <= place < block.end
    ]
    return min(around)[1] if around else OUTSIDE


def logging(source: str, name: str) -> str:
    """The file, with a line in the log of the server for each block that is run."""
    for start, number in sorted(((b.start, n) for n, b in enumerate(blocks_of(source))), reverse=True):
        source = f"{source[:start]} redis.log(redis.LOG_WARNING, '@block {name} {number}@') {source[start:]}"
    return source


def logged(text: str) -> set[tuple[str, str]]:
    """What a log names: files, and the numbers of blocks."""
    return set(re.findall(r"@block (\S+) (\d+)@", text))
