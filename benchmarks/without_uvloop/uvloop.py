"""Put on the path of a worker that shall run on plain asyncio: it finds no uvloop and does what it does without."""

raise ImportError("this benchmark runs without uvloop")
