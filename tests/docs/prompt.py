"""An interpreter that is left open, like `python -m asyncio`: it runs block after block with the same names.

`python -m tests.docs.prompt` reads one JSON object per line, `{"code": …, "page": …, "line": …}`, and answers each on
stdout with `{"error": null}` or the traceback. Code with an `await` at its top level runs on one event loop; other
code runs without a running loop, as in a script.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
import traceback
from pathlib import Path
from types import CodeType
from typing import Any


def compiled(code: str, page: str, line: int) -> CodeType:
    """The block, with the line numbers it has on its page."""
    text = "\n" * (line - 1) + code
    made: CodeType = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return made


def execute(code: CodeType, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
    """Run it, awaiting it when it has an `await`."""
    made = eval(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        loop.run_until_complete(made)


def main() -> None:
    """Answer each request until stdin ends."""
    sys.path.insert(0, str(Path.cwd()))  # as an interpreter that is started in this folder has it
    names: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    for request in map(json.loads, sys.stdin):
        error = None
        try:
            execute(compiled(**request), names, loop)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"error": error}), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    # What a snippet prints must not be taken for an answer.
    sys.stdout = sys.stderr
    main()
