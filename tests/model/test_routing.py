"""Which queues a worker serves, and in which order it looks at them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq.errors import ConfigurationError
from fennelq.model.routing import Routing

names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)


def order(routing: Routing) -> list[str]:
    """The queues that it serves, in the order in which a strict worker asks them."""
    return list(routing.weights)


@pytest.mark.parametrize("text", [None, ""])
def test_without_names_every_queue_is_served(text: str | None) -> None:
    routing = Routing.parse(text)
    assert routing.every
    assert order(routing) == []
    assert order(routing.including({"b", "a"})) == ["a", "b"]


def test_a_list_is_strict_and_keeps_its_order() -> None:
    routing = Routing.parse("mail, default,low")
    assert routing.strict
    assert not routing.every
    assert order(routing) == ["mail", "default", "low"]


def test_one_weight_makes_all_of_them_weighted() -> None:
    assert Routing.parse("mail:3,default") == Routing({"mail": 3, "default": 1})
    assert Routing.parse(" mail:3 , default:2 ") == Routing({"mail": 3, "default": 2})


@pytest.mark.parametrize("text", ["mail", "mail:5"])
def test_a_single_queue_is_not_strict(text: str) -> None:
    routing = Routing.parse(text)
    assert (order(routing), routing.strict) == (["mail"], False)


def test_what_was_named_is_all_that_is_served() -> None:
    routing = Routing.parse("mail,default")
    assert routing.including({"other"}) is routing
    assert order(Routing.parse("mail:2").including({"other"})) == ["mail"]


def test_queues_that_become_known_later_are_served_like_the_others() -> None:
    routing = Routing.parse(None).including({"a"}).including({"a", "b", "c"})
    assert routing.weights == {"a": 1, "b": 1, "c": 1}


@given(st.dictionaries(names, st.integers(1, 10**6), min_size=1, max_size=8))
def test_every_queue_is_served_with_its_weight(weights: dict[str, int]) -> None:
    routing = Routing.parse(",".join(f"{name}:{weight}" for name, weight in weights.items()))
    assert routing.weights == weights
    assert not routing.strict


# Patterns


def test_a_pattern_stands_for_all_queues_that_fit_it() -> None:
    routing = Routing.parse("mail.*")
    assert not routing.every
    assert not routing.strict
    assert routing.patterns == ["mail.*"]
    assert routing.weights == {}
    known = routing.including({"mail.eu", "mail.us", "mail", "email.eu", "Mail.eu"})
    assert known.weights == {"mail.eu": 1, "mail.us": 1}


def test_queues_that_fit_a_pattern_later_are_served_and_those_that_are_gone_are_not() -> None:
    routing = Routing.parse("mail.*").including({"mail.eu"})
    assert order(routing.including({"mail.eu", "mail.us"})) == ["mail.eu", "mail.us"]
    assert order(routing.including({"mail.us"})) == ["mail.us"]


def test_names_among_patterns_are_served_before_they_are_known() -> None:
    routing = Routing.parse("urgent,mail.*")
    assert order(routing) == ["urgent"]
    assert order(routing.including({"mail.eu"})) == ["urgent", "mail.eu"]


def test_a_list_with_a_pattern_is_strict_and_keeps_its_order() -> None:
    routing = Routing.parse("z,mail.*,a").including({"mail.b", "mail.a", "a"})
    assert routing.strict
    assert order(routing) == ["z", "mail.a", "mail.b", "a"]


def test_every_queue_of_a_pattern_has_its_weight() -> None:
    routing = Routing.parse("mail.*:3,default").including({"mail.a", "mail.b"})
    assert not routing.strict
    assert routing.weights == {"mail.a": 3, "mail.b": 3, "default": 1}


def test_of_several_patterns_the_first_that_fits_counts() -> None:
    routing = Routing.parse("mail.*:3,*.eu:2").including({"mail.eu", "post.eu", "post.us"})
    assert routing.weights == {"mail.eu": 3, "post.eu": 2}


@pytest.mark.parametrize("text", ["mail.*:3,mail.eu:9", "mail.eu:9,mail.*:3"])
def test_a_name_counts_before_every_pattern(text: str) -> None:
    assert Routing.parse(text).including({"mail.eu", "mail.us"}).weights == {"mail.eu": 9, "mail.us": 3}


def test_a_star_alone_stands_for_every_queue_with_its_weight() -> None:
    routing = Routing.parse("urgent:9,*:1").including({"a", "b", "urgent"})
    assert routing.weights == {"urgent": 9, "a": 1, "b": 1}


@pytest.mark.parametrize("text", ["ma[il]*", "ma?l*", "{a}*", "a b*", "*" * 129])
def test_a_pattern_that_fits_no_queue_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"queue .* is not valid: use 1-128 of"):
        Routing.parse(text)


# What cannot be read


@pytest.mark.parametrize("text", [",", "a,", ",a", "a:", ":3", "a:b", "a:-1", "a:1.5", "a:1:2", " "])
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read: write mail,default or mail:3,default:1"):
        Routing.parse(text)


@pytest.mark.parametrize("text", ["a b", "{a}", "é", "x" * 129, "a:3,b c:1"])
def test_a_name_that_cannot_be_a_queue_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"queue .* is not valid: use 1-128 of"):
        Routing.parse(text)


def test_a_weight_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a weight is 1 or more"):
        Routing.parse("a:0,b:1")
