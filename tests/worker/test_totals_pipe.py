"""The pipe for totals: what an executor sends arrives, and nothing that arrives can harm the supervisor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import orjson
import pytest
from structlog.typing import EventDict

from fennelq.model.totals import MOST_NAMES, Message, to_line
from fennelq.worker.processes import totals_pipe
from fennelq.worker.processes.totals_pipe import TotalsPipe, TotalsReader
from tests.kit.waiting import aeventually
from tests.model.test_totals import RESIZE, WELCOME, row


class Pipe:
    """Both ends of a pipe; the writing end without rules."""

    def __init__(self) -> None:
        self.reader = TotalsReader("anna")
        self._reading, self.writing = os.pipe()
        self.open = True

    def read(self) -> None:
        self.reader.open(self._reading)

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)

    def hang_up(self) -> None:
        if self.open:
            self.open = False
            os.close(self.writing)


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    pipe = Pipe()
    pipe.read()
    yield pipe
    pipe.reader.close()
    pipe.hang_up()


def line(successes: float = 1, **counters: float) -> bytes:
    return to_line(Message({WELCOME: row(successes)}, {}, counters, {}))


async def test_what_an_executor_sends_arrives(pipe: Pipe) -> None:
    message = Message({WELCOME: row(3)}, {RESIZE: [1, 0, 0, 2]}, {"leases_lost": 1}, {"slots": 32})
    await TotalsPipe(pipe.writing).send(to_line(message))
    await aeventually(lambda: pipe.reader.runs)
    assert (pipe.reader.runs, pipe.reader.sent) == (message.runs, message.sent)
    assert (pipe.reader.counters, pipe.reader.gauges) == (message.counters, message.gauges)


async def test_a_message_larger_than_the_pipe_arrives_when_the_supervisor_reads() -> None:
    pipe, rows = Pipe(), {("mail", f"shop:task_{n}"): row(n) for n in range(2000)}
    sending = asyncio.create_task(TotalsPipe(pipe.writing).send(to_line(Message(rows, {}, {}, {}))))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not sending.done()
    pipe.read()
    await asyncio.wait_for(sending, 20)
    await aeventually(lambda: pipe.reader.runs == rows)
    pipe.reader.close()
    pipe.hang_up()


async def test_a_message_whose_sending_was_cancelled_is_completed_by_the_next() -> None:
    pipe = Pipe()
    writer = TotalsPipe(pipe.writing)
    rows = {("mail", f"shop:task_{n}"): row(n) for n in range(2000)}
    sending = asyncio.create_task(writer.send(to_line(Message(rows, {}, {}, {}))))
    for _ in range(5):
        await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    pipe.read()
    await asyncio.wait_for(writer.send(line(7)), 20)
    await aeventually(lambda: WELCOME in pipe.reader.runs)
    assert pipe.reader.runs == rows | {WELCOME: row(7)}
    pipe.reader.close()
    pipe.hang_up()


async def test_what_a_dead_executor_has_left_in_the_pipe_is_read(pipe: Pipe) -> None:
    pipe.write(line(3) + line(5)[:20])
    pipe.hang_up()
    pipe.reader.close()
    assert pipe.reader.runs == {WELCOME: row(3)}


async def test_a_pipe_that_a_grandchild_holds_open_does_not_delay_the_end(pipe: Pipe) -> None:
    pipe.write(line(3))
    pipe.reader.close()
    assert pipe.reader.runs == {WELCOME: row(3)}


async def test_garbage_is_skipped_and_logged_once(pipe: Pipe, logged: list[EventDict]) -> None:
    pipe.write(b"garbage\n\x00\xff\n[]\n" + line(3) + b"{}\n")
    await aeventually(lambda: pipe.reader.runs)
    assert pipe.reader.runs == {WELCOME: row(3)}
    (entry,) = logged
    assert (entry["event"], entry["executor"]) == ("totals_unreadable", "anna")


async def test_after_much_garbage_the_supervisor_reads_no_more_from_this_executor(pipe: Pipe) -> None:
    pipe.write(line(3))
    pipe.write(b"garbage\n" * totals_pipe.MOST_UNREADABLE + line(9))
    await aeventually(lambda: is_closed(pipe))
    assert pipe.reader.runs == {WELCOME: row(3)}


def is_closed(pipe: Pipe) -> bool:
    try:
        os.write(pipe.writing, b"\n")
    except BrokenPipeError:
        return True
    return False


async def test_a_line_without_an_end_is_not_kept(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals_pipe, "LONGEST_LINE", 1000)
    pipe.write(b"x" * 1001)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pipe.write(b"\n" + line(3))
    await aeventually(lambda: pipe.reader.runs)
    assert pipe.reader.runs == {WELCOME: row(3)}


async def test_a_flood_is_read_piece_by_piece(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much within a second stays in the pipe."""
    monkeypatch.setattr(totals_pipe, "MOST_PER_SECOND", 100_000)
    await TotalsPipe(pipe.writing).send(b"")  # makes it non-blocking
    written = 0
    for _ in range(1000):
        try:
            written += os.write(pipe.writing, line(3))
        except BlockingIOError:
            pass
        await asyncio.sleep(0)
    assert 100_000 <= written < 100_000 + 3 * 65_536


async def test_no_number_falls(pipe: Pipe) -> None:
    pipe.write(line(5, leases_lost=3) + line(2, leases_lost=1))
    pipe.write(to_line(Message({RESIZE: row()}, {}, {}, {})))
    await aeventually(lambda: RESIZE in pipe.reader.runs)
    assert pipe.reader.runs[WELCOME] == row(5)
    assert pipe.reader.counters == {"leases_lost": 3}


async def test_an_executor_cannot_make_its_supervisor_keep_any_number_of_rows(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals_pipe, "MOST_ROWS", 10)
    for n in range(30):
        pipe.write(to_line(Message({("mail", str(n)): row()}, {}, {}, {})))
    pipe.write(line(1, leases_lost=1))
    await aeventually(lambda: pipe.reader.counters)
    assert len(pipe.reader.runs) == 11


async def test_an_executor_cannot_make_its_supervisor_keep_any_number_of_counters(pipe: Pipe) -> None:
    pipe.write(line(1, leases_lost=1))
    for n in range(30):
        pipe.write(line(1, **{f"made up {n} {m}": 1 for m in range(40)}))
    pipe.write(line(1, leases_lost=7))
    await aeventually(lambda: pipe.reader.counters.get("leases_lost") == 7)
    assert len(pipe.reader.counters) <= MOST_NAMES


async def test_of_a_long_name_the_supervisor_keeps_the_beginning(pipe: Pipe) -> None:
    pipe.write(to_line(Message({("q" * 5000, "shop:welcome"): row()}, {}, {"c" * 5000: 1}, {})))
    await aeventually(lambda: pipe.reader.runs)
    assert [*pipe.reader.runs] == [("q" * 1000, "shop:welcome")]
    assert [*pipe.reader.counters] == ["c" * 1000]


async def test_an_executor_that_is_not_read_any_more_has_no_gauges(
    pipe: Pipe, logged: list[EventDict]
) -> None:
    """They would stay as they are, and their age would be the lag of a loop that works."""
    pipe.write(to_line(Message({WELCOME: row(2)}, {}, {}, {"slots": 4})))
    await aeventually(lambda: pipe.reader.gauges)
    pipe.write(b"garbage\n" * totals_pipe.MOST_UNREADABLE)
    await aeventually(lambda: not pipe.reader.gauges)
    assert pipe.reader.runs == {WELCOME: row(2)}
    assert [event["event"] for event in logged] == ["totals_unreadable", "totals_refused"]


async def test_a_supervisor_that_is_gone_and_a_missing_pipe_cost_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    gone = TotalsPipe(writing)
    await gone.send(line())
    await gone.send(line())
    os.close(writing)
    await TotalsPipe().send(line())


def test_a_line_is_json() -> None:
    assert orjson.loads(line(3))["runs"][0][:2] == ["mail", "shop:welcome"]
