"""What a fetch shows while it runs: a bar for each model on a terminal, quiet lines anywhere else.

Bars and lines go to stderr; results are the caller's.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass, field

_BAR_WIDTH = 16
_RATE_OVER_S = 5.0
_LINE_EVERY_S = 30.0


@dataclass
class _Row:
    title: str
    total: int
    done: int = 0
    note: str = ""
    seen: list[tuple[float, int]] = field(default_factory=list)


class Progress:
    """Rows of bars, added to from any thread; drawn by whoever calls ``draw``."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self.lock = threading.RLock()
        self._num_drawn = 0
        self._on_terminal = sys.stderr.isatty()
        self._due = time.monotonic() + _LINE_EVERY_S

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Adds a bar of ``total`` bytes."""
        with self.lock:
            self._rows[title] = _Row(title, total, done)

    def add(self, title: str, num_bytes: int) -> None:
        """Moves a bar on, or back."""
        with self.lock:
            if title in self._rows:
                self._rows[title].done += num_bytes

    def end(self, title: str) -> None:
        with self.lock:
            self.erase()
            self._rows.pop(title, None)

    def say(self, line: str) -> None:
        """A line that stays, above the bars."""
        with self.lock:
            self.erase()
            print(line, file=sys.stderr, flush=True)

    def draw(self) -> None:
        """Draws the bars where they were drawn before; without a terminal, a line now and then."""
        if not self._on_terminal:
            self._tell()
            return
        with self.lock:
            width = shutil.get_terminal_size().columns - 1
            lines = [_line(row)[:width] for row in self._rows.values()]
            self.erase()
            print("\n".join(lines), end="\n" if lines else "", file=sys.stderr, flush=True)
            self._num_drawn = len(lines)

    def _tell(self) -> None:
        with self.lock:
            if self._rows and time.monotonic() >= self._due:
                self._due = time.monotonic() + _LINE_EVERY_S
                for row in self._rows.values():
                    self.say(f"{row.title}: {size(row.done)} of {size(row.total)}{_rate(row)}")

    def erase(self) -> None:
        """Takes the bars off the terminal."""
        with self.lock:
            if self._num_drawn:
                print(f"\033[{self._num_drawn}F\033[J", end="", file=sys.stderr, flush=True)
                self._num_drawn = 0


def _line(row: _Row) -> str:
    share = min(1.0, row.done / row.total) if row.total else 1.0
    filled = int(_BAR_WIDTH * share)
    bar = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%}"
    return f"{row.title}  {bar}  {size(row.done)} of {size(row.total)}{_rate(row)}"


def _rate(row: _Row) -> str:
    """How fast it goes, and how long it will take yet, by the last seconds."""
    now = time.monotonic()
    row.seen = [(at, done) for at, done in row.seen if at > now - _RATE_OVER_S] + [(now, row.done)]
    (began, before), seconds = row.seen[0], now - row.seen[0][0]
    rate = (row.done - before) / seconds if seconds > 0.5 and began < now else 0.0
    if rate <= 0:
        return ""
    left_s = int((row.total - row.done) / rate)
    return f"  {size(int(rate))}/s  {left_s // 60}:{left_s % 60:02} left"


def size(num_bytes: int) -> str:
    """Bytes as the Hub shows them: ``14.5 GB``."""
    for unit, least in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= least:
            return f"{num_bytes / least:.1f} {unit}"
    return f"{num_bytes} B"
