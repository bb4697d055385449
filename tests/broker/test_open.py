"""open: makes every lane of a queue and its group."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import STREAMS
from fennelq.broker.trouble import ReplyError
from tests.broker.desk import Desk, a_job
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def groups(desk: Desk) -> dict[str, list[bytes]]:
    found = {lane: cast("Any", desk.redis.xinfo_groups(desk.keys[lane])) for lane in STREAMS}
    return {lane: [group["name"] for group in groups] for lane, groups in found.items()}


def test_every_lane_gets_its_group(bare: Desk) -> None:
    assert bare.do(verbs.queues.open_queue) == 4
    assert groups(bare) == {lane: [b"fq"] for lane in STREAMS}


def test_opening_again_changes_nothing(desk: Desk) -> None:
    before = desk.everything()
    assert desk.do(verbs.queues.open_queue) == 0
    assert desk.everything() == before


def test_only_what_is_missing_is_made(desk: Desk) -> None:
    desk.redis.delete(desk.keys["iso"])
    desk.redis.xgroup_destroy(desk.keys["s"], "fq")
    assert desk.do(verbs.queues.open_queue) == 2
    assert groups(desk) == {lane: [b"fq"] for lane in STREAMS}


def test_what_was_sent_before_is_delivered(bare: Desk) -> None:
    bare.enqueue(a_job("1"), a_job("2", priority="low"))
    bare.do(verbs.queues.open_queue)
    deliveries = bare.take()
    assert [delivery.key for delivery in deliveries] == ["1", "2"]
    bare.finish(deliveries)


def test_a_lane_of_a_wrong_type_is_an_error(bare: Desk) -> None:
    bare.redis.set(bare.keys["s"], "what?")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        bare.do(verbs.queues.open_queue)
    bare.redis.delete(bare.keys["s"])
    assert bare.do(verbs.queues.open_queue) == 3


def test_over_maxmemory_a_queue_can_be_opened(bare: Desk, server: Server) -> None:
    with server.configured(maxmemory="1"):
        assert bare.do(verbs.queues.open_queue) == 4
