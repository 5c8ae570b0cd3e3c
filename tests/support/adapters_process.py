"""A model's process that follows its adapters.json, as
hf_triton/text_generation/engine/adapters_following.py does.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO


class Process:
    """One of the model ``m`` in the repository ``folder``: ``answer`` is why it does not serve a
    content, an empty string where it does; nothing is said of what gives None.
    """

    def __init__(self, folder: Path, number: int, answer: Callable[[bytes], str | None]) -> None:
        self._answer, self._list = answer, folder / "m_stream" / "1" / "adapters.json"
        status = folder / "m" / "hf_cache" / "adapters" / f"m_stream-1-{number}.json"
        status.parent.mkdir(parents=True, exist_ok=True)
        self._status: IO[str] = status.open("w")
        fcntl.flock(self._status, fcntl.LOCK_EX)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.wait(0.01):
            content = self._list.read_bytes()
            refusal = self._answer(content)
            if refusal is not None:
                values = {"read": hashlib.sha256(content).hexdigest(), "refusal": refusal}
                self._status.seek(0)
                self._status.truncate()
                json.dump(values, self._status)
                self._status.flush()

    def end(self) -> None:
        """As a process ends: its file stays."""
        self._stop.set()
        self._thread.join()
        self._status.close()
