"""`python -m fennelq` is `fennelq`."""

from __future__ import annotations

from fennelq.cli import main

if __name__ == "__main__":
    main()
