"""The example of tenants that share workers."""

from __future__ import annotations

import pytest

from examples.tenants import app, main, report
from fennelq import Status
from fennelq.testing import testing
from tests.kit.workers import running


async def test_small_tenants_do_not_wait_for_a_large_one(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with testing(app, redis_url=redis_url, leave_jobs=True):
        results = await app.enqueue([report.job("large", page) for page in range(30)])
        results += await app.enqueue([report.job("small", page) for page in range(2)])
        async with running(app, concurrency=2):
            assert await results[-1].get(timeout=30) == "small 1"
            assert await results[20].status() is Status.SENT
            await main()
    printed = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.split(" ")[0] in ("large", "small", "tiny")
    ]
    assert len(printed) == 54
    assert max(printed.index(f"{tenant} {page}") for tenant in ("small", "tiny") for page in range(2)) < 30
