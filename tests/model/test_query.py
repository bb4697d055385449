"""The filter language."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fennelq import InvalidFilter
from fennelq.model.query import ENDED, LIVE, TEXT, WORDS, Query, State, Term, moment_text, parse
from fennelq.model.units import epoch_ms

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2026, 5, 2, 15, 30, tzinfo=ZONE)
MS = epoch_ms(NOW)
HOUR = 3_600_000


def read(text: str) -> Query:
    return parse(text, NOW)


def test_a_filter_has_words_texts_and_exclusions() -> None:
    query = read('state:dead task:shop:welcome -queue:mail "free text" header:tenant=acme no-colon')
    assert query.values("state") == ("dead",)
    assert query.values("task") == ("shop:welcome",)
    assert query.values("queue") == ()
    assert query.values("queue", excluded=True) == ("mail",)
    assert query.values("header") == ("tenant=acme",)
    assert query.values(TEXT) == ("free text", "no-colon")


def test_the_order_and_repetitions_of_terms_do_not_matter() -> None:
    assert read("task:a  state:dead task:a") == read("state:dead task:a")
    assert not read("  \t\n")
    assert read("x")


VALUES = [
    ('task:"a b"', Term("task", "a b")),
    ('"say \\"hi\\""', Term(TEXT, 'say "hi"')),
    ('"a\\\\b"', Term(TEXT, "a\\b")),
    ('"\\d+"', Term(TEXT, "\\d+")),
    ('header:tenant="acme inc"', Term("header", "tenant=acme inc")),
    ('header:"a=b=c"', Term("header", "a=b=c")),
    ("key:welcome:42", Term("key", "welcome:42")),
    ('-"free text"', Term(TEXT, "free text", True)),
    ("-task:welcome", Term("task", "welcome", True)),
    ("-", Term(TEXT, "-")),
    ('"task:welcome"', Term(TEXT, "task:welcome")),
    (":x", Term(TEXT, ":x")),
    ("fp:3F9A21C0", Term("fp", "3f9a21c0")),
    ("on:web-3", Term("on", "web-3")),
    ("[42", Term(TEXT, "[42")),
    ("größer", Term(TEXT, "größer")),
]


@pytest.mark.parametrize(("text", "term"), VALUES)
def test_a_term_is_read(text: str, term: Term) -> None:
    assert read(text).terms == (term,)


STATES: list[tuple[str, frozenset[State]]] = [
    ("", LIVE),
    ("task:a", LIVE),
    ("state:waiting", frozenset({State.WAITING})),
    ("state:waiting state:retry", frozenset({State.WAITING, State.RETRY})),
    ("-state:dead", LIVE - {State.DEAD}),
    ("state:success", frozenset({State.SUCCESS})),
]


@pytest.mark.parametrize(("text", "states"), STATES)
def test_the_states_of_a_filter(text: str, states: frozenset[State]) -> None:
    assert read(text).states == states


def test_every_state_is_live_or_ended() -> None:
    assert {*map(str, LIVE | ENDED)} == {
        *("waiting", "limited", "blocked", "running", "scheduled", "retry", "dead", "success", "cancelled")
    }


TIMES = [
    ("2h", MS - 2 * HOUR),
    ("1h30m", MS - HOUR - HOUR // 2),
    ("90", MS - 90_000),
    ("13:55", epoch_ms(datetime(2026, 5, 2, 13, 55, tzinfo=ZONE))),
    ("9:05:07", epoch_ms(datetime(2026, 5, 2, 9, 5, 7, tzinfo=ZONE))),
    ("2026-05-01", epoch_ms(datetime(2026, 5, 1, tzinfo=ZONE))),
    ("2026-05-01T14:30", epoch_ms(datetime(2026, 5, 1, 14, 30, tzinfo=ZONE))),
    ("2026-05-01T14:30:00.123Z", epoch_ms(datetime(2026, 5, 1, 14, 30, tzinfo=UTC)) + 123),
    ("99y", None),
    ("80000w", None),
    ("1000-01-01T00:00Z", 0),
]


@pytest.mark.parametrize(("text", "ms"), TIMES)
def test_a_time_is_a_time_before_now_a_time_of_today_or_a_date(text: str, ms: int | None) -> None:
    if ms is None:
        with pytest.raises(InvalidFilter, match="is not a time: write a time before now"):
            read(f"since:{text}")
        return
    assert read(f"since:{text}").since_ms == ms
    assert read(f"until:{text}").until_ms == ms


def test_a_filter_without_times_has_none() -> None:
    assert (read("x").since_ms, read("x").until_ms) == (None, None)


def test_times_are_read_once() -> None:
    query = read("since:2h")
    assert parse(str(query), NOW + timedelta(days=1)) == query


IDS = [
    ("mail:0abcdefghABCDEFGHIJK", ("mail:0abcdefghABCDEFGHIJK",)),
    ("tasks:0abcdefghABCDEFGHIJK", ("tasks:0abcdefghABCDEFGHIJK",)),
    ("mail:order-17", ("mail:order-17",)),
    ("id:tasks:order-17", ("tasks:order-17",)),
    ("id:mail:1 id:mail:2", ("mail:1", "mail:2")),
    ('"mail:order-17"', ()),
]


@pytest.mark.parametrize(("text", "ids"), IDS)
def test_a_bare_id_names_a_job(text: str, ids: tuple[str, ...]) -> None:
    assert read(text).ids == ids


WRONG = [
    ("taks:welcome", "unknown filter word 'taks': did you mean 'task'\\? .* write id:taks:welcome"),
    ("state:dead taks:welcome", "unknown filter word 'taks': did you mean 'task'\\?$"),
    ("state:dead mail:1", "unknown filter word 'mail'; known: .* write it in quotes"),
    ("TASK:welcome x", "unknown filter word 'TASK'"),
    ("http://x y", "unknown filter word 'http'"),
    ("state:daed", "unknown state 'daed': did you mean 'dead'\\?"),
    (
        "state:x",
        "unknown state 'x'; known: blocked, cancelled, dead, limited, retry, running, scheduled, success, waiting",
    ),
    ("task:", "task: has no value: write task:welcome"),
    ('task:""', "task: has no value"),
    ('""', "a text is empty"),
    ('"open', "a quote is not closed: '\"open'"),
    ('a"b', "a quote is not closed"),
    ('"a\\"', "a quote is not closed"),
    ("queue:a/b", "queue 'a/b' is not valid"),
    ("header:tenant", "header:tenant has no value: write header:tenant=acme"),
    ("header:=x", "has no value"),
    ("id:nonsense", "is not a job id"),
    ("fp:{}", "is not a fingerprint"),
    ("since:soon", "since:'soon' is not a time"),
    ("since:", "since: has no value: write since:2h"),
    ("since:23:59", "since:23:59 is in the future"),
    ("since:2027-01-01", "is in the future"),
    ("since:1h since:2h", "since: stands twice"),
    ("since:1h until:2h", "is after until:"),
    ("-since:1h", "since: cannot be excluded: write until: instead"),
    ("-until:1h", "until: cannot be excluded: write since: instead"),
    ("task:a -task:a", "-task:a excludes what the filter asks for"),
    ("state:dead -state:dead", "excludes what the filter asks for"),
    (" ".join(f"-state:{state}" for state in LIVE), "excludes every state"),
    ("id:mail:1 state:dead", "cannot be combined with other terms"),
    ("-id:mail:1", "cannot be combined"),
    ("card.*", "looks like a pattern, and filters have none"),
    ("card*", "looks like a pattern"),
    ("^card", "looks like a pattern"),
    ("refused$", "looks like a pattern"),
    ("\\d+", "looks like a pattern"),
    ("[a-z]", "looks like a pattern"),
    ("(card|money)", "looks like a pattern"),
    ("task:shop.*", "looks like a pattern"),
    ("x" * 4001, "4,001 characters: 4,000 are possible"),
    ("x " * 51, "51 terms: 50 are possible"),
    ("\udcff", "UTF-8 cannot write"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG)
def test_a_wrong_filter_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidFilter, match=sentence):
        read(text)


def test_what_looks_like_a_pattern_is_a_text_in_quotes() -> None:
    assert read('"^card.*"').values(TEXT) == ("^card.*",)


def test_an_until_in_the_future_is_no_error() -> None:
    assert read("until:23:59").until_ms == epoch_ms(datetime(2026, 5, 2, 23, 59, tzinfo=ZONE))


def test_terms_are_added() -> None:
    assert read("task:a").also([Term("queue", "mail")]) == read("queue:mail task:a")
    with pytest.raises(InvalidFilter):
        read("task:a").also([Term("task", "a", True)])


# Any text and any filter

names = st.text("abcXYZ019_.-", min_size=1, max_size=20)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
moments = st.integers(0, MS).map(moment_text)
values: dict[str, st.SearchStrategy[str]] = {
    "state": st.sampled_from([str(state) for state in State]),
    "queue": names,
    "since": moments,
    "until": moments,
    "header": st.tuples(names, texts).map("=".join),
    "fp": st.text("0123456789abcdef", min_size=8, max_size=8),
    "id": st.tuples(names, names).map(":".join),
}


def terms_of(word: str) -> st.SearchStrategy[Term]:
    excluded = st.just(False) if word in ("since", "until", "id") else st.booleans()
    return st.builds(Term, st.just(word), values.get(word, texts), excluded)


terms = st.sampled_from((TEXT, *WORDS)).flatmap(terms_of)


@given(st.lists(terms, max_size=12))
def test_a_filter_as_text_is_the_same_filter(given: list[Term]) -> None:
    try:
        query = Query.of(given)
    except InvalidFilter:
        return
    assert read(str(query)) == query


@given(st.text(max_size=60))
@example("since:٣h")
@example("since:0001-01-01")
@example("since:9999-12-31T23:59:59-23:59")
@example("until:" + "9" * 400)
@example('"' + "\\" * 50)
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    read_or_refuse(text)


@given(st.text(st.sampled_from('state:dksincqu"\\- 0123h=:.'), max_size=40))
def test_any_text_of_the_signs_of_filters_is_a_filter_or_is_refused(text: str) -> None:
    read_or_refuse(text)


def read_or_refuse(text: str) -> None:
    """Nothing but an InvalidFilter is raised, and a filter that is read is the same as text."""
    try:
        query = read(text)
    except InvalidFilter:
        return
    assert read(str(query)) == query
