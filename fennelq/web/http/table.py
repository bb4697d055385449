"""A row of the table of the HTTP API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel
from starlette.responses import Response

from fennelq.web.http.call import Answer, Call
from fennelq.web.looks import PATIENCE
from fennelq.web.users import Right

ANY_USER: Final = "any"
"""Instead of a right: every user who has signed in."""
Handler = Callable[[Call], Awaitable[Answer | Response]]
Method = Literal["GET", "POST", "PUT", "DELETE"]
SMALL: Final = 1 << 16
"""Bytes of a body that has no arguments."""
LARGE: Final = 1 << 20
BULK: Final = 8 << 20
QUICK: Final = PATIENCE + 0.15
"""Seconds after which Redis is considered away."""
SLOW: Final = 10.0
"""Seconds for an operation that searches, or takes many steps."""


class Route(NamedTuple):
    """A route: who may do what, and which function does it."""

    method: Method
    path: str
    """Below `/api/v1`; `{name}` is a part of the path, percent-encoded."""
    right: Right | Literal["any"]
    handler: Handler
    summary: str
    """What it does, in a sentence."""
    body: Any = None
    """The type of its body: a model, or another type that pydantic knows; None without one."""
    query: type[BaseModel] | None = None
    """The model of its query."""
    statuses: Mapping[int, str] = {200: "The answer."}
    """The statuses of good answers, and their meanings."""
    returns: str = ""
    """The name of the schema of the answer; empty for an object that is described by its members' names."""
    media: str = "application/json"
    """The type of the answer."""
    largest: int = SMALL
    """The most bytes of a body."""
    patience: float = QUICK
    is_timed: bool = False
    """Whether its handler itself gives Redis a short time for each reply."""
    example: str = ""
    """A body for the reference page, as JSON."""

    @property
    def changes(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET"

    @property
    def name(self) -> str:
        """Its name in the document: `pauseQueue`."""
        return self.handler.__name__.rstrip("_")
