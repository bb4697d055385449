"""Writes answers as JSON."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_json


def written(value: Any) -> bytes:
    """The value as JSON. What JSON cannot represent becomes a text."""
    try:
        return to_json(value, inf_nan_mode="null", fallback=str, bytes_mode="utf8")
    except ValueError:  # half a surrogate pair, or bytes that are not UTF-8
        return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
