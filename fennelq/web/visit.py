"""A request that has passed the gate, and the answers that a page may give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from fennelq.errors import FennelqError
from fennelq.model.checks import REASON
from fennelq.web.users import User

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.redaction import Redaction
    from fennelq.web.looks import Look
    from fennelq.web.site import Site

F = TypeVar("F", bound=BaseModel)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_ESCAPED: Final = re.compile(r"~([0-9A-F]{2})")


class NotFound(FennelqError):
    """The address names something that does not exist."""


class Forbidden(FennelqError):
    """The user lacks the right for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer that is a page."""

    template: str
    title: str
    section: str | None = ""
    """The section of the navigation; None for a page that has none."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: int = 200


@dataclass(frozen=True, slots=True)
class Moved:
    """An answer that leads to a page: something was done. The page shows `done` in words."""

    to: str
    done: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What a page gets."""

    site: Site
    user: User
    address: str
    """The address of the client."""
    path: str
    """The path within the dashboard, with its leading slash."""
    names: Mapping[str, str]
    """The names in the path."""
    query: Mapping[str, str]
    body: bytes = b""
    form: BaseModel | None = None
    live: bool = False
    """Whether only the parts of the page are rendered that update themselves."""
    via: str = "web"
    """Where the request came from, for the record of operations."""

    @property
    def app(self) -> App:
        """The app that is shown."""
        return self.site.app

    @property
    def base(self) -> str:
        """The relative way from this page to the first one. With relative links, the dashboard works under any prefix
        and behind any proxy, also behind one that removes the prefix."""
        return "../" * (self.path.count("/") - 1) or "./"

    @property
    def who(self) -> str:
        """The user and the address, for the record of operations."""
        shown = f"{self.user.name}@{self.address}" if self.address else self.user.name
        return shown if REASON.fullmatch(shown) else ascii(shown)[:500]

    @property
    def redaction(self) -> Redaction:
        """The rules by which the app hides secrets."""
        return self.app.redaction

    async def look(self) -> Look:
        """The latest look at the app."""
        return await self.site.looks.now()

    def given(self, model: type[F]) -> F:
        """The form that was sent."""
        return self.form if isinstance(self.form, model) else model()

    def can(self, right: str) -> bool:
        """Whether the user has this right."""
        return self.user.can(right)


def link(*parts: str, **query: object) -> str:
    """The path of a page, below the first one: `link("queues", "mail", state="dead")`."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return "/".join(map(segment, parts)) + (f"?{urlencode(given)}" if given else "")


def segment(name: str) -> str:
    """A name as a part of a path. Names of executors and groups may have slashes, and `..` is a valid name of a queue:
    both would lead elsewhere."""
    if _PLAIN.fullmatch(name):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if _is_plain(byte, place) else f"~{byte:02X}" for place, byte in enumerate(raw))


def name_of(part: str) -> str:
    """The name of which `segment` has made this part of a path."""
    raw = re.sub(_ESCAPED, lambda found: chr(int(found[1], 16)), part)
    try:
        return raw.encode("latin-1").decode("utf-8", "surrogatepass")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return part


def _is_plain(byte: int, place: int) -> bool:
    text = chr(byte)
    return byte < 128 and (text.isalnum() or text in "_-:" or (text == "." and place > 0))


def quoted(text: str) -> str:
    """A text as the value in a query."""
    return quote(text, safe="")
