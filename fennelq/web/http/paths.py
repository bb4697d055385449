"""Finds the row of the table for a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from starlette.types import Scope

from fennelq.web.answering import path_in
from fennelq.web.gate import Rejected
from fennelq.web.http.table import Method, Route
from fennelq.web.visit import NotFound

PREFIX: Final = "/api/v1"
AT_ROOT: Final = ("/openapi.json", "/metrics")
"""Paths that are also beside the prefix."""
_NAME: Final = re.compile(r"\\{(\w+)\\}")
_SLASH: Final = "\0"
"""Stands for a slash inside of a part, which arrives as `%2F`."""
_FORMS: Final = {"job": "[^/:]+:[^/:]+"}
"""A job id has exactly one colon: otherwise `/jobs/mail:0abc:cancel` could be a task."""


class Paths:
    """The table, by path."""

    def __init__(self, rows: Sequence[Route]) -> None:
        self._plain: dict[str, dict[str, Route]] = {}
        self._others: list[tuple[re.Pattern[str], Route]] = []
        for row in rows:
            if "{" in row.path:
                self._others.append((_pattern(row.path), row))
            else:
                self._plain.setdefault(row.path, {})[row.method] = row

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """The row, and the names in the path. Raises NotFound, and Rejected for a method that the path does not
        have."""
        below = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else path
        if below == path and path not in AT_ROOT:
            raise _not_found(path)
        plain = self._plain.get(below, {})
        if method in plain:
            return plain[method], {}
        allowed = [*plain]
        for pattern, row in self._others:
            if (found := pattern.fullmatch(below)) is not None:
                if row.method == method:
                    return row, {name: part.replace(_SLASH, "/") for name, part in found.groupdict().items()}
                allowed.append(row.method)
        if not allowed:
            raise _not_found(path)
        methods = ", ".join(sorted({*allowed}))
        raise Rejected(
            405,
            "Method not allowed",
            f"{method[:20]} is not a method of this path: use {methods}.",
            Allow=methods,
        )


def _not_found(path: str) -> NotFound:
    return NotFound(f"The API has no {path[:200]!r}: /openapi.json has all paths, below {PREFIX}.")


def path_of(scope: Scope) -> str:
    """The path of a request below the mount, decoded part by part: a part may have an encoded slash."""
    raw = scope.get("raw_path")
    if not raw or b"%2" not in raw.lower():
        return path_in(scope)
    path = "/".join(unquote(part).replace("/", _SLASH) for part in raw.decode("latin-1").split("/"))
    root = unquote_to_bytes(str(scope.get("root_path", "")).rstrip("/")).decode("utf-8", "replace")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(
        _NAME.sub(lambda found: f"(?P<{found[1]}>{_FORMS.get(found[1], '[^/]+')})", re.escape(path)),
        re.DOTALL,
    )


METHODS: Final[tuple[Method, ...]] = ("GET", "POST", "PUT", "DELETE")
