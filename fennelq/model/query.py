"""The filter language: `state:dead task:welcome since:2h "no money"` selects jobs.

A filter is a list of terms, separated by spaces. A term is a word with a value (`task:welcome`), or a text. A value or
a text with spaces is written in double quotes, in which `\\"` and `\\\\` stand for the characters themselves. A `-`
before a term excludes the jobs that match it.

A job must match every kind of term. Of several terms with the same word, it must match one; of several texts or
headers, it must match all. `parse` reads times once, so the filter selects the same jobs when it is used again later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, NamedTuple

from fennelq.errors import ConfigurationError, InvalidFilter, InvalidJobId
from fennelq.model.checks import valid_name
from fennelq.model.job import split_id
from fennelq.model.units import duration_in, epoch_ms
from fennelq.wording import suggestion


class State(StrEnum):
    """Where a job is, in the words of filters, lists and metrics."""

    WAITING = "waiting"
    """Sent, and ready to run."""
    LIMITED = "limited"
    """Sent, and in a line, because a limit does not let it start yet."""
    BLOCKED = "blocked"
    """Waiting for other jobs of its flow."""
    RUNNING = "running"
    SCHEDULED = "scheduled"
    RETRY = "retry"
    DEAD = "dead"
    SUCCESS = "success"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({State.SUCCESS, State.CANCELLED})
"""The states of jobs that are in no place any more. Only an id finds them."""
LIVE: Final = frozenset(State) - ENDED

TEXT: Final = ""
"""The word of a term that is a text."""
WORDS: Final = ("state", "task", "queue", "since", "until", "error", "fp", "header", "key", "on", "id")
_TIMES: Final = ("since", "until")

_LONGEST, _MOST_TERMS = 4000, 50
_SHOWN: Final = 100
_ID: Final = re.compile(r"([A-Za-z0-9_.-]{1,128}):[A-Za-z0-9_.-]{1,128}")
_MADE: Final = re.compile(r"[0-9a-v]{9}[A-Za-z0-9]{11}")
"""A key that fennelq has made."""
_FINGERPRINT: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/@+=-]+")
"""Values that need no quotes."""
_PATTERN: Final = re.compile(
    r"\*|\.[+?]|^\^|\$$|\\[AbBdDsSwWZ]|\[\^|\[\w-\w|\(\?|\w\|\w|\(\w[^()]*\|", re.ASCII
)
"""Signs of a pattern: filters have none, so such a text would find nothing."""


class Term(NamedTuple):
    """A condition of a filter."""

    word: str
    """TEXT when it is a text."""
    value: str
    excluded: bool = False

    def __str__(self) -> str:
        sign, colon = "-" if self.excluded else "", ":" if self.word else ""
        return f"{sign}{self.word}{colon}{_quoted(self.word, self.value)}"


@dataclass(frozen=True, slots=True)
class Query:
    """A filter of jobs. `str()` is the same filter as text, with its times as moments."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, terms: Iterable[Term]) -> Query:
        """The filter with these terms; raises InvalidFilter when no job can meet it."""
        found = tuple(sorted(set(terms)))
        _check_together(found)
        return cls(found)

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __bool__(self) -> bool:
        """False when every job meets it."""
        return bool(self.terms)

    def values(self, word: str, *, excluded: bool = False) -> tuple[str, ...]:
        """The values that this word has, or those that it excludes."""
        return tuple(term.value for term in self.terms if term.word == word and term.excluded == excluded)

    @property
    def ids(self) -> tuple[str, ...]:
        """The jobs that it names. Then it has no other term."""
        return self.values("id")

    @property
    def states(self) -> frozenset[State]:
        """The states that jobs may have; without a term about states, all but those of ended jobs."""
        return _states(self.terms)

    @property
    def since_ms(self) -> int | None:
        """The earliest moment."""
        return _moment_of(self.values("since"))

    @property
    def until_ms(self) -> int | None:
        """The latest moment."""
        return _moment_of(self.values("until"))

    def also(self, terms: Iterable[Term]) -> Query:
        """The same filter with further terms."""
        return Query.of((*self.terms, *terms))


def parse(text: str, now: datetime, *, bounded: bool = True) -> Query:
    """The filter that a text describes; raises InvalidFilter with a sentence that says what to write instead.

    `now` is the moment from which `since:2h` counts back, in the time zone in which times without one are meant. The
    text of a filter that was read before may be longer than one that is written by hand, so it is not `bounded`.
    """
    if bounded and len(text) > _LONGEST:
        raise InvalidFilter(f"the filter has {len(text):,} characters: {_LONGEST:,} are possible")
    if not _is_utf8(text):
        raise InvalidFilter("the filter has characters that UTF-8 cannot write")
    tokens = list(_tokens(text))
    if bounded and len(tokens) > _MOST_TERMS:
        raise InvalidFilter(f"the filter has {len(tokens)} terms: {_MOST_TERMS} are possible")
    if len(tokens) == 1 and (job_id := _bare_id(tokens[0])):
        return Query.of([Term("id", job_id)])
    return Query.of(_term(token, now) for token in tokens)


def moment_text(ms: int) -> str:
    """A moment as filters write it."""
    moment = datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# From text to tokens


class _Token(NamedTuple):
    word: str
    value: str
    quoted: bool
    """Whether a part of the value was in quotes."""
    excluded: bool


_PIECE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', re.DOTALL)
_ESCAPED: Final = re.compile(r'\\(["\\])')


def _tokens(text: str) -> Iterable[_Token]:
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        pieces: list[re.Match[str]] = []
        while piece := _PIECE.match(text, place):
            pieces.append(piece)
            place = piece.end()
        if place < len(text) and not text[place].isspace():
            raise InvalidFilter(f"a quote is not closed: {text[place:][:_SHOWN]!r}")
        yield _token(pieces)


def _token(pieces: list[re.Match[str]]) -> _Token:
    first = pieces[0][2] or ""
    excluded = first.startswith("-") and (len(first) > 1 or len(pieces) > 1)
    bare = first[1:] if excluded else first
    word, colon, begin = bare.partition(":")
    if not (colon and word):
        word, begin = TEXT, bare
    rest = "".join(_unquoted(piece) for piece in pieces[1 if pieces[0][2] else 0 :])
    return _Token(word, begin + rest, any(piece[2] is None for piece in pieces), excluded)


def _unquoted(piece: re.Match[str]) -> str:
    return piece[2] if piece[2] is not None else _ESCAPED.sub(r"\1", piece[1])


def _quoted(word: str, value: str) -> str:
    """The value as it is written in a filter."""
    bare = _PLAIN.fullmatch(value) and not _PATTERN.search(value)
    if bare and (word or not (value.startswith("-") or ":" in value)):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# From tokens to terms


def _bare_id(token: _Token) -> str | None:
    """The id, when a filter consists of one and nothing else. A word that is nearly one of a filter is a mistake."""
    written = f"{token.word}:{token.value}"
    if token.excluded or token.quoted or token.word in WORDS or not _ID.fullmatch(written):
        return None
    if _MADE.fullmatch(token.value) or not get_close_matches(token.word, WORDS):
        return written
    raise InvalidFilter(
        f"unknown filter word {token.word!r}{suggestion(token.word, WORDS)} "
        f"For the job with this id, write id:{written}"
    )


def _term(token: _Token, now: datetime) -> Term:
    word, value, quoted, excluded = token
    if word and word not in WORDS:
        hint = suggestion(word[:_SHOWN], WORDS)
        more = "" if hint.endswith("?") else '. To find a text with a colon, write it in quotes: "a:b"'
        raise InvalidFilter(f"unknown filter word {word[:_SHOWN]!r}{hint}{more}")
    if not value:
        raise InvalidFilter(
            f"{word}: has no value: write {word}:{_EXAMPLES[word]}" if word else "a text is empty"
        )
    if not quoted and word not in _TIMES and _PATTERN.search(value):
        raise InvalidFilter(
            f"{value[:_SHOWN]!r} looks like a pattern, and filters have none: a text is found as it is written. "
            f"If you mean exactly these characters, write it in double quotes"
        )
    if word in _TIMES:
        if excluded:
            raise InvalidFilter(f"{word}: cannot be excluded: write {_OTHER_TIME[word]}: instead")
        value = moment_text(_time(word, value, now))
    elif word in _READ:
        value = _READ[word](value)
    return Term(word, value, excluded)


_EXAMPLES: Final[Mapping[str, str]] = {
    "state": "dead",
    "task": "welcome",
    "queue": "mail",
    "since": "2h",
    "until": "13:55",
    "error": "ValueError",
    "fp": "3f9a21c0",
    "header": "tenant=acme",
    "key": "welcome:42",
    "on": "web-3",
    "id": "mail:order-17",
}
_OTHER_TIME: Final = {"since": "until", "until": "since"}


def _state(value: str) -> str:
    if value not in list(State):
        raise InvalidFilter(f"unknown state {value[:_SHOWN]!r}{suggestion(value, map(str, State))}")
    return value


def _queue(value: str) -> str:
    try:
        return valid_name("queue", value)
    except ConfigurationError as error:
        raise InvalidFilter(str(error)) from None


def _job(value: str) -> str:
    try:
        split_id(value)
    except InvalidJobId as error:
        raise InvalidFilter(str(error)) from None
    return value


def _header(value: str) -> str:
    name, equals, _ = value.partition("=")
    if not (name and equals):
        raise InvalidFilter(f"header:{value[:_SHOWN]} has no value: write header:tenant=acme")
    return value


def _fingerprint(value: str) -> str:
    if not _FINGERPRINT.fullmatch(value):
        raise InvalidFilter(f"fp:{value[:_SHOWN]!r} is not a fingerprint: write fp:{_EXAMPLES['fp']}")
    return value.lower()


_READ: Final[Mapping[str, Callable[[str], str]]] = {
    "state": _state,
    "queue": _queue,
    "id": _job,
    "header": _header,
    "fp": _fingerprint,
}


# Times


def _time(word: str, value: str, now: datetime) -> int:
    """The moment in milliseconds: a time before now (2h), a time of today (13:55), or a date."""
    ms = _ms(value, now)
    if ms is None:
        raise InvalidFilter(
            f"{word}:{value[:_SHOWN]!r} is not a time: write a time before now (30m, 2h, 7d), a time of today "
            "(13:55), or a date (2026-05-01, 2026-05-01T14:30)"
        )
    if word == "since" and ms > epoch_ms(now):
        raise InvalidFilter(f"since:{value[:_SHOWN]} is in the future: write a time before now")
    return max(0, ms)


def _ms(value: str, now: datetime) -> int | None:
    if (ago := duration_in(value)) is not None:
        return epoch_ms(now) - round(ago * 1000)
    try:
        if clock := _CLOCK.fullmatch(value):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            return epoch_ms(now.replace(hour=hour, minute=minute, second=second, microsecond=0))
        moment = datetime.fromisoformat(value)
        return epoch_ms(moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo))
    except (ValueError, OverflowError, OSError):
        return None


def _moment_of(values: tuple[str, ...]) -> int | None:
    return epoch_ms(datetime.fromisoformat(values[0])) if values else None


# Terms together


def _states(terms: Iterable[Term]) -> frozenset[State]:
    wanted = {State(term.value) for term in terms if term.word == "state" and not term.excluded}
    return frozenset(wanted or LIVE) - {
        State(term.value) for term in terms if term.word == "state" and term.excluded
    }


def _check_together(terms: tuple[Term, ...]) -> None:
    for word in _TIMES:
        if sum(term.word == word for term in terms) > 1:
            raise InvalidFilter(f"{word}: stands twice: write it once")
    times = {term.word: term.value for term in terms if term.word in _TIMES}
    # These texts sort like the moments.
    if len(times) == 2 and times["since"] > times["until"]:
        raise InvalidFilter(f"since:{times['since']} is after until:{times['until']}: no job can match both")
    for term in terms:
        if term.excluded and term._replace(excluded=False) in terms:
            raise InvalidFilter(f"{term} excludes what the filter asks for: leave out one of the two")
    if not _states(terms):
        raise InvalidFilter("the filter excludes every state: leave out one of the -state:")
    if any(term.word == "id" for term in terms) and any(term.word != "id" or term.excluded for term in terms):
        raise InvalidFilter(
            "id: names the jobs, so it cannot be combined with other terms: leave out the others"
        )
