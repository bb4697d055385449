"""An app whose tasks log, for worker processes: TALKATIVE names how it configures logging when imported."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import os
import sys

import structlog

from fennelq import App, RetryPolicy
from fennelq.context import JobFilter, add_job

FORMAT = "mine %(levelname)s %(name)s %(job_id)s %(message)s"


def bring_own_handler() -> None:
    """What a module does that is also run as a script."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("mine %(message)s"))
    logging.getLogger(__name__).addHandler(handler)


def bring_own_stdlib() -> None:
    """What a framework does from its settings."""
    logging.config.dictConfig(
        {
            "version": 1,
            "filters": {"job": {"()": JobFilter}},
            "formatters": {"mine": {"format": FORMAT}},
            "handlers": {"mine": {"class": "logging.StreamHandler", "formatter": "mine", "filters": ["job"]}},
            "root": {"handlers": ["mine"], "level": "INFO"},
        }
    )


def bring_own_structlog() -> None:
    """What a project does that uses structlog everywhere."""
    structlog.configure(
        processors=[
            add_job,
            structlog.processors.add_log_level,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


CONFIGURE = {
    "basic": lambda: logging.basicConfig(level=logging.DEBUG, format="mine %(message)s"),
    "handler": bring_own_handler,
    "stdlib": bring_own_stdlib,
    "structlog": bring_own_structlog,
}
if os.environ.get("TALKATIVE"):
    CONFIGURE[os.environ["TALKATIVE"]]()

app = App("shop")
app.route("tests.worker.quiet.*", queue="quiet")  # which no task follows
log = logging.getLogger(__name__)
slog = structlog.get_logger(__name__)


@app.task(retries=0)
async def talk(secret: str) -> int:
    """Logs in every way there is."""
    log.info("stdlib logs %d", 7, extra={"order": 7})
    slog.info("structlog logs", order=7)
    log.debug("stdlib whispers")
    slog.debug("structlog whispers")
    await asyncio.gather(asyncio.create_task(below()), asyncio.to_thread(aside))
    return len(secret)


async def below() -> None:
    """A sub-task."""
    log.info("from a sub-task")


def aside() -> None:
    """A thread."""
    slog.info("from a thread")


@app.task(retries=0)
def talk_in_thread(secret: str) -> int:
    """The same without a loop, and an exception that is handled."""
    log.info("stdlib logs %d", 8, extra={"order": 8, "level": "mine"})
    slog.info("structlog logs", order=8)
    try:
        raise LookupError("not there")
    except LookupError:
        log.exception("stdlib failed")
        slog.exception("structlog failed")
    return len(secret)


@app.task(retry=RetryPolicy.fixed(2, delay=0.05))
async def fail(secret: str) -> None:
    """Fails at every try."""
    refuse()


@app.task(retries=0)
async def lie(secret: str) -> int:
    """Returns something else than it promises."""
    return secret  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def refuse() -> None:
    """The innermost frame."""
    raise ConnectionError("the bank hung up\x1b[2J")
