"""Clients in other languages: the examples, and a client that is generated from the OpenAPI document."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx
import pytest

from fennelq import App
from fennelq.grpc.server import serving as serving_grpc
from fennelq.web import Token, api
from fennelq.web.http.openapi import operations_in
from fennelq.web.passwords import new_token, token_hash, write
from tests.kit.apps import LocalApp
from tests.kit.workers import running
from tests.web.api.kit import declare
from tests.web.kit import serving

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    made = LocalApp("shop", redis_url=redis_url)
    declare(made)
    yield made
    await made.close()
    made.blocking.close()


@pytest.fixture
def token(tmp_path: Path) -> str:
    made = new_token()
    write(tmp_path / "tokens", "client", token_hash(made), "see,see_arguments,send:shop:*")
    return made


async def run(*words: str, **environment: str) -> tuple[int | None, str]:
    """Run a client; returns its exit code and what it prints."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_the_example_in_javascript_sends_follows_and_prints_the_result(
    app: App, token: str, tmp_path: Path
) -> None:
    made = api(app, auth=Token(tmp_path / "tokens"))
    async with serving(made) as url, running(app):
        words = ("node", "examples/clients/send.mjs")
        code, out = await run(*words, "shop:count", '{"to": 3}', FENNELQ_URL=url, FENNELQ_TOKEN=token)
        assert code == 0, out
        assert re.fullmatch(r"sent orders:\w+\n(\d of 3\n)*SUCCESS: 3\n", out), out
        code, out = await run(*words, "shop:fail", FENNELQ_URL=url, FENNELQ_TOKEN=token)
        assert (code, out.splitlines()[-1][:5]) == (1, "DEAD:"), out
        code, out = await run(*words, "reports:daily", FENNELQ_URL=url, FENNELQ_TOKEN=token)
        assert (code, "Not allowed: client may not send reports:daily" in out) == (1, True), out


async def test_the_example_for_grpc_sends_and_prints_the_result(app: App, token: str, tmp_path: Path) -> None:
    async with serving_grpc(app, "127.0.0.1:0", tokens=tmp_path / "tokens") as (_, port), running(app):
        place = {"FENNELQ_GRPC": f"127.0.0.1:{port}", "FENNELQ_TOKEN": token}
        words = (sys.executable, "-m", "examples.clients.send_grpc")
        code, out = await run(*words, "shop:welcome", '{"user_id": 42}', **place)
        assert code == 0, out
        assert re.fullmatch(r'sent mail:\w+\nSUCCESS: "hello 42"\n', out), out
        code, out = await run(*words, "reports:daily", **place)
        assert (code, out[:17]) == (1, "PERMISSION_DENIED"), out


def generated(document: Mapping[str, Any]) -> str:
    """A client in Python: a function per operation."""
    lines = ["def make(http):", "    class Client: pass", "    made = Client()"]
    for method, path, operation in operations_in(document):
        names = re.findall(r"{(\w+)}", path)
        takes = ", ".join([*names, "body=None", "query=None"])
        lines += [
            f"    def {operation['operationId']}({takes}):",
            f"        return http.request({method!r}, f{path!r}, json=body, params=query)",
            f"    made.{operation['operationId']} = {operation['operationId']}",
        ]
    return "\n".join([*lines, "    return made", ""])


async def test_a_client_that_is_generated_from_the_document_compiles_and_sends(
    app: App, token: str, tmp_path: Path
) -> None:
    made = api(app, auth=Token(tmp_path / "tokens"))
    async with serving(made) as url:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as http:
            document = (await http.get("/openapi.json")).json()
            module = ModuleType("client")
            exec(compile(generated(document), "client.py", "exec"), module.__dict__)
            client: Any = module.__dict__["make"](http)
            sent = await client.send_shop_welcome(body={"user_id": 42})
            assert sent.status_code == 201, sent.text
            found = (await client.getJob(sent.json()["id"])).json()
            assert (found["task"], found["arguments"]) == ("shop:welcome", [[], {"user_id": 42}])
            refused = await client.send_shop_welcome(body={"user_id": "x"})
            assert refused.json()["errors"][0]["pointer"] == "/user_id"
            assert not hasattr(client, "send_reports_daily")
