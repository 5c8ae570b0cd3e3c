"""Chooses which lines of tritonserver's output to show, and masks secrets in them: the admin key,
and tokens of the Hub. Knows nothing of the process.

Shown: warnings, errors, and everything that models log or print. Hidden: the server's own info
lines, its tables, warnings about a missing GPU, and the several copies of each load failure, which
the caller reports itself in one line. Of progress bars, a line now and then; of lines that come
again and again, the first ones and their number.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from hf_triton.tritonserver.json_log import TRITON_LINE
from hf_triton.tritonserver.triton_texts import ABORT, AT_THE_END, LOAD_FAILED, NOISE

_PROGRESS_BAR = re.compile(r"\d%\|.*\|")  # tqdm's: Fetching 4 files:  25%|##5       | 1/4
_PROGRESS_EVERY_S = 10.0
# Several lines for every batch of traces that the collector does not take.
_NO_COLLECTOR = re.compile(r"\[OTLP \w+ Client\]")
_NOW_AND_THEN = {_PROGRESS_BAR: _PROGRESS_EVERY_S, _NO_COLLECTOR: 60.0}
_NUM_TAIL_LINES = 20
# Clients can make a server repeat itself: 44 MB of "Error from accept()" in 5 s.
_MOST_ALIKE, _ALIKE_WITHIN_S = 20, 10.0
_MOST_KINDS = 1000
_LONGEST_EXAMPLE = 120
_DIGITS = re.compile(r"\d+")
MASK = "***"
_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# A whole one: what only begins like it may be a module of ours, hf_triton.runtime.
_TOKEN = re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{30,}")
# ECMA-48's control sequences: libraries colour their lines, also for files.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_SHORTEST = 8  # a shorter one would take words out of the log


class LogFilter:
    """Takes the server's output line by line and says which to show; remembers the last ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tail: deque[str] = deque(maxlen=_NUM_TAIL_LINES)
        self._inside_traceback = False
        self._held: list[str] = []  # until the next line tells whether they are worth a look
        self._due: list[str] = []
        self._due_at_s = {_PROGRESS_BAR: clock() + _PROGRESS_EVERY_S}
        self._alike = AlikeLines(clock)

    def show(self, line: str) -> bool:
        """Whether ``line`` is for the reader, after what is ``left_out``."""
        self._follow_aborts(line)
        if self._held:
            return False
        shown = self._is_shown(line)
        if (shown or line.startswith(("W", "E", "F"))) and not self._alike.is_one_too_many(line):
            self._tail.append(line)
            return shown
        return False

    def left_out(self, is_over: bool = False) -> list[str]:
        """Lines that were held back, and the number of each kind that came too often; from time to
        time, and at the end.
        """
        if is_over:
            self._follow_aborts("")
        due, self._due = self._due, []
        return due + self._alike.left_out(is_over)

    def _follow_aborts(self, line: str) -> None:
        if not line.startswith(AT_THE_END):
            self._due += self._held
            self._tail.extend(self._held)
        self._held = [line] if line.startswith(ABORT) else []

    def tail(self) -> list[str]:
        """The last warnings, errors and lines of models, oldest first: why a server has died."""
        return list(self._tail)

    def _is_shown(self, line: str) -> bool:
        match = TRITON_LINE.match(line)
        if match is None:
            return self._is_shown_unlabelled(line)
        # A stub that can't import its model logs the traceback over several lines, unquoted.
        failed = LOAD_FAILED.search(match["message"]) is not None
        self._inside_traceback = failed and not match["message"].startswith('"')
        if failed or NOISE.search(match["message"]):
            return False
        return match["severity"] in "WEF" or match["file"].endswith(".py")

    def _is_shown_unlabelled(self, line: str) -> bool:
        if self._inside_traceback:
            return False
        if not line.strip() or line.startswith(("+-", "|", "Signal (", AT_THE_END)):
            return False
        for kind, every_s in _NOW_AND_THEN.items():
            if kind.search(line):
                return self._is_due(kind, every_s)
        return NOISE.search(line) is None

    def _is_due(self, kind: re.Pattern[str], every_s: float) -> bool:
        now = self._clock()
        if now < self._due_at_s.get(kind, 0.0):
            return False
        self._due_at_s[kind] = now + every_s
        return True


class AlikeLines:
    """Counts equal lines; lines of Triton's logger may differ in digits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._over_at_s = 0.0
        self._counts: dict[str, int] = {}
        self._finished: list[str] = []

    def is_one_too_many(self, line: str) -> bool:
        """Whether enough lines like this one have come within the last seconds."""
        now = self._clock()
        if now >= self._over_at_s or len(self._counts) > _MOST_KINDS:
            self._finish()
            self._over_at_s = now + _ALIKE_WITHIN_S
        match = TRITON_LINE.match(line)
        kind = _DIGITS.sub("0", match["message"]) if match else line
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return count > _MOST_ALIKE

    def left_out(self, is_over: bool) -> list[str]:
        """What there is to tell of lines that were too many."""
        if is_over or self._clock() >= self._over_at_s:
            self._finish()
        told, self._finished = self._finished, []
        return told

    def _finish(self) -> None:
        for kind, count in self._counts.items():
            if count > _MOST_ALIKE:
                num = f"{count - _MOST_ALIKE:,} more lines like this"
                self._finished.append(f"hf-triton: left out {num}: {kind[:_LONGEST_EXAMPLE]}")
        self._counts = {}


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values that no line may hold."""
    values = (environment.get(name, "").strip() for name in _VARIABLES)
    return [value for value in values if len(value) >= _SHORTEST]


def without_colours(line: str) -> str:
    """``line`` without a terminal's control sequences."""
    return _CONTROL.sub("", line)


def mask(text: str, secrets: Iterable[str]) -> str:
    """``text`` without them, and without what is a token of the Hub by its looks."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return _TOKEN.sub(rf"\1_{MASK}", text)
