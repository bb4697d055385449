"""A request that has passed the gate, and an answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from fennelq.web.visit import Visit

if TYPE_CHECKING:
    from fennelq.web.http.office import Office

T = TypeVar("T")
Q = TypeVar("Q", bound=BaseModel)


class Answer(NamedTuple):
    """An answer: a value that is written as JSON."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Visit):
    """What a handler gets."""

    office: Office
    """What all calls share."""
    request: Request
    json: Any = None
    """The body, when it is JSON and its route has no model."""
    asked: BaseModel | None = None
    """The query."""
    via: str = "http"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def asking(self, model: type[Q]) -> Q:
        """The query."""
        return self.asked if isinstance(self.asked, model) else model()

    async def unless_left(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What the work returns; None when the client has left or the process is to end, which cancels the work."""
        doing = asyncio.ensure_future(work)
        others = [asyncio.ensure_future(self._left()), asyncio.ensure_future(self.office.closing.wait())]
        try:
            await asyncio.wait([doing, *others], return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else None
        finally:
            for one in (doing, *others):
                one.cancel()
            await asyncio.gather(doing, *others, return_exceptions=True)

    async def _left(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
