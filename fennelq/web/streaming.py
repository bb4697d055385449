"""A page that is sent while its rows are found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment

from fennelq.web.visit import Page

PLACE: Final = "<!-- rows -->"
"""Where the rows are in the template of the page. `PLACE_END` is where the text after them is."""
PLACE_END: Final = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that is a page with rows that are still being looked for."""

    page: Page
    parts: AsyncIterator[tuple[str, Mapping[str, Any]]]
    """The template and the values of each row; the last one is the text after the rows."""


async def html_of(
    streamed: Streamed, values: Mapping[str, Any], templates: Environment
) -> AsyncIterator[str]:
    """The page, piece by piece."""
    page = templates.get_template(streamed.page.template).render(values)
    head, _, rest = page.partition(PLACE)
    middle, _, tail = rest.partition(PLACE_END)
    yield head
    end = ""
    async for template, more in streamed.parts:
        html = templates.get_template(template).render({**values, **more})
        if template.endswith("_end.html"):
            end = html
        else:
            yield html
    yield middle
    yield end
    yield tail
