"""What an editor shows: the language server of basedpyright is asked as an editor asks it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fennelq
from fennelq.settings.settings import Settings

HOUSE = Path(fennelq.__file__).parent


class Editor:
    """One open file, and the language server that knows it."""

    def __init__(self, file: Path) -> None:
        self._uri = file.as_uri()
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("basedpyright-langserver"), "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        root = HOUSE.parent.as_uri()
        folders = [{"uri": root, "name": "fennelq"}]
        capabilities = {"textDocument": {"hover": {"contentFormat": ["plaintext"]}}}
        start = {
            "processId": None,
            "rootUri": root,
            "capabilities": capabilities,
            "workspaceFolders": folders,
        }
        self._request("initialize", start)
        self._send({"method": "initialized", "params": {}})
        text = file.read_text("utf-8")
        opened = {"uri": self._uri, "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": opened}})

    def shows(self, line: int, character: int = 0) -> str:
        """The text that it shows when the mouse is over this place."""
        place = {"line": line, "character": character}
        found = self._request("textDocument/hover", {"textDocument": {"uri": self._uri}, "position": place})
        return str(found["contents"]["value"]) if found else ""

    def close(self) -> None:
        """End the language server."""
        with self._process:
            self._process.kill()

    def _request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request and return its result; questions of the server get an answer without content."""
        self._send({"id": method, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == method:
                return message["result"]
            if "id" in message:
                items: list[Any] = message["params"].get("items", []) if "params" in message else []
                self._send({"id": message["id"], "result": [{} for _ in items] or None})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[Editor]:
    """An editor with a call of App that has one setting in each line, from the second line on."""
    file = tmp_path / "app.py"
    file.write_text(
        "from fennelq import App; App('shop',\n"
        + "".join(f"{name}=...,\n" for name in Settings.model_fields)
        + ")\n"
    )
    editor = Editor(file)
    yield editor
    editor.close()


def test_a_keyword_of_app_is_shown_with_a_sentence_about_the_setting(editor: Editor) -> None:
    for line, name in enumerate(Settings.model_fields, 1):
        declared, _, meaning = editor.shows(line).partition("\n")
        assert declared.startswith(f"(variable) {name}: ")
        assert meaning.strip().endswith(".")


def test_app_itself_is_shown_with_where_settings_come_from(editor: Editor) -> None:
    assert "[tool.fennelq] in pyproject.toml" in editor.shows(0, len("from fennelq import App; A")).replace(
        "`", ""
    )
