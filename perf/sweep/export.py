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

from perf.load.measure import percentile
from perf.report.schema import Percentiles

_COUNTED = "num_output_tokens"


class ExportError(Exception):
    """The file is not there, or not whole."""


@dataclass(frozen=True)
class Figures:
    """What clients saw, in the counted time."""

    start_ns: int
    end_ns: int
    num_requests: int
    latency: Percentiles | None
    time_to_first_token: Percentiles | None = None
    inter_token_latency: Percentiles | None = None
    output_tokens_per_s: float | None = None
    stable: bool = True

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.duration_s if self.duration_s else 0.0


def read_export(file: Path, streams: bool, counts_tokens: bool) -> Figures:
    """The figures of the only experiment in ``file``. Raises ExportError."""
    try:
        (experiment,) = json.loads(file.read_text(encoding="utf-8", errors="replace"))[
            "experiments"
        ]
        windows, requests = experiment["window_boundaries"], experiment["requests"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"perf_analyzer left no whole export: {error}") from error
    if len(windows) < 2:
        raise ExportError("perf_analyzer's export has no counted time")
    return figures(requests, windows, streams, counts_tokens, experiment.get("stable", True))


def figures(
    requests: Sequence[Mapping[str, Any]],
    windows: Sequence[int],
    streams: bool,
    counts_tokens: bool,
    stable: bool = True,
) -> Figures:
    """The same of what was read."""
    answered = [answer for answer in map(_answer, requests) if answer]
    seconds = (windows[-1] - windows[0]) / 1e9
    tokens = sum(answer.num_tokens for answer in answered)
    gaps = [
        (later - sooner) / 1e6
        for answer in answered
        for sooner, later in pairwise(answer.responses_ns)
    ]
    return Figures(
        start_ns=windows[0],
        end_ns=windows[-1],
        num_requests=len(answered),
        latency=percentiles([(a.responses_ns[-1] - a.sent_ns) / 1e6 for a in answered]),
        time_to_first_token=percentiles(
            [(a.responses_ns[0] - a.sent_ns) / 1e6 for a in answered] if streams else []
        ),
        inter_token_latency=percentiles(gaps if streams else []),
        output_tokens_per_s=tokens / seconds if counts_tokens and tokens else None,
        stable=stable,
    )


@dataclass(frozen=True)
class _Answer:
    sent_ns: int
    responses_ns: Sequence[int]
    num_tokens: int


def _answer(request: Mapping[str, Any]) -> _Answer | None:
    """None where it was never answered. A last response without content only says that it ends."""
    times = list(request["response_timestamps"])
    outputs = list(request.get("response_outputs", []))
    while len(times) > 1 and len(outputs) == len(times) and not outputs[-1]:
        times, outputs = times[:-1], outputs[:-1]
    if not times:
        return None
    return _Answer(request["timestamp"], times, sum(map(_num_tokens, outputs)))


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


def percentiles(values_ms: Sequence[float]) -> Percentiles | None:
    """None of nothing."""
    if not values_ms:
        return None
    ordered = sorted(values_ms)
    shares = (0.50, 0.90, 0.95, 0.99)
    mean = sum(ordered) / len(ordered)
    return Percentiles(
        *(round(one, 4) for one in (mean, *(percentile(ordered, share) for share in shares)))
    )
