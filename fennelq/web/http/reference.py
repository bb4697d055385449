"""The reference page: every operation of the document, with a line of curl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from fennelq.web.http.openapi import operations_in

_NAMES: Final = {
    "job": "mail:0199c0de",
    "queue": "mail",
    "task": "shop.tasks:welcome",
    "operation": "0123abcd",
    "schedule": "nightly",
}


def page_of(document: Mapping[str, Any], examples: Mapping[tuple[str, str], str], base: str) -> str:
    """The page as HTML without styles and scripts."""
    parts = [*_parts(document, examples, base)]
    title = escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>"
    )


def _parts(document: Mapping[str, Any], examples: Mapping[tuple[str, str], str], base: str) -> Iterator[str]:
    for method, path, operation in operations_in(document):
        yield f"<h2>{escape(operation['summary'])}</h2><p><code>{method} {escape(path)}</code></p>"
        yield f"<p>{escape(operation['description'])}</p>"
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        line = curl_line(method, path, examples.get((method, path)), base)
        yield f"<pre>{escape(line)}</pre>"
        if parameters := operation.get("parameters"):
            rows = "".join(
                f"<tr><td><code>{escape(one['name'])}</code></td><td>{one['in']}</td>"
                f"<td>{escape(one.get('description', ''))}</td></tr>"
                for one in parameters
            )
            yield f"<table>{rows}</table>"
        if body is not None:
            yield f"<details><summary>Body</summary><pre>{escape(json.dumps(body, indent=2))}</pre></details>"


def curl_line(method: str, path: str, example: str | None, base: str) -> str:
    """A line for a shell, with names to be replaced."""
    filled = re.sub(r"{(\w+)}", lambda found: _NAMES[found[1]], path)
    words = ["curl", "-H", '"Authorization: Bearer $TOKEN"']
    if method != "GET":
        words += ["-X", method]
    if method in ("POST", "PUT") or example:
        body = example or "{}"
        words += [
            "-H",
            "'Content-Type: application/json'",
            "-d",
            f"'{body}'",
        ]
    return " ".join([*words, f"'{base}{filled}'"])
