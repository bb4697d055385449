"""Which queues a worker serves, and in which order it looks at them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq.errors import ConfigurationError
from fennelq.model.routing import Routing

names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)


def firsts(routing: Routing, rounds: int = 20_000) -> Counter[str]:
    """How often each queue comes first."""
    chance = random.Random(7).random
    return Counter(routing.order(chance)[0] for _ in range(rounds))


@pytest.mark.parametrize("text", [None, ""])
def test_without_a_text_every_queue_is_served(text: str | None) -> None:
    routing = Routing.parse(text)
    assert routing.every
    assert routing.order() == []
    assert sorted(routing.including({"b", "a"}).order()) == ["a", "b"]


def test_a_list_is_strict_and_keeps_its_order() -> None:
    routing = Routing.parse("mail, default,low")
    assert routing.strict
    assert not routing.every
    for _ in range(20):
        assert routing.order() == ["mail", "default", "low"]


def test_one_weight_makes_all_of_them_weighted() -> None:
    assert Routing.parse("mail:3,default") == Routing({"mail": 3, "default": 1})
    assert Routing.parse(" mail:3 , default:2 ") == Routing({"mail": 3, "default": 2})


def test_a_single_queue_is_always_first() -> None:
    for text in ("mail", "mail:5"):
        assert Routing.parse(text).order() == ["mail"]


def test_what_was_named_is_all_that_is_served() -> None:
    routing = Routing.parse("mail,default")
    assert routing.including({"other"}) is routing
    assert Routing.parse("mail:2").including({"other"}).order() == ["mail"]


def test_queues_that_turn_up_later_are_served_like_the_others() -> None:
    routing = Routing.parse(None).including({"a"}).including({"a", "b", "c"})
    assert routing.weights == {"a": 1, "b": 1, "c": 1}
    counts = firsts(routing)
    assert all(abs(counts[name] / 20_000 - 1 / 3) < 0.02 for name in "abc")


def test_a_heavier_queue_comes_first_in_proportion() -> None:
    counts = firsts(Routing.parse("mail:6,default:3,low:1"))
    for name, share in {"mail": 0.6, "default": 0.3, "low": 0.1}.items():
        assert abs(counts[name] / 20_000 - share) < 0.02


def test_a_light_queue_is_looked_at_however_heavy_the_others_are() -> None:
    assert set(firsts(Routing.parse("mail:100,low:1"))) == {"mail", "low"}


@given(
    st.dictionaries(names, st.integers(1, 10**6), min_size=1, max_size=8), st.randoms(use_true_random=False)
)
def test_every_queue_is_in_every_round_once(weights: dict[str, int], source: random.Random) -> None:
    routing = Routing.parse(",".join(f"{name}:{weight}" for name, weight in weights.items()))
    assert routing.weights == weights
    assert sorted(routing.order(source.random)) == sorted(weights)


def test_a_draw_of_zero_does_no_harm() -> None:
    assert sorted(Routing.parse("a:1000000,b:1").order(lambda: 0.0)) == ["a", "b"]


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
