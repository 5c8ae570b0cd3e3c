"""Records the sent part of a stream in a file, so that another process can continue it after a
crash. The port creates the file and removes it. The first line names the answering model and its
own choices; then each response adds a line with the choices' progress.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import OverloadedError
from .request_parameters import Call

_CANT_GO_ON = "the process that answered has died, and this stream can't go on in another"


class StreamJournal:
    """The journal of one stream, open for what comes; ``seeds`` are those of its rows. ``told`` is
    what its caller has, response by response: new tokens of each choice, and the sum of all its
    log-probabilities.
    """

    def __init__(self, file: int, seeds: list[int | None], lines: list[bytes]) -> None:
        self._file, self._lock = file, threading.Lock()
        self.seeds = seeds
        self.told: list[list[tuple[list[int], float]]] = [json.loads(line) for line in lines]

    @classmethod
    def open(
        cls, call: Call, model: str, source: str, seeds: list[int | None]
    ) -> StreamJournal | None:
        """The journal of a call to the Triton model ``model``, whose weights are those of
        ``source``; None where no port made a file, or the caller has left. Of a call that is sent
        again the seeds are those of the first time. Raises OverloadedError for one whose journal
        does not say what its caller has, or that other weights have begun.
        """
        try:
            file = os.open(call.journal, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            refuse_to_go_on(call)
            return None
        try:
            first: dict[str, Any] = {"model": model, "source": source, "seeds": seeds}
            lines: list[bytes] = []
            if call.num_responses:
                found = os.pread(file, os.fstat(file).st_size, 0).split(b"\n")[:-1]
                begun = json.loads(found[0]) if len(found) > call.num_responses else {}
                if (begun.get("model"), begun.get("source")) != (model, source):
                    refuse_to_go_on(call)
                lines = found[1 : call.num_responses + 1]
                first["seeds"] = begun["seeds"]
            # A process' number always takes as much room: nothing behind it moves.
            head = json.dumps({**first, "pid": f"{os.getpid():10}"}).encode() + b"\n"
            os.ftruncate(file, os.pwrite(file, head, 0) + sum(len(line) + 1 for line in lines))
            os.lseek(file, 0, os.SEEK_END)
            return cls(file, first["seeds"], lines)
        except BaseException:
            os.close(file)
            raise

    def add(self, choices: Iterable[tuple[list[int], float]]) -> None:
        """Says what the next response tells, as in ``told``, before it is sent. Where no memory is
        left the stream continues, but can no longer be resumed elsewhere.
        """
        line = json.dumps(list(choices)).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0 and os.write(self._file, line) == len(line):
                return
        with self._lock, contextlib.suppress(OSError):
            if self._file >= 0:
                os.ftruncate(self._file, 0)
        self.close()

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


def model_that_began(call: Call | None) -> str:
    """The Triton model that sent the first responses of a call; "" if none did."""
    if call is None or not call.num_responses:
        return ""
    with contextlib.suppress(OSError, ValueError), Path(call.journal).open("rb") as file:
        return str(json.loads(file.readline()).get("model", ""))
    return ""


def refuse_to_go_on(call: Call | None) -> None:
    """Raises OverloadedError where a caller has already received part of an answer."""
    if call is not None and call.num_responses:
        raise OverloadedError(_CANT_GO_ON)
