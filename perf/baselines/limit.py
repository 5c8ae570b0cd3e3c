"""What share of the tokens/s that this machine allows a level reached (perf/roofline)."""

from __future__ import annotations

from perf.baselines.plan import OUTPUT_TOKENS, PROMPT_TOKENS, Step
from perf.model import llama_config
from perf.roofline.share import Decoder, Lengths, limit
from perf.roofline.step import DecoderShape, Machine

STORED_DTYPE = "float16"  # of the measured model's weights


def lengths_of_load() -> Lengths:
    """Of the load that all targets get."""
    found = Lengths.of(PROMPT_TOKENS, OUTPUT_TOKENS)
    assert found is not None
    return found


def share_of_limit(machine: Machine, step: Step, tokens_per_s: float) -> float:
    """0 to 1: of what the machine's memory and cores allow with as many sequences as clients."""
    decoder = Decoder(DecoderShape.of(llama_config()), step.variant.dtype, STORED_DTYPE)
    return tokens_per_s / limit(machine, decoder, lengths_of_load(), step.clients)
