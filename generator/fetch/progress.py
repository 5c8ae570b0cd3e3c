"""The progress of a fetch on stderr: a bar for each model on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading

from tqdm import tqdm  # type: ignore[import-untyped]

LINE_EVERY_S = 30.0
_LINE = "{desc}: {n_fmt} of {total_fmt}\n"


class Progress:
    def __init__(self) -> None:
        self._bars: dict[str, tqdm] = {}
        self.lock = threading.RLock()
        self._style = {} if sys.stderr.isatty() else {"bar_format": _LINE, "delay": LINE_EVERY_S}

    def begin(self, title: str, total: int, done: int = 0) -> None:
        every_s = LINE_EVERY_S if self._style else 0.2
        sizes = {"total": total, "initial": done, "unit": "B", "unit_scale": True}
        with self.lock:
            self._bars[title] = tqdm(
                **sizes, desc=title, leave=False, mininterval=every_s, miniters=0, **self._style
            )

    def add(self, title: str, num_bytes: int) -> None:
        with self.lock:
            if title in self._bars:
                self._bars[title].update(num_bytes)

    def end(self, title: str) -> None:
        with self.lock:
            if bar := self._bars.pop(title, None):
                bar.close()

    def end_all(self) -> None:
        for title in list(self._bars):
            self.end(title)

    def say(self, line: str) -> None:
        with self.lock:
            tqdm.write(line, file=sys.stderr)
            sys.stderr.flush()


def size(num_bytes: int) -> str:
    """Formats bytes as the Hub does: ``14.5 GB``."""
    for unit, least in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= least:
            return f"{num_bytes / least:.1f} {unit}"
    return f"{num_bytes} B"
