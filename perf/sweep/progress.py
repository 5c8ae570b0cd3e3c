"""The progress bar of a sweep, and lines above it; on stderr."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm  # type: ignore[import-untyped]

from perf.report.schema import Measurement

_FORMAT = "{n}/{total} loads |{bar:20}| {elapsed} {desc}"


class Progress:
    """Counts loads. Used as a context, it is closed at the end."""

    def __init__(self, done: int, total: int) -> None:
        self._bar = tqdm(total=total, initial=done, bar_format=_FORMAT, mininterval=0.5, miniters=0)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.set_description_str("")
        self._bar.close()

    def show(self, doing: str) -> None:
        """What is being done now."""
        self._bar.set_description_str(doing)

    def finished(self, label: str, measurement: Measurement) -> None:
        """One more is done."""
        tqdm.write(f"{label}: {in_words(measurement)}", file=sys.stderr)
        self._bar.update()


def in_words(measurement: Measurement) -> str:
    """The figures that matter most, in one line."""
    if not measurement.num_requests:
        return f"failed: {measurement.first_error}"
    parts = [f"{measurement.requests_per_s:.1f} requests/s"]
    if measurement.output_tokens_per_s:
        parts.append(f"{measurement.output_tokens_per_s:,.0f} tokens/s")
    if measurement.latency:
        parts.append(
            f"p50 {measurement.latency.p50_ms:.0f} ms, p99 {measurement.latency.p99_ms:.0f}"
        )
    if measurement.time_to_first_token:
        parts.append(f"first token p50 {measurement.time_to_first_token.p50_ms:.0f} ms")
    return ", ".join(parts) + ("" if measurement.stable else " (not stable)")
