"""Counts of an engine: plain numbers, written by its thread and read by any."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from hf_triton.runtime.metrics.publishing import (
    SECONDS,
    Family,
    Histogram,
    Sample,
    histogram_families,
    one_number,
)

from ..sequence.sequence import Sequence

FINISH_REASONS = ("stop", "length", "timeout", "cancelled", "error")
_PREFIX = "hf_triton_"
GAUGES = {
    "num_running": "Sequences that are being generated",
    "num_waiting": "Sequences that wait to be started",
    "kv_cache_bytes": "Bytes of the cache of keys and values",
    "kv_slots": "Sequences that the cache of keys and values holds",
    "kv_slots_used": "Sequences in the cache of keys and values",
    "kv_pages": "Pages that the cache of keys and values has",
    "kv_pages_used": "Pages of the cache of keys and values that sequences hold",
    "kv_tokens": "Tokens that the cache of keys and values holds",
    "kv_tokens_used": "Tokens in the cache of keys and values",
}
_COUNTERS = {
    "num_prompt_tokens": "Prompt tokens of started sequences",
    "num_generated_tokens": "Generated tokens",
    "num_refused": "Requests refused because the queue was full or the engine could not take them",
    "num_draft_tokens": "Drafted tokens that were computed",
    "num_accepted_tokens": "Drafted tokens that were accepted; they are generated tokens",
    "reused_prompt_tokens": "Prompt tokens reused from the cache, rounded at random",
    "num_preemptions": "Times that a sequence gave its pages to others and was computed again",
}
REUSED_STEP = 1024
_draw = random.SystemRandom().random
_HISTOGRAMS = {
    "batch_size": "Sequences that got a token in a step",
    "time_to_first_token_s": "Time from a sequence's arrival to its first token",
    "time_per_output_token_s": "Mean time between a sequence's tokens, after the first",
    "queue_time_s": "Time from a sequence's arrival to its first step",
}
_ADAPTERS_HELP = "Started sequences that named an adapter"
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class EngineMetrics:
    def __init__(self) -> None:
        self.num_prompt_tokens = 0
        self.num_reused_prompt_tokens = 0  # not published
        self.reused_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_refused = 0
        self.num_preemptions = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.finish_reasons: Counter[str] = Counter()
        self.adapters: Counter[str] = Counter()
        self.batch_size = Histogram(_TOKENS)
        self.time_to_first_token_s = Histogram(SECONDS)
        self.time_per_output_token_s = Histogram(SECONDS)
        self.queue_time_s = Histogram(SECONDS)

    def computed(self, num_sequences: int, started: Iterable[Sequence], begun_s: float) -> None:
        """A step from ``begun_s`` on gave so many a token, and began the prompts of ``started``."""
        self.num_generated_tokens += num_sequences
        if num_sequences:  # else the number of steps tells how much of a prompt was not computed
            self.batch_size.observe(num_sequences)
        for sequence in started:
            self.began(sequence, begun_s - sequence.submitted_s)

    def began(self, sequence: Sequence, queue_time_s: float) -> None:
        """A sequence's prompt is computed for the first time."""
        sequence.started_s = sequence.submitted_s + queue_time_s
        self.num_prompt_tokens += sequence.num_sent_tokens
        if sequence.lora_name is not None:
            self.adapters[sequence.lora_name] += 1
        self.num_reused_prompt_tokens += sequence.num_reused_tokens
        self.reused_prompt_tokens += rounded(sequence.num_reused_tokens)
        self.queue_time_s.observe(queue_time_s)

    def published(self, sequences: Collection[Sequence]) -> None:
        """Sequences have new tokens, or have ended."""
        now = time.monotonic()
        for sequence in sequences:
            if sequence.token_ids and sequence.first_token_s is None:
                sequence.first_token_s = now
                self.time_to_first_token_s.observe(now - sequence.submitted_s)
        self.ended(one for one in sequences if one.finish_reason is not None)

    def ended(self, sequences: Iterable[Sequence]) -> None:
        now = time.monotonic()
        for sequence in sequences:
            self.finish_reasons[sequence.finish_reason or "error"] += 1
            num_later = len(sequence.token_ids) - 1
            if sequence.first_token_s is not None and num_later > 0:
                self.time_per_output_token_s.observe((now - sequence.first_token_s) / num_later)


def rounded(num_tokens: int) -> int:
    """A multiple of ``REUSED_STEP``, up or down at random: a total is right on average, and off by
    about the square root of ``REUSED_STEP`` times its true value.

    Exact numbers of reused tokens, or of kept prefixes, would tell readers of the metrics how many
    tokens of a prompt others have sent before. So would a fixed rounding: a client who knows how
    far the total is from its next step sees by one request more whether that added a token more.
    """
    return REUSED_STEP * int(num_tokens / REUSED_STEP + _draw())


def families(
    metrics: EngineMetrics, gauges: Mapping[str, int], adapters: Iterable[str]
) -> Iterator[Family]:
    """``gauges`` are in use at this moment; ``adapters`` are names that requests may give."""
    for name, help_text in GAUGES.items():
        if name in gauges:
            yield one_number(f"{_PREFIX}{name.removeprefix('num_')}", help_text, gauges[name])
    for name, help_text in _COUNTERS.items():
        full_name, value = f"{_PREFIX}{name.removeprefix('num_')}_total", getattr(metrics, name)
        yield one_number(full_name, help_text, value, counter=True)
    reasons = (
        Sample({"finish_reason": reason}, float(metrics.finish_reasons[reason]))
        for reason in FINISH_REASONS
    )
    yield Family(f"{_PREFIX}finished_total", "Sequences that ended", True, tuple(reasons))
    samples = tuple(Sample({"adapter": name}, float(metrics.adapters[name])) for name in adapters)
    if samples:
        yield Family(f"{_PREFIX}adapter_sequences_total", _ADAPTERS_HELP, True, samples)
    for name, help_text in _HISTOGRAMS.items():
        unit = "_seconds" if name.endswith("_s") else ""
        full_name = f"{_PREFIX}{name.removesuffix('_s')}{unit}"
        yield from histogram_families(full_name, help_text, {(): getattr(metrics, name)})
