"""The output of `make demo`: on a terminal, the last line is a progress bar; in a pipe, every line is plain."""

from __future__ import annotations

import sys
import time

WIDTH = 30


class Board:
    """Prints events and the progress."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._sent = self._ended = self._quarters = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def show(self, what: str, text: str) -> None:
        """Print a line that stays."""
        self._print(f"{self.seconds:5.1f} s  {what:<9} {text}\n")
        self._draw()

    def sent(self, jobs: int) -> None:
        """Add this number of jobs to those that the demo waits for."""
        self._sent += jobs
        self._draw()

    def ended(self) -> None:
        """Count one job that has succeeded."""
        self._ended += 1
        self._draw()
        if not self._live and (quarters := 4 * self._ended // self._sent) > self._quarters:
            self._quarters = quarters
            self.show("progress", f"{self._ended} of {self._sent} jobs")

    def close(self) -> None:
        """Remove the progress bar; from now on, all lines are plain."""
        self._print("")
        self._live = False

    def _draw(self) -> None:
        if self._live and self._sent:
            full = WIDTH * self._ended // self._sent
            bar = "#" * full + "." * (WIDTH - full)
            self._print(f"         [{bar}] {self._ended} of {self._sent} jobs")

    def _print(self, text: str) -> None:
        """Print, on a terminal in place of the progress bar."""
        print("\r\x1b[K" + text if self._live else text, end="", flush=True)
