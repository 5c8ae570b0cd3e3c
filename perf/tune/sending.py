"""Sends to a server on this machine: one request, or what a process of the load generator does."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import perf
from perf.load.level import LOAD_NICENESS
from perf.load.measure import Record
from perf.tune.sender import Job
from perf.tune.trials import TrialError

_SLACK_S = 120.0  # for answers that are under way when a level ends
_SHOWN = 300


def ask(url: str, body: str) -> dict[str, Any]:
    """One request. Raises TrialError with the server's own words."""
    try:
        with urllib.request.urlopen(url, body.encode(), timeout=_SLACK_S) as answer:
            parsed: dict[str, Any] = json.loads(answer.read())
            return parsed
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")[:_SHOWN]
        raise TrialError(f"HTTP {error.code}: {text}") from None
    except OSError as error:
        raise TrialError(f"the server does not answer: {error}") from None


def send(job: Job) -> list[Record]:
    """Runs the load generator in a process of its own, which gives way to the server.

    Raises TrialError where it can't go on.
    """
    command = ["nice", "-n", LOAD_NICENESS, sys.executable, "-m", "perf.tune.sender"]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as words_of_it:
        process = subprocess.Popen(
            command,
            cwd=Path(str(perf.__file__)).parents[1],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=words_of_it,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is for us; we end it
        )
        try:
            process.communicate(job.to_json(), timeout=job.max_s + _SLACK_S)
        except subprocess.TimeoutExpired:
            raise TrialError(f"answers are not there after {job.max_s + _SLACK_S:.0f} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        words_of_it.seek(0)
        if process.returncode:
            last = (words_of_it.read().strip().splitlines() or ["no word why"])[-1]
            raise TrialError(f"the load generator ended: {last}")
        output.seek(0)
        return [Record(**json.loads(line)) for line in output]
