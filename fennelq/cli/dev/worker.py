"""The process of the worker: `python -m fennelq.cli.dev.worker PARENT [OPTION…]`."""

from __future__ import annotations

import sys

from fennelq.cli.dev.tie import tie


def main() -> None:
    """Run `fennelq worker`."""
    tie(int(sys.argv[1]))
    from fennelq import cli

    sys.argv[1:] = ["worker", *sys.argv[2:]]
    cli.main()


if __name__ == "__main__":
    main()
