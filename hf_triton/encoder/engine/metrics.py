"""What an encoder engine counts, and the names that Prometheus reads.

Plain numbers, written by one thread at a time and read by any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hf_triton.runtime.metrics.histogram import SECONDS, Histogram, histogram_families
from hf_triton.runtime.metrics.publishing import Family, Sample, one_number

from ..texts.encoding import Encoding

OUTCOMES = ("ok", "refused", "cancelled", "error")
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EncoderMetrics:
    def __init__(self) -> None:
        self.num_tokens = 0
        self.outcomes: Counter[str] = Counter()
        self.batch_size = Histogram(_SIZES)
        self.batch_tokens = Histogram(_TOKENS)
        self.step_s = Histogram(SECONDS)
        self.queue_s = Histogram(SECONDS)

    def computed(self, encodings: Sequence[Encoding], seconds: float) -> None:
        num_tokens = sum(map(len, encodings))
        self.num_tokens += num_tokens
        self.batch_size.observe(len(encodings))
        self.batch_tokens.observe(num_tokens)
        self.step_s.observe(seconds)


def families(metrics: EncoderMetrics, num_open: int) -> Iterator[Family]:
    yield one_number("hf_triton_open_requests", "Requests that are computed or wait", num_open)
    yield one_number(
        "hf_triton_input_tokens_total", "Tokens computed", metrics.num_tokens, counter=True
    )
    samples = [Sample({"outcome": word}, float(metrics.outcomes[word])) for word in OUTCOMES]
    yield Family("hf_triton_requests_total", "Answered requests", True, tuple(samples))
    for name, help_text, histogram in (
        ("step_inputs", "Inputs computed together", metrics.batch_size),
        ("step_tokens", "Tokens computed together", metrics.batch_tokens),
        ("step_seconds", "Duration of a step", metrics.step_s),
        ("engine_queue_seconds", "Time from tokenisation to the first step", metrics.queue_s),
    ):
        yield from histogram_families(f"hf_triton_{name}", help_text, {(): histogram})
