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
    """The task receives its argument with the annotated type: an Order."""

    number: int
    customer: str


class BankUnreachable(Exception):
    """The bank sometimes does not reply, so the task is retried."""


@app.task(queue="mail", timeout=10)
async def send_mail(address: str) -> str:
    """Sending a mail is mostly waiting, so one process can send many mails at the same time."""
    await asyncio.sleep(random.uniform(0.05, 0.4))
    return f"sent to {address}"


@app.task(queue="pictures")
def shrink(name: str, kilobytes: int) -> int:
    """A plain function runs in a thread; meanwhile, the event loop sends mails."""
    return len(zlib.compress(name.encode() * kilobytes * 256))


@app.task(retry=RetryPolicy.fixed(3, delay=0.4))
async def charge_card(order: Order) -> int:
    """The bank does not reply to the first two tries; returns the number of the try that succeeded."""
    tries = current_job().tries
    if tries < 3:
        raise BankUnreachable(f"no reply for order {order.number}")
    return tries


@app.task(queue="mail")
async def remind(order: Order) -> str:
    """This job is sent with a delay: it waits in Redis, not in a worker."""
    return f"reminded {order.customer} of order {order.number}"


@app.task(retry=RetryPolicy.fixed(1, delay=0.2))
def print_invoice(order: Order, template: Path) -> str:
    """Every try fails while the template does not exist."""
    return template.read_text(encoding="utf-8").format(order=order)
