"""What `make demo` shows: on a terminal the last line is live, in a pipe every line is plain."""

from __future__ import annotations

import sys
import time

WIDTH = 30


class Board:
    """Prints what goes on, and how far it has come."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._sent = self._ended = self._quarters = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def say(self, what: str, told: str) -> None:
        """A line that stays."""
        self._print(f"{self.seconds:5.1f} s  {what:<9} {told}\n")
        self._draw()

    def sent(self, jobs: int) -> None:
        """So many jobs more are waited for."""
        self._sent += jobs
        self._draw()

    def ended(self) -> None:
        """One of them has ended well."""
        self._ended += 1
        self._draw()
        if not self._live and (quarters := 4 * self._ended // self._sent) > self._quarters:
            self._quarters = quarters
            self.say("progress", f"{self._ended} of {self._sent} jobs")

    def close(self) -> None:
        """Take the live line away; lines that are said from now on are plain."""
        self._print("")
        self._live = False

    def _draw(self) -> None:
        if self._live and self._sent:
            full = WIDTH * self._ended // self._sent
            bar = "#" * full + "." * (WIDTH - full)
            self._print(f"         [{bar}] {self._ended} of {self._sent} jobs")

    def _print(self, text: str) -> None:
        """Over the live line, if there is one."""
        print("\r\x1b[K" + text if self._live else text, end="", flush=True)
