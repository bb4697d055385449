"""Keys of calls, computed from their arguments: `@app.task(key=dedupe.arguments("user_id"), dedupe="until_done")`."""

from __future__ import annotations

from fennelq.model.dedupe import arguments

__all__ = ["arguments"]
