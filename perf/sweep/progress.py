"""The progress bar of a sweep, and lines above it; on stderr."""

from __future__ import annotations

import sys

from tqdm import tqdm  # type: ignore[import-untyped]

from perf.report.schema import Measurement

_FORMAT = "{n}/{total} loads |{bar:20}| {elapsed} {desc}"


class Progress:
    """Counts loads. Used as a context, it is closed at the end."""

    def __init__(self, done: int, total: int) -> None:
        self._bar = tqdm(total=total, initial=done, bar_format=_FORMAT, mininterval=0.5, miniters=0)
        self.show = self._bar.set_description_str  # what is being done now

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")
        self._bar.close()

    def finished(self, label: str, measurement: Measurement) -> None:
        """One more is done."""
        tqdm.write(f"{label}: {in_words(measurement)}", file=sys.stderr)
        self._bar.update()


def in_words(measurement: Measurement) -> str:
    """The figures that matter most, in one line."""
    if not measurement.num_requests:
        return f"failed: {measurement.first_error}"
    latency, first = measurement.latency, measurement.time_to_first_token
    parts = [f"{measurement.requests_per_s:.1f} requests/s"]
    if measurement.output_tokens_per_s:
        parts.append(f"{measurement.output_tokens_per_s:,.0f} tokens/s")
    if latency:
        parts.append(f"p50 {latency.p50_ms:.0f} ms, p99 {latency.p99_ms:.0f}")
    if first:
        parts.append(f"first token p50 {first.p50_ms:.0f} ms")
    return ", ".join(parts) + ("" if measurement.stable else " (not stable)")
