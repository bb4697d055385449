"""How much of it: a little with every `make test`, all of it with `make chaos`; and from which seed."""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

LONG: Final = os.environ.get("CHAOS_LONG") == "1"
SEED: Final = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
"""`CHAOS_SEED=…` does the same again: the same jobs, the same faults at the same moments, as far as machines do."""

SLACK: Final = 5.0 if LONG else 20.0
"""Seconds that a busy machine may add to a time that is promised. The long run has its machine for itself."""
AT_ONCE: Final = 4.5
"""The same for a job that starts because an executor is woken: less than a round of looks, which finds it as well."""


def servers() -> list[pytest.MarkDecorator]:
    """In the long run, on both kinds of server."""
    return [pytest.mark.both_servers] if LONG else []


def of(few: int, *, long: int) -> int:
    """A number that is larger in the long run."""
    return long if LONG else few


def dice(*what: object) -> random.Random:
    """Chance for one purpose, identified by its name: another purpose does not disturb it."""
    print(f"CHAOS_SEED={SEED}")
    return random.Random(f"{SEED} {what}")
