"""What a stream has told its caller, in a file that outlives the process that computes it: after a
death another process goes on behind it.

The port that the request came to makes the file, and removes it when the request has ended. A line
says what the model chose by itself, then one for each response how the choices went on.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OverloadedError
from .abandoned_requests import Call

_CANT_GO_ON = "the process that answered has died, and this stream can't go on in another"


@dataclass
class Told:
    """What one choice's caller knows: its tokens, response by response, and the sum of their
    log-probabilities.
    """

    token_ids: list[list[int]] = field(default_factory=list)
    cumulative_logprob: float = 0.0


class StreamJournal:
    """The journal of one stream, open for what comes; ``seeds`` are those of its rows."""

    def __init__(self, file: int, seeds: list[int | None], lines: list[bytes]) -> None:
        self._file, self._lock = file, threading.Lock()
        self.seeds = seeds
        self._lines = [json.loads(line) for line in lines]

    @classmethod
    def open(cls, call: Call, model: str, seeds: list[int | None]) -> StreamJournal | None:
        """That of a call to the Triton model ``model``; None where no port made a file, or the
        caller has left. Of a call that is sent again the seeds are those of the first time. Raises
        OverloadedError for one whose journal does not say what its caller has.
        """
        try:
            file = os.open(call.journal, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            refuse_to_go_on(call)
            return None
        try:
            return cls._opened(file, call, model, seeds)
        except BaseException:
            os.close(file)
            raise

    @classmethod
    def _opened(cls, file: int, call: Call, model: str, seeds: list[int | None]) -> StreamJournal:
        size = os.fstat(file).st_size if call.num_responses else 0
        lines = os.pread(file, size, 0).split(b"\n")[: call.num_responses + 1]
        if call.num_responses:
            first = json.loads(lines[0]) if len(lines) > call.num_responses else {}
            if first.get("model") != model:
                refuse_to_go_on(call)
            os.ftruncate(file, sum(len(line) + 1 for line in lines))
            return cls(file, first["seeds"], lines[1:])
        os.ftruncate(file, 0)
        os.write(
            file, json.dumps({"model": model, "pid": os.getpid(), "seeds": seeds}).encode() + b"\n"
        )
        return cls(file, seeds, [])

    def told(self, num_choices: int) -> list[Told]:
        """What the caller has of each choice."""
        found = [Told() for _ in range(num_choices)]
        for line in self._lines:
            for choice, (token_ids, cumulative_logprob) in zip(found, line, strict=True):
                choice.token_ids.append(token_ids)
                choice.cumulative_logprob = cumulative_logprob
        return found

    def add(self, choices: Iterable[tuple[list[int], float]]) -> None:
        """Says what the next response tells: new tokens of each choice, and the sum of all its
        log-probabilities. Called before the response is sent.
        """
        line = json.dumps(list(choices)).encode() + b"\n"
        # Without memory it can't go on elsewhere, but is answered.
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0:
                os.write(self._file, line)

    def close(self) -> None:
        """Nothing comes any more; may be called from any thread."""
        with self._lock:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


def model_that_began(call: Call | None) -> str:
    """The Triton model that answered the beginning of a call; "" where none did."""
    if call is None or not call.num_responses:
        return ""
    try:
        with Path(call.journal).open("rb") as file:
            return str(json.loads(file.readline())["model"])
    except (OSError, ValueError):
        return ""


def refuse_to_go_on(call: Call | None) -> None:
    """Raises OverloadedError where a caller has the beginning of an answer already."""
    if call is not None and call.num_responses:
        raise OverloadedError(_CANT_GO_ON)
