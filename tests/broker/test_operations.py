"""op_begin, op_perform, op_stop: the record of an operation on many jobs, and its one performer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.verbs.operations import KEPT_MS, SILENCE_MS, Wish
from tests.broker.desk import Bench, about
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


class Ledger(Bench[AppKeys]):
    """The operations of the app `shop`."""

    def begin(self, operation: str = "1", **fields: str) -> int:
        return self.do(verbs.operations.op_begin, operation, {"act": "cancel", **fields})

    def perform(self, who: str, wish: Wish = "claim", **fields: str) -> str:
        return self.do(verbs.operations.op_perform, "1", who, wish, fields).word

    def record(self, operation: str = "1") -> dict[str, str]:
        return self.do(verbs.operations.record, operation)

    def ttl(self, name: str) -> int:
        return int(str(self.redis.pttl(name)))


@pytest.fixture
def ledger(server: Server, server_clock: ServerClock) -> Iterator[Ledger]:
    server_clock.stop_at(server_clock.now())
    ledger = Ledger(server, AppKeys("shop"))
    yield ledger
    ledger.close()


def test_an_operation_is_recorded_once(ledger: Ledger) -> None:
    assert ledger.begin(where="state:waiting") == 1
    assert ledger.begin(where="state:dead") == 0
    record = ledger.record()
    assert (record["state"], record["by"], record["where"]) == ("running", "", "state:waiting")
    assert int(record["begun"]) == ledger.broker.ask(verbs.server.now())
    assert ledger.do(verbs.operations.newest, 10) == ["1"]
    assert ledger.ttl(ledger.keys.operation("1")) == about(KEPT_MS)
    assert ledger.ttl(ledger.keys["ops"]) == about(KEPT_MS)


def test_the_newest_operations_are_listed_first_and_the_old_ones_leave(
    ledger: Ledger, server_clock: ServerClock
) -> None:
    for operation in ("1", "2", "3"):
        ledger.begin(operation)
        server_clock.pass_by(1)
    assert ledger.do(verbs.operations.newest, 2) == ["3", "2"]
    server_clock.pass_by(KEPT_MS - 3)
    ledger.begin("4")
    assert ledger.do(verbs.operations.newest, 10) == ["4", "3", "2"]


def test_at_most_a_thousand_operations_are_listed(ledger: Ledger) -> None:
    now = ledger.broker.ask(verbs.server.now())
    ledger.redis.zadd(ledger.keys["ops"], {f"o{n}": now - 5000 + n for n in range(1000)})
    ledger.begin()
    listed = ledger.do(verbs.operations.newest, 2000)
    assert (len(listed), listed[0], listed[-1]) == (1000, "1", "o1")


def test_one_performer_claims_it_and_reports(ledger: Ledger) -> None:
    ledger.begin()
    assert ledger.perform("anna") == "yours"
    assert ledger.perform("berta") == "busy"
    assert ledger.perform("anna", "go_on", cursor="5", done="7") == "yours"
    assert ledger.perform("berta", "go_on", cursor="6", done="8") == "busy"
    record = ledger.record()
    assert (record["by"], record["cursor"], record["done"]) == ("anna", "5", "7")
    assert ledger.perform("anna", "done", done="9") == "yours"
    record = ledger.record()
    assert (record["state"], record["done"]) == ("done", "9")
    assert int(record["ended"]) == int(record["beat"])


def test_another_process_goes_on_when_the_performer_is_silent(
    ledger: Ledger, server_clock: ServerClock
) -> None:
    ledger.begin()
    ledger.perform("anna")
    server_clock.pass_by(SILENCE_MS - 1000)
    assert ledger.perform("berta") == "busy"
    ledger.perform("anna", "go_on", done="5")
    server_clock.pass_by(SILENCE_MS - 1000)
    assert ledger.perform("berta") == "busy"
    server_clock.pass_by(2000)
    assert ledger.perform("berta") == "yours"
    assert ledger.perform("anna", "go_on", done="6") == "busy"
    assert ledger.perform("anna", "done", done="6") == "busy"
    assert ledger.record()["done"] == "5"


def test_after_the_clock_was_set_back_a_dead_performer_does_not_keep_its_operation(
    ledger: Ledger, server_clock: ServerClock
) -> None:
    """Otherwise it would be busy until the clock is there again. A performer that lives reports with the new time."""
    ledger.begin()
    ledger.perform("anna")
    server_clock.pass_by(-3_600_000)
    assert ledger.perform("anna", "go_on", done="5") == "yours"
    assert ledger.perform("berta") == "busy"
    server_clock.pass_by(-3_600_000)
    assert ledger.perform("berta") == "yours"
    assert ledger.record()["done"] == "5"


def test_a_performer_may_claim_again(ledger: Ledger) -> None:
    ledger.begin()
    assert [ledger.perform("anna"), ledger.perform("anna")] == ["yours", "yours"]


def test_its_performer_learns_that_it_was_stopped_and_it_goes_on_later(ledger: Ledger) -> None:
    ledger.begin()
    ledger.perform("anna")
    assert ledger.do(verbs.operations.op_stop, "1") == "running"
    assert ledger.do(verbs.operations.op_stop, "1") == "stopped"
    assert ledger.perform("anna", "go_on", done="5") == "stopped"
    assert ledger.perform("anna", "done", done="5") == "stopped"
    record = ledger.record()
    assert "done" not in record
    assert int(record["ended"]) == ledger.broker.ask(verbs.server.now())
    assert ledger.perform("berta") == "yours"
    record = ledger.record()
    assert (record["state"], record["by"]) == ("running", "berta")
    assert "ended" not in record


@pytest.mark.parametrize(("wish", "again"), [("done", "done"), ("failed", "yours")])
def test_one_that_failed_may_be_resumed_and_one_that_is_done_not(
    ledger: Ledger, wish: Wish, again: str
) -> None:
    ledger.begin()
    ledger.perform("anna")
    ledger.perform("anna", wish, problem="no")
    assert ledger.perform("berta") == again
    assert ledger.do(verbs.operations.op_stop, "1") == ("done" if again == "done" else "running")
    assert ("problem" in ledger.record()) == (again == "done")


def test_an_unknown_operation_is_not_made(ledger: Ledger) -> None:
    assert [ledger.perform("anna"), ledger.perform("anna", "go_on", done="1")] == ["unknown", "unknown"]
    assert ledger.do(verbs.operations.op_stop, "1") == ""
    assert ledger.redis.keys("*op*") == []


def test_each_step_renews_the_record_and_the_index(ledger: Ledger, server_clock: ServerClock) -> None:
    ledger.begin()
    for name in (ledger.keys.operation("1"), ledger.keys["ops"]):
        ledger.redis.pexpire(name, 60_000)
    ledger.perform("anna")
    for name in (ledger.keys.operation("1"), ledger.keys["ops"]):
        assert ledger.ttl(name) == about(KEPT_MS)
