"""From perf_analyzer's profile export to a measurement's figures; ours for SSE has the same form.

The export holds every request that ended in the counted windows: when it was sent, when each of its
responses came (nanoseconds since 1970), and what they carried. For outputs that were not sent it
holds rubbish: only what was asked for is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from perf.load.figures import percentiles

_COUNTED = "num_output_tokens"


class ExportError(Exception):
    """The file is not there, or not whole."""


@dataclass(frozen=True)
class Export:
    """The requests, and the borders of the windows that were counted (nanoseconds)."""

    requests: Sequence[Mapping[str, Any]]
    windows: Sequence[int]
    stable: bool = True

    def figures(self, streams: bool, counts_tokens: bool) -> dict[str, Any]:
        """The fields of a Measurement that tell what clients saw. Of an answer without a response
        nothing is counted.
        """
        seconds = (self.windows[-1] - self.windows[0]) / 1e9
        answered = [(one, times) for one in self.requests if (times := _times(one))]
        latencies = [times[-1] - one["timestamp"] for one, times in answered]
        first = [times[0] - one["timestamp"] for one, times in answered if streams]
        gaps = [b - a for _, times in answered if streams for a, b in pairwise(times)]
        tokens = sum(
            _num_tokens(output) for one, _ in answered for output in one.get("response_outputs", ())
        )
        return {
            "duration_s": round(seconds, 3),
            "num_requests": len(answered),
            "requests_per_s": round(len(answered) / seconds, 4) if seconds else 0.0,
            "latency": percentiles([one / 1e6 for one in latencies]),
            "time_to_first_token": percentiles([one / 1e6 for one in first]),
            "inter_token_latency": percentiles([one / 1e6 for one in gaps]),
            "output_tokens_per_s": tokens / seconds if counts_tokens and tokens else None,
        }


def read_export(file: Path) -> Export:
    """The only experiment in ``file``. Raises ExportError."""
    try:
        (experiment,) = json.loads(file.read_text("utf-8", "replace"))["experiments"]
        stable = experiment.get("stable", True)
        found = Export(experiment["requests"], experiment["window_boundaries"], stable)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"perf_analyzer left no whole export: {error}") from error
    if len(found.windows) < 2:
        raise ExportError("perf_analyzer's export has no counted time")
    return found


def _times(request: Mapping[str, Any]) -> Sequence[int]:
    """Of its responses. A last one without content only says that the answer ends."""
    times = list(request["response_timestamps"])
    outputs = list(request.get("response_outputs", []))
    while len(times) > 1 and len(outputs) == len(times) and not outputs[-1]:
        times, outputs = times[:-1], outputs[:-1]
    return times


def _num_tokens(output: Mapping[str, Any]) -> int:
    """What one response says; of flat JSON, inside its text."""
    if isinstance(body := output.get("response"), str):
        try:
            output = json.loads(body)
        except ValueError:
            return 0
    counted = output.get(_COUNTED, 0)
    values = counted if isinstance(counted, list) else [counted]
    return sum(int(value) for value in values)
