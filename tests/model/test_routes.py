"""Routes: which queue the jobs of a task go to when neither the task nor the call names one."""

from __future__ import annotations

import pytest

from fennelq.errors import ConfigurationError
from fennelq.model.routes import Route, Routes, matches


def routes(*pairs: tuple[str, str]) -> Routes:
    """Routes of an app whose default queue is `default`."""
    made = Routes("default")
    for pattern, queue in pairs:
        made.add(Route.of(pattern, queue), [])
    return made


@pytest.mark.parametrize(
    ("pattern", "task", "expected"),
    [
        ("shop.images:resize", "shop.images:resize", True),
        ("shop.images.resize", "shop.images:resize", True),
        ("shop.images.*", "shop.images:resize", True),
        ("shop.images.*", "shop.images.thumbs:make", True),
        ("shop.images.*", "shop.images_old:resize", False),
        ("shop.images.*", "shop.images", False),
        ("shop.images:*", "shop.images:resize", True),
        ("shop.images:*", "shop.images.thumbs:make", False),
        ("shop.images", "shop.images:resize", False),
        ("*", "shop.images:resize", True),
        ("*:resize", "shop.images:resize", True),
        ("*.resize", "shop.images:resize", True),
        ("SHOP.*", "shop.images:resize", False),
        ("shop:[a]*", "shop:[a]b", True),
        ("shop:[a]*", "shop:ab", False),
        ("shop:?", "shop:a", False),
    ],
)
def test_a_dot_in_a_pattern_also_stands_for_the_colon_and_only_a_star_for_other_characters(
    pattern: str, task: str, expected: bool
) -> None:
    assert matches(task, pattern) is expected


def test_a_task_that_no_route_matches_goes_to_the_default_queue() -> None:
    assert routes(("shop.images.*", "gpu")).queue_of("shop.mail:send") == "default"


@pytest.mark.parametrize("reverse", [False, True])
def test_an_exact_name_comes_before_a_pattern_and_a_longer_pattern_before_a_shorter_one(
    reverse: bool,
) -> None:
    pairs = [("*", "rest"), ("shop.*", "shop"), ("shop.images.*", "gpu"), ("shop.images:resize", "exact")]
    found = routes(*(reversed(pairs) if reverse else pairs))
    assert [found.queue_of(task) for task in ("other:task", "shop.mail:send", "shop.images:crop")] == [
        "rest",
        "shop",
        "gpu",
    ]
    assert found.queue_of("shop.images:resize") == "exact"


def test_a_longer_pattern_comes_first_whatever_it_begins_with() -> None:
    assert routes(("shop.*", "shop"), ("*.images:resize", "gpu")).queue_of("shop.images:resize") == "gpu"


def test_the_stars_of_a_pattern_do_not_make_it_longer() -> None:
    assert routes(("s*h*o*p*.*a*", "stars"), ("shop.ma*", "letters")).queue_of("shop.mail:send") == "letters"


def test_a_route_that_is_added_later_counts_for_tasks_that_were_asked_for_before() -> None:
    found = routes(("shop.*", "shop"))
    tasks = ["shop.mail:send", "shop.mail:welcome"]
    asked = [found.routed(task) for task in tasks]
    for routed in asked:
        assert (routed.known, routed.queue(), routed.known) == ("", "shop", "shop")
    found.add(Route.of("shop.mail.*", "mail"), tasks)
    for routed in asked:
        assert (routed.known, routed.queue(), routed.known) == ("", "mail", "mail")
    assert [found.routed(task) for task in tasks] == asked


def test_two_routes_that_match_a_task_equally_are_an_error_that_names_both() -> None:
    found = routes(("shop.*.ab", "one"))
    sentence = (
        "task 'shop.a:ab' matches two routes equally, 'shop.*.ab' (queue 'one') and 'shop.a.*b' (queue 'two'): "
        "add a route for its exact name, or name the queue at the task"
    )
    with pytest.raises(ConfigurationError) as refused:
        found.add(Route.of("shop.a.*b", "two"), ["other:task", "shop.a:ab", "shop.a:ab.ab"])
    assert str(refused.value) == sentence
    assert [route.queue for route in found] == ["one"]  # the route was not added
    found.add(Route.of("shop.a.*b", "two"), ["shop.b:ab"])
    with pytest.raises(ConfigurationError) as refused:
        found.queue_of("shop.a:ab")
    assert str(refused.value) == sentence
    found.add(Route.of("shop.a:ab", "exact"), ["shop.a:ab"])
    assert found.queue_of("shop.a:ab") == "exact"


def test_a_pattern_with_two_queues_is_an_error_that_names_both() -> None:
    found = routes(("shop.*", "one"))
    found.add(Route.of("shop.*", "one"), [])
    assert [*found] == [("shop.*", "one")]
    with pytest.raises(ConfigurationError, match=r"^app.route: 'shop.\*' has two queues, 'one' and 'two'"):
        found.add(Route.of("shop.*", "two"), [])


@pytest.mark.parametrize(
    ("pattern", "queue", "sentence"),
    [
        (
            "",
            "gpu",
            "app.route: '' is not a pattern of task names: write shop.images.* or shop.images:resize",
        ),
        ("shop images", "gpu", "app.route: 'shop images' is not a pattern of task names"),
        ("a" * 257, "gpu", "app.route: 'aaaa"),
        (None, "gpu", 'app.route takes the pattern of task names first, like "shop.images.*", not None'),
        ("shop.*", "g p u", "queue 'g p u' is not valid: use 1-128 of"),
        ("shop.*", "", "queue '' is not valid: use 1-128 of"),
    ],
)
def test_a_route_that_cannot_be_read_is_refused_with_the_rule(
    pattern: object, queue: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Route.of(pattern, queue)
    assert str(refused.value).startswith(sentence)


def test_routes_that_no_task_follows_are_found_in_their_order_with_the_reason() -> None:
    tasks = {"shop.mail:send": True, "shop.mail:welcome": True, "shop.images:resize": False}
    found = routes(
        ("shop.image.*", "gpu"),
        ("shop.images", "gpu"),
        ("shop.images.*", "gpu"),
        ("shop.*", "rest"),
        ("shop.mail.*", "mail"),
    )
    assert [(route.pattern, why) for route, why in found.unfollowed(tasks)] == [
        ("shop.image.*", "it matches no task: did you mean 'shop.images:resize'?"),
        ("shop.images", "it matches no task: did you mean 'shop.images.*'?"),
        ("shop.*", "other routes match its tasks more closely: shop.images:resize"),
        (
            "shop.mail.*",
            "the tasks that it matches name their queue themselves: shop.mail:send, shop.mail:welcome",
        ),
    ]
    # One task that follows a route is enough.
    tasks |= {"shop.mail:free": False, "shop.other:task": False}
    assert [route.pattern for route, _ in found.unfollowed(tasks)] == ["shop.image.*", "shop.images"]
