"""Checks arguments whose value must be one of a few words."""

from __future__ import annotations

from typing import Any, get_args

from fennelq.errors import ConfigurationError


def check_choice(name: str, given: object, choices: Any) -> None:
    """Raises ConfigurationError, with a list of the valid words, when an argument is not one of the words of a
    Literal."""
    words: tuple[str, ...] = get_args(choices)
    if given not in words:
        raise ConfigurationError(f"{name} {given!r:.100} is not one of {', '.join(words)}")
