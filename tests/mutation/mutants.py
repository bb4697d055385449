"""Makes mutants of a Lua script: each lacks one write, one guard, or one piece of book-keeping."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

MADE_UP: Final = {
    "XADD": "'1-1'",
    "XCLAIM": "{1}",
    "XGROUP": "{}",
    "SET": "true",
    "GET": "false",
}
"""What a write that is part of an expression is replaced with; elsewhere it is 1, as if it had found its object."""
WRITES: Final = re.compile(
    "X(ADD|ACK|DEL|CLAIM|GROUP)|H(SET|SETNX|DEL|INCRBY)|DEL|SET|P?EXPIRE|PERSIST|RPUSH|LTRIM|Z(ADD|REM)|S(ADD|REM)|PUBLISH"
)
REPEATED: Final = {"HSET": (2, 2), "XADD": (3, 2), "HDEL": (2, 1), "DEL": (1, 1)}
"""Where the words of a command begin to repeat themselves, and in what step."""

_CALL = re.compile(r"redis\.p?call\('(\w+)'")
_CONDITION = re.compile(r"\b(if|elseif|while)\b(.+?)\b(then|do)\b")
_UNTIL = re.compile(r"\b(until)\b(.+)$", re.MULTILINE)
_VALUE = re.compile(r"(\breturn\b|(?<![=~<>])=(?!=))([^\n]*?\b(?:and|or)\b[^\n]*)")
_FUNCTION = re.compile(
    r"^(?:local )?function ([\w.]+)\((?:.*\bend$|.*\n(?:(?!end\b).*\n)*end\b)", re.MULTILINE
)
_BEGINNING = re.compile(r"(?:^|\bthen\b|\bdo\b|\belse\b)[ \t]*(?=[\w])", re.MULTILINE)
_STATEMENT = re.compile(
    r"(?!(?:local|return|function|if|for|while|else|elseif|end|until|repeat|break)\b)[\w.]+(\[[^=\n]*\])?(\(| = )"
)


class Mutant(NamedTuple):
    """A script or a module with one thing changed."""

    file: str
    line: int
    before: str
    """The line as it was."""
    change: str
    """What was done to it, in words that stay true when lines move."""
    source: str
    function: str = ""
    """Where the change is, by its qualified name."""

    @property
    def name(self) -> str:
        where = f" {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{where}  {self.change}"


class Change(NamedTuple):
    start: int
    end: int
    text: str
    what: str


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of a script, in the order of its lines. Within a function no two have the same name."""
    code = without_comments(source)
    changes = {change[:3]: change for change in sorted(changes_of(code))}
    seen = Counter[tuple[str, str]]()
    mutants: list[Mutant] = []
    for change in changes.values():
        function = function_around(code, change.start)
        seen[function, change.what] += 1
        nth = seen[function, change.what]
        what = change.what if nth == 1 else f"{change.what} ({nth})"
        mutants.append(mutant_of(file, source, change._replace(what=what), function))
    return mutants


def mutant_of(file: str, source: str, change: Change, function: str) -> Mutant:
    changed = source[: change.start] + change.text + source[change.end :]
    line = source.count("\n", 0, change.start) + 1
    return Mutant(file, line, source.splitlines()[line - 1].strip(), change.what, changed, function)


def function_around(code: str, place: int) -> str:
    """The function of the file that this place is in; empty outside of all."""
    found = [match for match in _FUNCTION.finditer(code) if match.start() <= place < match.end()]
    return found[-1][1] if found else ""


def changes_of(code: str) -> Iterator[Change]:
    yield from statements_removed(code)
    yield from writes_made_up(code)
    yield from words_removed(code)
    yield from conditions_decided(code)
    yield from operands_removed(code)


def statements_removed(code: str) -> Iterator[Change]:
    """A call or an assignment that stands alone."""
    for beginning in _BEGINNING.finditer(code):
        start = beginning.end()
        found = _STATEMENT.match(code, start)
        if found is None or depth_at(code, start) > 0:
            continue
        end = end_of_statement(code, found.start(2), call=found[2] == "(")
        if end is not None:
            yield Change(start, end, "do end", f"removed: {shortened(code[start:end])}")


def writes_made_up(code: str) -> Iterator[Change]:
    """A write whose answer is used."""
    for match in _CALL.finditer(code):
        end = closing(code, code.index("(", match.start())) + 1
        if WRITES.fullmatch(match[1]) and not stands_alone(code, match.start()):
            text = MADE_UP.get(match[1], "1")
            yield Change(match.start(), end, text, f"{shortened(code[match.start() : end])} → {text}")


def words_removed(code: str) -> Iterator[Change]:
    """A field of an HSET or XADD, or one of several names of a DEL or HDEL."""
    for match in _CALL.finditer(code):
        opening = code.index("(", match.start())
        words = split_at(code, opening + 1, closing(code, opening), ",")
        if match[1] not in REPEATED:
            continue
        first, step = REPEATED[match[1]]
        if len(words) - first <= step:
            continue
        for place in range(first, len(words), step):
            # The last word may stand for several, as `unpack(…)` does.
            start, end = words[place - 1][1], words[min(place + step, len(words)) - 1][1]
            yield Change(start, end, "", f"{match[1]} without {shortened(code[start + 1 : end])}")


def conditions_decided(code: str) -> Iterator[Change]:
    for match in (*_CONDITION.finditer(code), *_UNTIL.finditer(code)):
        start, end, condition = match.start(2), match.end(2), match[2].strip()
        choices = {"while": ("false",), "until": ("true",)}.get(match[1], ("true", "false"))
        for choice in choices:
            yield Change(start, end, f" {choice} ", f"{match[1]} {shortened(condition)} → {choice}")


def operands_removed(code: str) -> Iterator[Change]:
    """Each side of an `and` or `or`, in conditions and in values."""
    spans = [(match.start(2), match.end(2)) for match in _CONDITION.finditer(code)]
    for match in _VALUE.finditer(code):
        spans += split_at(code, match.start(2), end_of_value(code, match), ",")
    for start, end in spans:
        yield from operands_removed_in(code, start, end)


def operands_removed_in(code: str, start: int, end: int) -> Iterator[Change]:
    for word in ("or", "and"):
        parts = split_at(code, start, end, word)
        if len(parts) > 1:
            for place, (first, last) in enumerate(parts):
                gone = code[first:last].strip()
                cut = (first, parts[1][0]) if place == 0 else (parts[place - 1][1], last)
                yield Change(*cut, " ", f"without {shortened(gone)}")
            for first, last in parts:
                yield from operands_removed_in(code, first, last)
            return
    opening = next_opening(code, start, end)
    while opening is not None:
        last = closing(code, opening)
        if last < end:
            for first, until in split_at(code, opening + 1, last, ","):
                yield from operands_removed_in(code, first, until)
        opening = next_opening(code, last, end)


# Looking at Lua


def without_comments(source: str) -> str:
    """The same length, with blanks for comments."""
    return re.sub(r"--[^\n]*", lambda comment: " " * len(comment[0]), source)


def next_opening(code: str, start: int, end: int) -> int | None:
    """Where the next bracket of a call is."""
    return next((place for place, char in characters(code, start) if char == "(" and place < end), None)


def closing(code: str, opening: int) -> int:
    """Where the bracket that is open here is closed."""
    depth = 0
    for place, char in characters(code, opening):
        depth += (char in "([{") - (char in ")]}")
        if depth == 0:
            return place
    raise ValueError(f"nothing closes {code[opening : opening + 40]!r}")


def characters(code: str, start: int) -> Iterator[tuple[int, str]]:
    """The characters outside of strings."""
    quoted = ""
    for place in range(start, len(code)):
        char = code[place]
        if quoted:
            quoted = "" if char == quoted and code[place - 1] != "\\" else quoted
        elif char in "'\"":
            quoted = char
        else:
            yield place, char


def split_at(code: str, start: int, end: int, separator: str) -> list[tuple[int, int]]:
    """The spans between separators that are in no brackets and no string."""
    pattern = re.compile(rf"\b{separator}\b" if separator.isalpha() else re.escape(separator))
    depth, first, spans = 0, start, list[tuple[int, int]]()
    for place, char in characters(code, start):
        if place >= end:
            break
        depth += (char in "([{") - (char in ")]}")
        separated = pattern.match(code, place) if depth == 0 and boundary(code, place) else None
        if separated is not None:
            spans.append((first, place))
            first = separated.end()
    return [*spans, (first, end)]


def boundary(code: str, place: int) -> bool:
    return not (code[place].isalpha() and code[place - 1].isalnum())


def depth_at(code: str, place: int) -> int:
    line = code.rfind("\n", 0, place) + 1
    inside = [char for _, char in characters(code[:place], line)]
    return sum((char in "([{") - (char in ")]}") for char in inside)


def end_of_statement(code: str, place: int, *, call: bool) -> int | None:
    """Where a statement ends that begins before `place`; None when it is not a whole one on its line."""
    if call:
        end = closing(code, place) + 1
        return end if re.match(r"[ \t]*(\n|end\b|else|$)", code[end:]) else None
    line_end = code.find("\n", place)
    line_end = len(code) if line_end < 0 else line_end
    block_end = re.compile(r" end\b| else\b").search(code, place, line_end)
    return block_end.start() if block_end else line_end


def end_of_value(code: str, match: re.Match[str]) -> int:
    """Before the `end` of a one-line block."""
    end = re.compile(r" end\b").search(code, match.start(2), match.end(2))
    return end.start() if end else match.end(2)


def stands_alone(code: str, start: int) -> bool:
    before = code[code.rfind("\n", 0, start) + 1 : start].strip()
    after = code[closing(code, code.index("(", start)) + 1 :]
    return bool(re.fullmatch(r"|.*\b(then|do|else)", before)) and bool(
        re.match(r"[ \t]*(\n|end\b|else|$)", after)
    )


def shortened(text: str, most: int = 40) -> str:
    """A name for a piece of code that is recognised, and does not quote it all."""
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 3]}…"
