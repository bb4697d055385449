"""Keys in Redis are what they were: a fixture recorded by an earlier version is written, and read, by this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest

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
    recorded.play(desk, timetable)
    found = recorded.contents(desk.redis)
    # The earlier version made every lane in advance. Now the first job of a lane makes it.
    assert earlier["keys"].pop(desk.keys["iso"])["holds"] == {"entries": [], "pending": []}
    # It stored a cursor even when the next walk begins at the first entry.
    assert set(earlier["keys"].pop(desk.keys["sweep"])["holds"].values()) == {"0-0"}
    assert found.keys() == earlier["keys"].keys()
    for name, key in earlier["keys"].items():
        assert found[name] == key, name


def test_what_an_earlier_version_has_written_is_read_as_it_read_it(
    desk: Desk, timetable: Timetable, earlier: dict[str, Any]
) -> None:
    recorded.restore(desk.redis, earlier["keys"])
    timetable.clock.pass_by(5 * MINUTE)
    read = recorded.readings(desk, timetable)
    # The earlier version asked no running job to stop.
    assert {job.pop("stopping") for kind in ("jobs", "outlines") for job in read[kind].values()} == {None}
    assert read.keys() == earlier["read"].keys()
    for name, reading in earlier["read"].items():
        assert read[name] == reading, name
