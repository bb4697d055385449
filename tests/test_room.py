"""Further attempts of a call whose queue was full."""

from __future__ import annotations

from typing import Any

import pytest

from fennelq import App, clock
from fennelq.model.wire import AnyWireJob
from fennelq.room import Attempts
from tests.kit.jobs import sent

FULL, CREATED, PAUSED = [3], 1, [b"e\n"]


@pytest.fixture
def app() -> App:
    """It waits for the queues `mail` and `sms`, not for `web`."""
    app = App("shop", redis_url="redis://localhost:1", enqueue_timeout=10)
    for queue in ("mail", "sms"):
        app.queue(queue, max_waiting=1, when_full="wait")
    app.queue("web", max_waiting=1)
    return app


def jobs_of(queue: str, number: int) -> list[AnyWireJob]:
    return [sent(queue, str(key), "app:welcome") for key in range(number)]


def test_of_a_large_call_a_hundred_jobs_per_queue_are_sent_again_at_a_time(app: App) -> None:
    jobs = [*jobs_of("mail", 250), *jobs_of("sms", 2)]
    attempts = Attempts(app, jobs, clock.monotonic())
    assert attempts.next([CREATED] * 5 + [FULL] * 247) == [*range(5, 105), 250, 251]


def test_more_jobs_are_sent_again_at_a_time_while_all_of_them_get_in(app: App) -> None:
    jobs = jobs_of("mail", 3000)
    attempts, numbers = Attempts(app, jobs, clock.monotonic()), list[int]()
    replies: list[object] = [FULL] * 3000
    for room in (100, 200, 400, 350, 400, 0):
        places = attempts.next(replies)
        numbers.append(len(places))
        for place in places[:room]:
            replies[place] = CREATED
    assert numbers == [100, 200, 400, 800, 350, 700]
    assert len(attempts.next(replies)) == 100


def test_while_jobs_get_in_the_pauses_are_short_and_the_time_begins_anew(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    attempts = Attempts(app, jobs_of("mail", 9), now)
    replies: list[object] = [FULL] * 9
    for place in range(4):
        for _ in range(6):
            assert attempts.next(replies) == [*range(place, 9)]
            attempts.pause()
        now += 9
        replies[place] = b"other" if place else CREATED
        assert attempts.next(replies) == [*range(place + 1, 9)]
        assert (attempts.since, attempts.pause() <= 0.05) == (now, True)
    now += 9.99
    assert attempts.next(replies)
    now += 0.01
    assert attempts.next(replies) == []


def test_a_refusal_says_how_many_jobs_waited_at_the_last_attempt(app: App) -> None:
    jobs = [*jobs_of("mail", 150), *jobs_of("sms", 1), *jobs_of("web", 1)]
    attempts = Attempts(app, jobs, clock.monotonic())
    replies: list[Any] = [[3]] * 150 + [[4], [5]]
    assert attempts.next(replies) == [*range(100), 150]
    replies[:100], replies[150] = [CREATED, *[[7]] * 99], [8]
    assert attempts.next(replies)
    assert attempts.final(replies) == [CREATED, *[[7]] * 149, [8], [5]]


def test_only_jobs_that_met_a_full_queue_which_is_to_be_waited_for_are_sent_again(app: App) -> None:
    jobs = [*jobs_of("mail", 5), *jobs_of("web", 1), *jobs_of("default", 1)]
    attempts = Attempts(app, jobs, clock.monotonic())
    replies = [FULL, CREATED, b"other", PAUSED, ValueError(), FULL, FULL]
    assert attempts.next(replies) == [0]
    assert attempts.next([CREATED] * 7) == []


def test_the_pauses_grow_and_are_random_and_the_last_one_ends_at_the_deadline(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 100.0, list[float]()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    attempts = Attempts(app, jobs_of("mail", 1), now - 2)
    while attempts.next([FULL]):
        pauses.append(attempts.pause())
        now += pauses[-1]
    assert now == pytest.approx(108)
    for place, pause in enumerate(pauses[:-1]):
        longest = min(1.0, 0.05 * 2**place)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == len(pauses)
