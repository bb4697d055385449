"""Real web servers and real workers, and a client that talks to them over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

import pytest

from tests.docs.terminal import listens
from tests.kit.ports import HOST, Port
from tests.kit.spawn import PROJECT, Process, Spawner
from tests.kit.waiting import eventually


class Reply(NamedTuple):
    """What a web server answered."""

    status: int
    headers: HTTPMessage
    json: Any


class Web:
    """A web server that runs, and a client of it. May be used by any number of threads."""

    def __init__(self, process: Process, port: Port) -> None:
        self.process, self._port = process, port

    @property
    def url(self) -> str:
        """Where it is, for another client."""
        return self._url("")

    def get(self, path: str) -> Reply:
        """GET."""
        return self._ask(urllib.request.Request(self._url(path)))

    def post_form(self, path: str, **fields: str) -> Reply:
        """POST, as a form in a browser does."""
        return self._ask(urllib.request.Request(self._url(path), urlencode(fields).encode()))

    def post_json(self, path: str, body: Any, **headers: str) -> Reply:
        """POST with a JSON body; underscores in names of headers stand for dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = json.dumps(body).encode()
        return self._ask(
            urllib.request.Request(self._url(path), data, {"Content-Type": "application/json", **named})
        )

    def delete(self, path: str) -> Reply:
        """DELETE."""
        return self._ask(urllib.request.Request(self._url(path), method="DELETE"))

    @contextmanager
    def events(self, path: str) -> Generator[Iterator[tuple[str, Any]]]:
        """The server-sent events of a path, each with its name and its data, as they arrive. At the end of the block
        the connection is closed, as by a browser that goes away."""
        with urllib.request.urlopen(self._url(path), timeout=60) as answer:
            assert answer.headers.get_content_type() == "text/event-stream"
            lines = (line.decode().rstrip("\n") for line in answer)
            yield ((name, json.loads(next(lines).removeprefix("data: "))) for name in _names(lines))

    def _url(self, path: str) -> str:
        return f"http://{HOST}:{self._port.number}{path}"

    def _ask(self, request: urllib.request.Request) -> Reply:
        try:
            answer = cast("HTTPResponse", urllib.request.urlopen(request, timeout=60))
        except urllib.error.HTTPError as refusal:
            answer = cast("HTTPResponse", refusal)
        with answer:
            body = answer.read()
        read = json.loads(body) if "json" in answer.headers.get("Content-Type", "") else body.decode()
        return Reply(answer.status, answer.headers, read)


def _names(lines: Iterator[str]) -> Iterator[str]:
    return (line.removeprefix("event: ") for line in lines if line.startswith("event: "))


Serve = Callable[..., Web]


@pytest.fixture
def serve(spawn: Spawner) -> Iterator[Serve]:
    """`serve("uvicorn", "main:web")`: started on a free port, and listening when this returns."""
    ports: list[Port] = []

    def start(server: str, *arguments: str, environment: Mapping[str, str], directory: Path = PROJECT) -> Web:
        ports.append(port := Port())
        where = {"uvicorn": ("--port", f"{port.number}"), "gunicorn": ("--bind", f"{HOST}:{port.number}")}
        process = spawn(server, *arguments, *where[server], environment=environment, directory=directory)
        eventually(lambda: listens(port) or not process.running, within=30, what=f"{server} listens")
        return Web(process, port)

    yield start
    for port in ports:
        port.release()
