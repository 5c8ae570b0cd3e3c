"""Clients that ask without a pause while what they ask is changed, and check every answer."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perf.load.unpaused import Timed, Unpaused

PATIENCE_S = 300.0
GOOD = ""


@dataclass(frozen=True)
class Way:
    """How a model is asked: where, what, and what of its answer must always be the same."""

    path: str
    body: dict[str, Any]
    essence: Callable[[str], object]


@dataclass(frozen=True)
class Asked(Timed):
    """One request: when it began and ended, and GOOD, or what was wrong with its answer."""

    problem: str


def text_of_generate(body: str) -> object:
    """The text that /generate answers with."""
    return json.loads(body)["text_output"]


def text_of_events(body: str) -> object:
    """The text that the events of /generate_stream make together."""
    lines = [line for line in body.splitlines() if line.startswith("data: ")]
    return "".join(json.loads(line.removeprefix("data: "))["text_output"] for line in lines)


def embedding_of_generate(body: str) -> object:
    """The embedding; rows that were computed beside it change its last digits."""
    return [round(number, 3) for number in json.loads(body)["embedding"]]


class Clients(Unpaused):
    """``num`` clients on connections that are kept open; each way is taken by as many of them."""

    def __init__(self, port: int, ways: Sequence[Way], num: int) -> None:
        self.asked: list[Asked] = []
        self._port = port
        self._expected = {way.path: self._once(way) for way in ways}
        threads = [
            threading.Thread(target=self._run, args=(ways[i % len(ways)],), daemon=True)
            for i in range(num)
        ]
        super().__init__(threads)

    def _once(self, way: Way) -> object:
        status, body = _ask(self._connection(), way)
        if status != 200:
            raise ValueError(f"{way.path}: HTTP status {status}: {body[:200]}")
        return way.essence(body)

    def _run(self, way: Way) -> None:
        connection = self._connection()
        while not self.ended.is_set():
            began_s = time.monotonic()
            try:
                status, body = _ask(connection, way)
                problem = f"HTTP status {status}: {body[:200]}" if status != 200 else GOOD
                if problem == GOOD and way.essence(body) != self._expected[way.path]:
                    problem = f"another answer: {body[:200]}"
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                problem = f"{type(error).__name__}: {error}"
                connection = self._connection()
            self.asked.append(Asked(began_s, time.monotonic(), problem))
        connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)


def _ask(connection: http.client.HTTPConnection, way: Way) -> tuple[int, str]:
    connection.request("POST", way.path, json.dumps(way.body))
    response = connection.getresponse()
    return response.status, response.read().decode()
