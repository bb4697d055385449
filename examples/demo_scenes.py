"""The scenes of `make demo`: each sends jobs, waits for them and checks their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from examples.demo_board import Board
from examples.demo_tasks import Order, app, charge_card, print_invoice, remind, send_mail, shrink
from fennelq import AsyncResult, Status, TaskFailed, as_completed

PATIENCE = 30.0
"""Long enough for a slow machine; usually, each scene takes a few seconds."""
DELAY = 2.0


class Unexpected(Exception):
    """A check that failed."""


class Line(NamedTuple):
    """One line of the summary at the end."""

    jobs: int
    what: str
    text: str


async def mails(board: Board, _: Path) -> Line:
    """Many calls, one round trip."""
    addresses = [f"customer-{n}@shop.test" for n in range(40)]
    results = await send_mail.map(addresses)
    answers = await ends(board, results)
    expect("every mail was sent", sorted(answers) == sorted(f"sent to {address}" for address in addresses))
    return Line(len(results), "mails", "sent to Redis in one round trip, and run at the same time")


async def double_click(board: Board, _: Path) -> Line:
    """A second call with the same key returns the job of the first call."""
    once = send_mail.options(key="welcome:ada")
    first, second = await asyncio.gather(once.delay("ada@shop.test"), once.delay("ada@shop.test"))
    expect("both calls got the same job", first == second)
    expect("one handle is marked as deduplicated", first.deduplicated != second.deduplicated)
    await ends(board, [first])
    return Line(1, "double click", "two calls with one idempotency key made one job")


async def pictures(board: Board, _: Path) -> Line:
    """Plain functions."""
    results = await shrink.map([f"picture-{n}.png" for n in range(8)], [800] * 8)
    sizes = await ends(board, results)
    expect("every picture was shrunk", all(0 < size < 800 * 256 for size in sizes))
    return Line(len(results), "pictures", "shrunk in threads, while the mails were sent")


async def payment(board: Board, _: Path) -> Line:
    """Fails twice, then succeeds."""
    result = await charge_card.delay(Order(number=7, customer="Ada"))
    [tries] = await ends(board, [result])
    expect("the third try succeeded", tries == 3)
    return Line(1, "payment", f"no reply from the bank in {tries - 1} tries; try {tries} succeeded")


async def reminder(board: Board, _: Path) -> Line:
    """Runs later."""
    result = await remind.options(delay=DELAY).delay(Order(number=8, customer="Grace"))
    expect("it is scheduled", await result.status() is Status.SCHEDULED)
    await ends(board, [result])
    waited = await seconds_before_start(result)
    expect("it did not run early", waited >= DELAY)
    return Line(1, "reminder", f"sent with a delay of {DELAY:.2f} s, started after {waited:.2f} s")


async def invoice(board: Board, folder: Path) -> Line:
    """Dies, is inspected, and is replayed after the cause has been corrected."""
    template = folder / "invoice.txt"
    result = await print_invoice.delay(Order(number=9, customer="Linus"), template)
    failure = await failure_of(result)
    board.show("dead", f"invoice, after {failure.tries} tries: {failure.error_type}")
    letter = await app.dlq.get(result.id)
    expect(
        "its dead letter contains the error", letter is not None and letter.error_type == failure.error_type
    )

    template.write_text("Invoice {order.number} for {order.customer}", encoding="utf-8")
    report = await app.dlq.replay(task=print_invoice)
    board.show("replayed", f"{report.replayed} job from the dead-letter queue: the template exists now")
    expect("one job was put back", report.replayed == 1 and await app.dlq.count() == 0)
    expect("the same job has printed the invoice", await ends(board, [result]) == ["Invoice 9 for Linus"])
    return Line(1, "invoice", f"died of {failure.error_type}, was replayed and printed")


Scene = Callable[[Board, Path], Awaitable[Line]]

SCENES: Sequence[Scene] = (mails, double_click, pictures, payment, reminder, invoice)


async def play(board: Board, folder: Path) -> list[Line | BaseException]:
    """Play all scenes at once; an error ends only its own scene."""
    board.show("enqueue", "mails, pictures, a payment, a reminder, an invoice")
    scenes = (scene(board, folder) for scene in SCENES)
    return await asyncio.gather(*scenes, return_exceptions=True)


async def ends(board: Board, results: Sequence[AsyncResult[Any]]) -> list[Any]:
    """The results of these jobs, in the order in which they end."""
    board.sent(len(results))
    values: list[Any] = []
    async for result in as_completed(results, timeout=PATIENCE):
        values.append(await result.get(timeout=PATIENCE))
        board.ended()
    return values


async def failure_of(result: AsyncResult[Any]) -> TaskFailed:
    """The error of a job that cannot succeed."""
    try:
        await result.get(timeout=PATIENCE)
    except TaskFailed as failure:
        return failure
    raise Unexpected("it should have died")


async def seconds_before_start(result: AsyncResult[Any]) -> float:
    """The time that a job has waited, by the clock of the server."""
    info = await result.info()
    if info is None or info.started_at is None or info.enqueued_at is None:
        raise Unexpected("its record does not contain the time of its start")
    return (info.started_at - info.enqueued_at).total_seconds()


def expect(claim: str, true: bool) -> None:
    """Raise an error with the claim if it is not true."""
    if not true:
        raise Unexpected(f"not true: {claim}")
