"""Keys in Redis are what they were: a fixture recorded by an earlier version is written, and read, by this one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from fennelq.model.fingerprint import is_fingerprint
from tests.broker import recorded
from tests.broker.desk import Desk
from tests.broker.timetable import MINUTE, Timetable

FILE: Final = Path(__file__).with_name("recorded.json")

pytestmark = pytest.mark.audit(skip="it is put there by hand, and half of it is still going on")


@pytest.fixture
def earlier() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(FILE.read_bytes())
    return found


def test_every_option_and_every_fate_leaves_the_same_bytes_as_in_an_earlier_version(
    desk: Desk, timetable: Timetable, earlier: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.determined(monkeypatch)
    began = time.monotonic()
    recorded.play(desk, timetable)
    found = recorded.contents(desk.redis)
    took = time.monotonic() - began
    # The earlier version made every lane in advance. Now the first job of a lane makes it.
    assert earlier["keys"].pop(desk.keys["iso"])["holds"] == {"entries": [], "pending": []}
    # It stored a cursor even when the next walk begins at the first entry.
    assert set(earlier["keys"].pop(desk.keys["sweep"])["holds"].values()) == {"0-0"}
    # It kept no index of the dead jobs, and no fingerprint in their entries.
    for name in ("dlq:g", "dlq:f", "dlq:l"):
        assert found.pop(desk.keys[name])["ttl"] == -1
    for _, fields in found[desk.keys["dlq"]]["holds"]["entries"]:
        assert is_fingerprint(fields.pop("f"))
    # It did not store when a scheduled job was due.
    records = [key["holds"] for key in found.values() if key["type"] == "hash"]
    assert {record.pop("q") for record in records if "q" in record} == {
        "1795000060000",
        "1795000180000",
        "1795000205453",
    }
    assert found.keys() == earlier["keys"].keys()
    for name, key in earlier["keys"].items():
        # Redis counts the time that the jobs take, whatever the clock of the scripts, and rounds up to seconds.
        assert -1 - took <= found[name].pop("ttl") - key.pop("ttl") <= 0, name
        assert found[name] == key, name


def test_what_an_earlier_version_has_written_is_read_as_it_read_it(
    desk: Desk, timetable: Timetable, earlier: dict[str, Any]
) -> None:
    recorded.restore(desk.redis, earlier["keys"])
    timetable.clock.pass_by(5 * MINUTE)
    read = recorded.readings(desk, timetable)
    # The earlier version asked no running job to stop.
    assert {job.pop("stopping") for kind in ("jobs", "outlines") for job in read[kind].values()} == {None}
    # It did not tell when a job was due: no record that it has written has that.
    delivered = read["delivered"].values()
    assert [job.pop("due_ms") for job in delivered] == [job["enqueued_ms"] for job in delivered]
    # It showed the name of the function before the key of a job.
    for job in earlier["read"]["jobs"].values():
        job["key"] = job["key"] and job["key"].partition(":")[2]
    assert read.keys() == earlier["read"].keys()
    for name, reading in earlier["read"].items():
        assert read[name] == reading, name
