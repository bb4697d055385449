"""Which part of a filter the history answers, and which part the lists in Redis."""

from __future__ import annotations

from collections.abc import Collection

from fennelq.model.query import ENDED, Query, State, Term


def of_history(query: Query) -> Query | None:
    """The part of a filter that is about jobs that are in no list any more; None when it asks for none of them."""
    return query if query.ids else _with_states(query, query.states & ENDED)


def of_lists(query: Query) -> Query | None:
    """The part of a filter that is about jobs in lists; None when it asks for none of them."""
    return query if query.ids else _with_states(query, query.states - ENDED)


def _with_states(query: Query, states: Collection[State]) -> Query | None:
    others = [term for term in query.terms if term.word != "state"]
    return Query.of([*others, *(Term("state", str(state)) for state in states)]) if states else None
