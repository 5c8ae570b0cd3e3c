"""Chooses which lines of tritonserver's output to show, and masks secrets in them: the admin key,
and tokens of the Hub. Prints messages of our own beside them. Knows nothing of the process.

Shown: warnings, errors, and everything that models log or print. Hidden: the server's own info
lines, its tables, warnings about a missing GPU, and the several copies of each load failure, which
the caller reports itself in one line. Of progress bars, a line now and then; of lines that come
again and again, the first ones and their number.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from hf_triton.tritonserver.triton_texts import ABORT, AT_THE_END, LOAD_FAILED, NOISE

# Triton's log line, and that of gRPC's libraries: I1120 11:05:01.464615 4596 server.cc:345] "text"
_TRITON_LINE = re.compile(
    r"(?P<severity>[IWEF])\d{4} [\d:.]+ +\d+ (?P<file>[^\s:]+):\d+\]\s?(?P<message>.*)"
)
_PROGRESS_BAR = re.compile(r"\d%\|.*\|")  # tqdm's: Fetching 4 files:  25%|##5       | 1/4
_PROGRESS_EVERY_S = 10.0
# Several lines, of Triton and of each model, for every batch of traces that no collector takes.
_NO_COLLECTOR = re.compile(r"\[OTLP \w+ Client\]|export(ing)? spans batch|dropping Span")
_NOW_AND_THEN = {_PROGRESS_BAR: _PROGRESS_EVERY_S, _NO_COLLECTOR: 60.0}
_NUM_TAIL_LINES = 20
# Clients can make a server repeat itself: 44 MB of "Error from accept()" in 5 s.
_MAX_ALIKE, _ALIKE_WITHIN_S = 20, 10.0
_MAX_KINDS = 1000
_LONGEST_EXAMPLE = 120
_DIGITS = re.compile(r"\d+")
MASK = "***"
_VARIABLES = ("HF_TOKEN", "PRIVATE_REPO_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# A whole one: what only begins like it may be a module of ours, hf_triton.runtime.
_TOKEN = re.compile(r"\b(hf|api_org)_[A-Za-z0-9]{30,}")
# ECMA-48's control sequences: libraries colour their lines, also for files.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_SHORTEST = 8  # a shorter one would take words out of the log


def say(text: str) -> None:
    """Prints a message in one piece, for other threads write too; ignores that nobody can read it:
    models are served on.
    """
    with contextlib.suppress(OSError):
        print(f"hf-triton: {text}\n", end="", file=sys.stderr, flush=True)


class LogFilter:
    """Takes the server's output line by line. ``tail`` has the last warnings, errors and lines of
    models, oldest first: why a server has died.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.tail: deque[str] = deque(maxlen=_NUM_TAIL_LINES)
        self._inside_traceback = False
        self._abort = ""  # held until the next line tells whether it is worth a look
        self._due_at_s = {_PROGRESS_BAR: clock() + _PROGRESS_EVERY_S}
        self._alike_until_s = 0.0
        self._num_alike: dict[str, int] = {}

    def feed(self, line: str) -> list[str]:
        """The lines to show now: those held back, and ``line`` if it is for the reader."""
        now = self._clock()
        found = list[str]()
        if now >= self._alike_until_s or len(self._num_alike) > _MAX_KINDS:
            found += self._repetitions()
            self._alike_until_s = now + _ALIKE_WITHIN_S
        if not line.startswith(AT_THE_END):
            found += self._held_abort()
        self._abort = line if line.startswith(ABORT) else ""
        if self._abort:
            return found
        is_shown = self._is_shown(line, now)
        if (is_shown or line.startswith(("W", "E", "F"))) and not self._is_repeated(line):
            self.tail.append(line)
            found += [line] * is_shown
        return found

    def end(self) -> list[str]:
        return [*self._held_abort(), *self._repetitions()]

    def _held_abort(self) -> list[str]:
        held, self._abort = [self._abort] if self._abort else [], ""
        self.tail.extend(held)
        return held

    def _is_shown(self, line: str, now: float) -> bool:
        match = _TRITON_LINE.match(line)
        if match:
            # A stub that can't import its model logs the traceback over several lines, unquoted.
            has_failed = LOAD_FAILED.search(match["message"]) is not None
            self._inside_traceback = has_failed and not match["message"].startswith('"')
            is_worth_it = match["severity"] in "WEF" or match["file"].endswith(".py")
            return is_worth_it and not has_failed and not NOISE.search(match["message"])
        if self._inside_traceback or not line.strip():
            return False
        if line.startswith(("+-", "|", "Signal (", AT_THE_END)):
            return False
        for kind, every_s in _NOW_AND_THEN.items():
            if kind.search(line):
                is_due = now >= self._due_at_s.get(kind, 0.0)
                if is_due:
                    self._due_at_s[kind] = now + every_s
                return is_due
        return NOISE.search(line) is None

    def _is_repeated(self, line: str) -> bool:
        """Returns whether enough lines like this one have come within the last seconds; lines of
        Triton's logger may differ in digits.
        """
        match = _TRITON_LINE.match(line)
        kind = _DIGITS.sub("0", match["message"]) if match else line
        num = self._num_alike[kind] = self._num_alike.get(kind, 0) + 1
        return num > _MAX_ALIKE

    def _repetitions(self) -> list[str]:
        counts, self._num_alike = self._num_alike, {}
        return [
            f"hf-triton: left out {num - _MAX_ALIKE:,} more lines like this: "
            f"{kind[:_LONGEST_EXAMPLE]}"
            for kind, num in counts.items()
            if num > _MAX_ALIKE
        ]


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values that no line may hold."""
    values = (environment.get(name, "").strip() for name in _VARIABLES)
    return [value for value in values if len(value) >= _SHORTEST]


def plain(line: str, secrets: Iterable[str]) -> str:
    """``line`` without colours and secrets, and without what is a token of the Hub by its looks."""
    text = _CONTROL.sub("", line)
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return _TOKEN.sub(rf"\1_{MASK}", text)
