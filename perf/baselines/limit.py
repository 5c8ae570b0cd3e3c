"""What share of the tokens/s that this machine allows a level reached (perf/roofline)."""

from __future__ import annotations

from collections.abc import Mapping

from perf.baselines.plan import MEAN_OUTPUT_TOKENS, Step
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS, SHORTEST_PROMPT
from perf.machine import num_cores
from perf.model import llama_config
from perf.roofline.measured import Machine
from perf.roofline.step import DecoderShape, Decoding, tokens_per_s_limit

STORED_DTYPE = "float16"  # of the measured model's weights
MEAN_PROMPT_TOKENS = (SHORTEST_PROMPT + LONGEST_PROMPT) / 2
# An output token looks at its prompt and at half of its answer, and long answers have most tokens.
MEAN_CONTEXT = MEAN_PROMPT_TOKENS + sum(n * n / 2 for n in OUTPUT_LENGTHS) / sum(OUTPUT_LENGTHS)


def machine_of(figures: Mapping[str, float]) -> Machine:
    """The machine that a run's ``roofline`` tells of."""
    return Machine(
        memory_bytes_per_s=figures["memory_gb_per_s"] * 1e9,
        float32_flop_per_s=figures["float32_gflop_per_s"] * 1e9,
        bfloat16_flop_per_s=figures["bfloat16_gflop_per_s"] * 1e9,
        num_threads=num_cores(),
    )


def share_of_limit(machine: Machine, step: Step, tokens_per_s: float) -> float:
    """0 to 1: of what the machine's memory and cores allow with as many sequences as clients."""
    decoding = Decoding(
        num_sequences=step.clients,
        mean_context=MEAN_CONTEXT,
        dtype=step.variant.dtype,
        weight_dtype=STORED_DTYPE,
        prompt_tokens=MEAN_PROMPT_TOKENS / MEAN_OUTPUT_TOKENS,
    )
    return tokens_per_s / tokens_per_s_limit(machine, DecoderShape.of(llama_config()), decoding)
