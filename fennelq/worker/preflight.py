"""What must be right before a worker starts: said in one sentence, not found out in production."""

from __future__ import annotations

import re
from typing import Any

from fennelq import log
from fennelq.app import App
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import Command, text
from fennelq.errors import ConfigurationError

_logger = log.get("fennelq.worker")
_OLDEST = (7, 0)


def check(app: App, *, force: bool = False) -> None:
    """Raises ConfigurationError when this Redis cannot be worked with, or would lose jobs; `force` turns that into a
    warning. A Redis that cannot be reached is no reason not to start: it is waited for."""
    try:
        problem = _too_old(app) or _evicts(app)
    except Exception as error:
        problem = _refused(error, app)
    if problem is None:
        return
    if not force:
        raise ConfigurationError(f"{problem} (--force goes on all the same)")
    _logger.warning("forced", problem=problem)


def _too_old(app: App) -> str | None:
    said = app.blocking.ask(Command(["INFO", "server"], text))
    found = re.search(r"redis_version:(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) >= _OLDEST:
        return None
    return f"Redis {found[1]}.{found[2]} at {app.address.shown} is too old: 7.0 or Valkey 7.2 is the least"


def _evicts(app: App) -> str | None:
    def read(reply: Any) -> str:
        return text(reply[1]) if len(reply) > 1 else "noeviction"

    try:
        policy = app.blocking.ask(Command(["CONFIG", "GET", "maxmemory-policy"], read))
    except Exception as error:
        # Many hosted servers forbid CONFIG; then the operator has to know.
        if classify(error) in (Trouble.FATAL, Trouble.BUG):
            return None
        raise
    if policy == "noeviction":
        return None
    return (
        f"Redis at {app.address.shown} may evict jobs: its maxmemory-policy is {policy}; "
        "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
    )


def _refused(error: Exception, app: App) -> str | None:
    if classify(error) is Trouble.FATAL:
        raise ConfigurationError(
            f"Redis at {app.address.shown} refuses us: {error}; mend redis_url"
        ) from None
    if classify(error) is Trouble.BUG:
        raise error
    _logger.warning("redis_unreachable", redis=app.address.shown, error=str(error), doing="waiting for it")
    return None
