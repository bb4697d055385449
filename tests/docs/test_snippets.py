"""Every snippet of the documentation runs, and prints what the page says.

A Python block whose first line is a comment with a file's name is that file. The others of a guide are executed
one after the other, with a worker for every app in a file. `console` blocks are typed into a terminal. What
cannot run here says so in a comment above, `<!-- not run: why -->`, and must at least compile.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from fennelq import App
from tests.docs.pages import DOCS, ROOT, Block, blocks_of, every_page
from tests.docs.terminal import UNSET, Terminal
from tests.kit.workers import running

README = ROOT / "README.md"
TUTORIAL = sorted((DOCS / "tutorial").glob("[0-9]*.md"))
TESTING = DOCS / "guides/testing.md"
OTHERS = [
    page
    for page in every_page()
    if page not in (README, TESTING, *TUTORIAL)
    and any(block.language == "python" for block in blocks_of(page))
]
SAID_BY_WORKER = "the worker says"
NOT_RUN = "not run: "


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(autouse=True)
def not_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in UNSET:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "shop"
    folder.mkdir()
    terminal = Terminal(folder, tmp_path)
    yield terminal
    terminal.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pages", [[README], TUTORIAL, [TESTING]], ids=["README.md", "tutorial", "testing"])
def test_a_newcomer_who_types_what_is_shown_gets_what_is_shown(
    pages: list[Path], terminal: Terminal, tmp_path: Path
) -> None:
    for block in (block for page in pages for block in blocks_of(page)):
        if block.file:
            (tmp_path / "shop" / block.file).write_text(block.text, "utf-8")
        elif block.language == "console":
            terminal.obey(block)
        elif block.note == SAID_BY_WORKER:
            terminal.expect_of_worker(block, block.text)
        else:
            assert block.language != "python" or block.note.startswith(NOT_RUN), f"{block.place} is not run"


@pytest.mark.parametrize("page", OTHERS, ids=name)
@pytest.mark.audit(unfinished=True)
async def test_the_python_of_a_page_runs(
    page: Path, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FENNELQ_REDIS_URL", redis_url)
    monkeypatch.setenv("FENNELQ_SCHEDULE_INTERVAL", "0.02")
    before = set(sys.modules)
    try:
        await Reader(tmp_path).read(page)
    finally:
        for module in set(sys.modules) - before:
            if is_below(tmp_path, getattr(sys.modules[module], "__file__", None)):
                del sys.modules[module]


class Reader:
    """Somebody who tries what a page shows, in an interpreter that is left open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "page"}
        self._served: set[App] = set()

    async def read(self, page: Path) -> None:
        async with AsyncExitStack() as workers:
            for block in blocks_of(page):
                if block.language == "python":
                    await self._try(block, workers)
            for app in self._served:
                await app.close()
                app.blocking.close()

    async def _try(self, block: Block, workers: AsyncExitStack) -> None:
        code = compiled(block)
        if block.note.startswith(NOT_RUN):
            return
        if block.file is None:
            await self._execute(code)
            return
        (self._folder / block.file).write_text(block.text, "utf-8")
        for app in self._apps_of(block.file, block.text) - self._served:
            self._served.add(app)
            await workers.enter_async_context(running(app))

    def _apps_of(self, file: str, text: str) -> set[App]:
        if "App(" not in text:
            return set()
        module = import_module(file.removesuffix(".py"))
        return {value for value in vars(module).values() if isinstance(value, App)}

    async def _execute(self, code: CodeType) -> None:
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, self._names)
        else:
            # Code without `await` may block, and the workers are on this loop.
            await asyncio.to_thread(exec, code, self._names)


def compiled(block: Block) -> CodeType:
    """The block, with the lines it has on its page."""
    text = "\n" * (block.line - 1) + block.text
    code: CodeType = compile(text, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


def is_below(folder: Path, file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(folder)
