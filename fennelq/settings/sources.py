"""Reads settings from `[tool.fennelq]` in pyproject.toml and from the environment. Unknown names are errors."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from fennelq.broker.connection import masked
from fennelq.errors import ConfigurationError
from fennelq.wording import suggestion

PREFIX = "FENNELQ_"
_OF_THE_COMMAND_LINE = "FENNELQ_APP"
_CALLED_ELSEWHERE = {
    **dict.fromkeys(
        ("broker", "broker_url", "backend", "result_backend", "url", "dsn", "redis", "redis_uri"), "redis_url"
    ),
    "queue": "default_queue",
    "retries": "default_retries",
    "max_retries": "default_retries",
    "workers": "processes",
    "tombstone_ttl": "record_ttl",
}
"""Names that other frameworks or earlier versions use, and fennelq's names: comparing the letters would not find
them."""
_OF_KUBERNETES = re.compile(
    r"""
    FENNELQ_ ([A-Z0-9_]+_)? (
      SERVICE_HOST = [0-9a-fA-F.:]+
    | SERVICE_PORT (_[A-Z0-9_]+)? = \d+
    | PORT (_\d+_(TCP|UDP|SCTP))? = (tcp|udp|sctp)://.+
    | PORT_\d+_(TCP|UDP|SCTP)_PROTO = (tcp|udp|sctp)
    | PORT_\d+_(TCP|UDP|SCTP)_PORT = \d+
    | PORT_\d+_(TCP|UDP|SCTP)_ADDR = [0-9a-fA-F.:]+
    )
    """,
    re.VERBOSE,
)
"""The variables that Kubernetes sets in every container of a namespace for a service named `fennelq` or `fennelq-…`.
No setting's name has such an end. The values are part of the pattern: any other FENNELQ_…_PORT is a mistake."""


def from_pyproject(root: Path | None) -> dict[str, Any]:
    """The table `[tool.fennelq]` of the project, without `app`, which belongs to the command line."""
    path = root / "pyproject.toml" if root else None
    if path is None or not path.is_file():
        return {}
    try:
        tool: Any = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
        table = dict(tool.get("fennelq", {}))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(f"{path} cannot be read: [tool.fennelq] must be a table") from None
    table.pop("app", None)
    return table


def from_environment() -> dict[str, Any]:
    """The variables with fennelq's prefix, in upper or lower case, without those that Kubernetes sets for a service of
    that name."""
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX)
        and name.upper() != _OF_THE_COMMAND_LINE
        and not _OF_KUBERNETES.fullmatch(f"{name}={value}")
    }


def refuse_unknown(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises ConfigurationError for a name that is not one of the known ones, and suggests the nearest known one."""
    for name in given:
        if name not in known:
            meant = _CALLED_ELSEWHERE.get(name.lower())
            hint = f": did you mean {meant!r}?" if meant else suggestion(name, known)
            raise ConfigurationError(f"{where}: unknown setting {name!r}{hint}")


def _history_url(url: str | None) -> str | None:
    if url is None or url.startswith(("postgresql://", "postgres://")):
        return url
    if not url.startswith("sqlite:"):
        raise ConfigurationError(
            f"history_url {masked(url)!r} is not understood: use sqlite:///folder/file or postgresql://"
        )
    path = url.removeprefix("sqlite:")
    if not path.startswith("///") or path.endswith("/") or "?" in path:
        raise ConfigurationError(
            f"history_url {url!r} names no file: write sqlite:///folder/file, with three slashes and an absolute path"
        )
    return url


HistoryUrl = Annotated[str | None, AfterValidator(_history_url)]
"""The URL of a database for the history."""
