"""Clients that ask without a pause and note how each request went, while what serves them dies."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from perf.load.unpaused import Timed, Unpaused

# So long does a client wait for an answer that may never come.
PATIENCE_S = 20.0
_PAUSE_AFTER_FAILURE_S = 0.02
NO_ANSWER, NO_SERVER = 0, -1


@dataclass(frozen=True)
class Asked(Timed):
    """One request: when it began and ended, and its status, or NO_ANSWER or NO_SERVER."""

    status: int


class Clients(Unpaused):
    """``num`` clients of one model, each asking again as soon as it has its answer."""

    def __init__(self, url: str, num: int, max_tokens: int) -> None:
        self.asked: list[Asked] = []
        self._url = url
        text = {"text_input": "Once upon a time", "max_tokens": max_tokens}
        self._body = json.dumps(text).encode()
        threads = [threading.Thread(target=self._run, daemon=True) for _ in range(num)]
        super().__init__(threads)

    def first_served_after(self, since_s: float, timeout_s: float) -> float:
        """When a request that began after ``since_s`` was first answered. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            good = [a.ended_s for a in self.asked if a.began_s > since_s and a.status == 200]
            if good:
                return min(good)
            time.sleep(0.02)
        raise TimeoutError(f"{self._url} answered nothing for {timeout_s:g} s")

    def _run(self) -> None:
        while not self.ended.is_set():
            began_s = time.monotonic()
            status = self._ask()
            self.asked.append(Asked(began_s, time.monotonic(), status))
            if status != 200:
                time.sleep(_PAUSE_AFTER_FAILURE_S)

    def _ask(self) -> int:
        request = urllib.request.Request(self._url, self._body)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                response.read()
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except TimeoutError:
            return NO_ANSWER
        except OSError:
            return NO_SERVER
