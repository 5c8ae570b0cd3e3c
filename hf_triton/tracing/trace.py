"""What is known of one request for its spans: names, numbers and words of ours, never a text of a
request or an answer. Attributes have the names of OpenTelemetry's conventions
(https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_MOST_SPANS = 128  # of a request: a hook runs for each response of a stream
_USES = {"prompt_tokens": "usage.input_tokens", "generated_tokens": "usage.output_tokens"}
_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k")


class Trace:
    """One request, from its arrival in a model's process on; ``spans`` are names with the begin and
    the end in seconds of the monotonic clock.
    """

    def __init__(self, traceparent: str) -> None:
        self.traceparent, self.began_s = traceparent, time.monotonic()
        self.spans: list[tuple[str, float, float]] = []
        self.attributes: dict[str, Any] = {}

    def add(self, name: str, began_s: float, ended_s: float) -> None:
        if len(self.spans) < _MOST_SPANS:
            self.spans.append((name, began_s, max(began_s, ended_s)))

    def stages(self, **began_s: float | None) -> None:
        """Adds spans that follow each other, by the time that each began at, if it did; the last
        ends now.
        """
        known = [(name, at_s) for name, at_s in began_s.items() if at_s is not None]
        ends_s = [*(at_s for _, at_s in known[1:]), time.monotonic()]
        for (name, at_s), end_s in zip(known, ends_s, strict=True):
            self.add(name, at_s, end_s)

    def use(self, **numbers: float) -> None:
        """Adds to what the request has used, by the names of USES."""
        for name, number in numbers.items():
            key = f"gen_ai.{_USES[name]}" if name in _USES else f"hf_triton.{name}"
            self.attributes[key] = self.attributes.get(key, 0) + number

    def generated(self, sequences: Sequence[Any]) -> None:
        """Adds options and stages of the first of text_generation's sequences, and the ends of all.
        They end now.
        """
        for one in sequences[:1]:
            options = {f"gen_ai.request.{name}": getattr(one.params, name) for name in _OPTIONS}
            self.attributes |= options
            self.stages(queue=one.submitted_s, prefill=one.started_s, decode=one.first_token_s)
        reasons = [sequence.finish_reason or "error" for sequence in sequences]
        self.attributes["gen_ai.response.finish_reasons"] = reasons


@contextmanager
def timed(trace: Trace | None, name: str) -> Iterator[None]:
    """Adds the time within as a span, where there is a trace."""
    began_s = time.monotonic()
    try:
        yield
    finally:
        if trace:
            trace.add(name, began_s, time.monotonic())
