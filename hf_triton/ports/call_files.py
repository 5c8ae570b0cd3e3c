"""The files by which a port and the models on this machine tell each other of a call: that nobody
waits for it any more, and what a model has answered of a stream.

A call that is left is not cancelled at tritonserver, which before 25.06 dies of calls that are
cancelled as they end (https://github.com/triton-inference-server/server/pull/7840, /8078, /8220),
and up to 26.08 of streams that are. Its model finds its file instead, and answers it at once.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hf_triton.runtime.request.request_parameters import call_text, journal_file

# An abandoned call counts against its caller's limits at most so long: if its model died, it never
# ends.
LEFT_S = 60.0


def first_text(name: str, *, streams: bool = True) -> str:
    """Returns a text that tells a model of a request as it is first sent; "" without a name."""
    return call_text(name, 0, 0.0, name if streams else "") if name else ""


def _create(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


class AbandonedRequests:
    """The files of the calls of one port; ``prefix`` is what their paths begin with. A call without
    its file runs to its end.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._told: set[str] = set()

    def tell(self, call: str) -> None:
        """Tells the model that nobody waits for this call any more."""
        self._told.add(call)
        _create(Path(f"{self._prefix}{call}"))

    def forget(self, call: str) -> None:
        """Removes the file of a call that has ended."""
        if call in self._told:
            self._told.remove(call)
            with contextlib.suppress(OSError):
                Path(f"{self._prefix}{call}").unlink()


class Stream:
    """A stream that another process goes on with if the one that computes it dies: its model keeps
    a journal of it under ``name``. Its caller has ``num_responses``. The paths of the port's files
    begin with ``prefix``. Has to be closed.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.name, self.num_responses = name, 0
        self._path = Path(journal_file(prefix, name))
        _create(self._path)  # without the file, the stream ends with its process

    @property
    def goes_on(self) -> bool:
        """True if its model keeps the journal."""
        try:
            return self._path.stat().st_size > 0
        except OSError:
            return False

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
