"""From perf_analyzer's profile export to a measurement's figures; ours for SSE has the same form.

The export holds every request that ended in the counted windows: when it was sent, when each of its
responses came (nanoseconds since 1970), and what they carried. For outputs that were not sent it
holds rubbish: only what was asked for is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.load.figures import between_chunks, figures
from perf.load.measure import Record

_COUNTED = "num_output_tokens"


class ExportError(Exception):
    """The file is not there, or not whole."""


@dataclass(frozen=True)
class Export:
    """Who was answered, in seconds since the first window; the borders of the counted windows, in
    nanoseconds.
    """

    records: Sequence[Record]
    windows: Sequence[int]
    stable: bool = True

    def figures(self) -> dict[str, Any]:
        """The fields of a Measurement that tell what clients saw."""
        seconds = (self.windows[-1] - self.windows[0]) / 1e9
        found = figures(self.records, seconds, between_chunks)
        found["duration_s"] = round(seconds, 3)
        return {**found, "requests_per_s": round(found["requests_per_s"], 4)}


def read_export(file: Path, streams: bool, counts_tokens: bool) -> Export:
    """The only experiment in ``file``. Raises ExportError."""
    try:
        (experiment,) = json.loads(file.read_text("utf-8", "replace"))["experiments"]
        windows, requests = experiment["window_boundaries"], experiment["requests"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"perf_analyzer left no whole export: {error}") from error
    if len(windows) < 2:
        raise ExportError("perf_analyzer's export has no counted time")
    records = [_record(one, windows[0], streams, counts_tokens) for one in requests]
    answered = [record for record in records if record]
    return Export(answered, windows, experiment.get("stable", True))


def _record(
    request: Mapping[str, Any], start_ns: int, streams: bool, counts_tokens: bool
) -> Record | None:
    """None where it was never answered. A last response without content only says that it ends."""
    times = list(request["response_timestamps"])
    outputs = list(request.get("response_outputs", []))
    while len(times) > 1 and len(outputs) == len(times) and not outputs[-1]:
        times, outputs = times[:-1], outputs[:-1]
    if not times:
        return None
    sent_s, *times_s = ((each - start_ns) / 1e9 for each in (request["timestamp"], *times))
    return Record(
        index=0,
        sent_s=sent_s,
        done_s=times_s[-1],
        max_tokens=0,
        num_output_tokens=sum(map(_num_tokens, outputs)) if counts_tokens else 0,
        chunk_s=times_s if streams else (),
    )


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
