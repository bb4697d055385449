"""Turns a filter of jobs into a condition of SQL. Every value is a parameter: no text of a filter becomes part of a
statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from fennelq.errors import InvalidFilter
from fennelq.model.query import TEXT, Query, State

STATUS_OF: Final = {State.SUCCESS: "SUCCESS", State.DEAD: "DEAD", State.CANCELLED: "CANCELLED"}
"""The states that the history has."""

Value = str | int


class Condition(NamedTuple):
    """A condition, with `?` for each value."""

    sql: str
    values: tuple[Value, ...] = ()

    @property
    def negated(self) -> Condition:
        """Met by the rows that do not meet this one, also those without a value."""
        return Condition(f"NOT COALESCE({self.sql}, FALSE)", self.values)


TasksLike = Callable[[str], Sequence[str]]
"""The tasks in the history whose function has this name."""


Make = Callable[[str, str, TasksLike], Condition]


def condition_of(query: Query, has: str, tasks_like: TasksLike) -> Condition:
    """The condition of a filter. `has` is the expression of this database for `a text contains another one`, with the
    column as `{}`. Raises InvalidFilter when no job in the history can be in a state of the filter."""
    conditions = [*_states(query), *_times(query)]
    for word, make in _WORDS.items():
        wanted, excluded = query.values(word), query.values(word, excluded=True)
        if wanted:
            conditions.append(_any(make(value, has, tasks_like) for value in wanted))
        conditions += [make(value, has, tasks_like).negated for value in excluded]
    for word, every in _EVERY.items():
        conditions += [every(value, has) for value in query.values(word)]
        conditions += [every(value, has).negated for value in query.values(word, excluded=True)]
    return _all(conditions)


def _all(conditions: Iterable[Condition]) -> Condition:
    every = [one for one in conditions if one.sql]
    return Condition(
        " AND ".join(one.sql for one in every), tuple(value for one in every for value in one.values)
    )


def _any(conditions: Iterable[Condition]) -> Condition:
    every = list(conditions)
    if len(every) == 1:
        return every[0]
    return Condition(
        "(" + " OR ".join(one.sql for one in every) + ")",
        tuple(value for one in every for value in one.values),
    )


def _states(query: Query) -> Iterable[Condition]:
    named = any(term.word == "state" for term in query.terms)
    if not named:
        return
    excluded = {State(value) for value in query.values("state", excluded=True)}
    asked = {State(value) for value in query.values("state")} or set(STATUS_OF)
    wanted = sorted(STATUS_OF[state] for state in asked - excluded if state in STATUS_OF)
    if not wanted:
        raise InvalidFilter(
            "the history has jobs that have ended: write state:success, state:dead or state:cancelled"
        )
    if len(wanted) < len(STATUS_OF):
        yield _one_of("status", wanted)


def _times(query: Query) -> Iterable[Condition]:
    if query.since_ms is not None:
        yield Condition("ended >= ?", (query.since_ms,))
    if query.until_ms is not None:
        yield Condition("ended <= ?", (query.until_ms,))


def _one_of(column: str, values: Sequence[str]) -> Condition:
    if len(values) == 1:
        return Condition(f"{column} = ?", (values[0],))
    marks = ", ".join("?" * len(values))
    return Condition(f"{column} IN ({marks})", tuple(values))


def _task(value: str, _: str, tasks_like: TasksLike) -> Condition:
    # The names are looked up first, so that the index of tasks can be used.
    return _one_of("task", sorted({value, *tasks_like(value)}))


def _error(value: str, *_: object) -> Condition:
    # In full, or only the part after the last dot.
    return Condition("(error = ? OR substr(error, length(error) - ?) = ?)", (value, len(value), f".{value}"))


def _on(value: str, *_: object) -> Condition:
    return Condition("(executor = ? OR substr(executor, 1, ?) = ?)", (value, len(value) + 1, f"{value}."))


def _header(value: str, has: str) -> Condition:
    # The headers are one flat JSON object without spaces, so a pair of a name and a value is a text of its own.
    name, _, wanted = value.partition("=")
    pair = orjson.dumps({name: wanted})[1:-1].decode()
    return Condition(has.format("headers"), (pair,))


def _text(value: str, has: str) -> Condition:
    within_json = orjson.dumps(value)[1:-1].decode()
    parts = [Condition(has.format(column), (within_json,)) for column in ("args", "headers")]
    return _any([*parts, Condition(has.format("message"), (value,))])


def _equal(column: str) -> Make:
    def condition(value: str, _: str, __: TasksLike) -> Condition:
        return Condition(f"{column} = ?", (value,))

    return condition


_WORDS: Final[dict[str, Make]] = {
    "id": _equal("id"),
    "task": _task,
    "queue": _equal("queue"),
    "error": _error,
    "fp": _equal("fingerprint"),
    "key": _equal("key"),
    "on": _on,
}
"""Of several values, a job has to meet one."""
_EVERY: Final[dict[str, Callable[[str, str], Condition]]] = {"header": _header, TEXT: _text}
"""Of several values, a job has to meet all."""
