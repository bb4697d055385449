"""A row of the table of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from fennelq.web.looks import PATIENCE
from fennelq.web.streaming import Streamed
from fennelq.web.users import Right
from fennelq.web.visit import Moved, Page, Visit

PUBLIC: Final = "public"
"""Instead of a right: everybody gets it, without signing in."""
Handler = Callable[[Visit], Awaitable[Page | Moved | Streamed | Response]]
Method = Literal["GET", "POST"]


class Form(BaseModel):
    """The fields of a form. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


class Row(NamedTuple):
    """A route: who may do what, and which function does it."""

    method: Method
    path: str
    """Below the first page; `{name}` is a part of a path as `segment` makes it."""
    right: Right | Literal["public"]
    handler: Handler
    form: type[BaseModel] | None = None
    """The model of the body of a POST."""
    live: bool = False
    """Whether the page updates itself."""
    of_look: bool = False
    """Whether the page shows nothing but the look: then it is rendered once for all who ask for it meanwhile."""
    patience: float = PATIENCE + 0.15
    """Seconds after which Redis is considered away."""
    largest: int = 1 << 16
    """The most bytes of a body."""
