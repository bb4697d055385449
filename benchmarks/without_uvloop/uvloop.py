"""On the path of a worker that shall run on plain asyncio: it finds no uvloop and does without."""

raise ImportError("this benchmark runs without uvloop")
