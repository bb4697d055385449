"""The jobs of `make demo`: a small shop. Run by `fennelq worker -A examples.demo_tasks:app`."""

from __future__ import annotations

import asyncio
import random
import zlib
from pathlib import Path

from pydantic import BaseModel

from fennelq import App, RetryPolicy, current_job

app = App("demo")


class Order(BaseModel):
    """Arguments travel by annotation: what is sent as an Order arrives as one."""

    number: int
    customer: str


class BankUnreachable(Exception):
    """Now and then the bank hangs up. That is what retries are for."""


@app.task(queue="mail", timeout=10)
async def send_mail(address: str) -> str:
    """Most of a mail's time is waiting, so one process has many of them under way."""
    await asyncio.sleep(random.uniform(0.05, 0.4))
    return f"sent to {address}"


@app.task(queue="pictures")
def shrink(name: str, kilobytes: int) -> int:
    """A plain function runs in a thread, and mails go out meanwhile."""
    return len(zlib.compress(name.encode() * kilobytes * 256))


@app.task(retry=RetryPolicy.fixed(3, delay=0.4))
async def charge_card(order: Order) -> int:
    """The bank hangs up twice; answers the try that went through."""
    tries = current_job().tries
    if tries < 3:
        raise BankUnreachable(f"it hung up on {order.customer}")
    return tries


@app.task(queue="mail")
async def remind(order: Order) -> str:
    """Sent with a delay: it waits in Redis, not in a worker."""
    return f"reminded {order.customer} of order {order.number}"


@app.task(retry=RetryPolicy.fixed(1, delay=0.2))
def print_invoice(order: Order, template: Path) -> str:
    """Cannot work without its template, however often it is tried."""
    return template.read_text(encoding="utf-8").format(order=order)
