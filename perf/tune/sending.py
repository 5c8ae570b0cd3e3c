"""Sends to a server on this machine: one request, or what a process of the load generator does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from perf.load.http import Target
from perf.load.levels import LevelArguments
from perf.load.measure import Record
from perf.load.process import LevelError, http_command, records_of
from perf.tune.trials import TrialError

ANSWER_TIMEOUT_S = 120.0
_SHOWN = 300


def ask(url: str, body: str) -> dict[str, Any]:
    """One request. Raises TrialError with the server's own words."""
    try:
        with urllib.request.urlopen(url, body.encode(), timeout=ANSWER_TIMEOUT_S) as answer:
            parsed: dict[str, Any] = json.loads(answer.read())
            return parsed
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")[:_SHOWN]
        raise TrialError(f"HTTP {error.code}: {text}") from None
    except OSError as error:
        raise TrialError(f"the server does not answer: {error}") from None


def send(target: Target, port: int, model: str, arguments: LevelArguments) -> list[Record]:
    """Runs the load generator against ``model``. Raises TrialError where it can't go on."""
    try:
        return records_of(http_command(target, port, model), arguments)
    except LevelError as error:
        raise TrialError(str(error)) from None
