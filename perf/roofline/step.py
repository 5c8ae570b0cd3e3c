"""How many bytes a decoder has to read and how many operations to do for a token, and so how many
tokens/s a machine allows: counted from the model's shape, nothing is run.

Counted is what no implementation can leave out: the weights once a step, each sequence's keys and
values once a step, the matrix products of every token. What comes out is never reached; how near an
engine comes says what is left to win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
NEEDED_KEYS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "vocab_size",
)
"""What a config.json of Llama's shape has to have."""


@dataclass(frozen=True)
class Machine:
    """Bytes/s read from memory and FLOP/s of matrix products, with ``num_threads`` threads."""

    memory_bytes_per_s: float
    float32_flop_per_s: float
    bfloat16_flop_per_s: float
    num_threads: int

    def flop_per_s(self, dtype: str) -> float:
        """The rate in ``float32`` or ``bfloat16``; float16 is computed as float32 on processors."""
        return self.bfloat16_flop_per_s if dtype == "bfloat16" else self.float32_flop_per_s

    def as_figures(self) -> dict[str, float]:
        """For ``Run.roofline``."""
        return {
            "memory_gb_per_s": round(self.memory_bytes_per_s / 1e9, 3),
            "float32_gflop_per_s": round(self.float32_flop_per_s / 1e9, 3),
            "bfloat16_gflop_per_s": round(self.bfloat16_flop_per_s / 1e9, 3),
        }


def machine_of(figures: Mapping[str, float], num_threads: int) -> Machine:
    """The machine that a run's ``roofline`` tells of. Raises KeyError."""
    names = ("memory_gb_per_s", "float32_gflop_per_s", "bfloat16_gflop_per_s")
    memory, float32, bfloat16 = (figures[name] * 1e9 for name in names)
    return Machine(memory, float32, bfloat16, num_threads)


@dataclass(frozen=True)
class DecoderShape:
    """Parameters of all matrix products but the output layer, and of the output layer; attention's
    sizes.
    """

    num_body_parameters: int
    num_head_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Any) -> DecoderShape:
        """From the config of a model of Llama's shape (gated MLP, no experts)."""
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        attention = 2 * config.hidden_size * head_dim * (config.num_attention_heads + kv_heads)
        mlp = 3 * config.hidden_size * config.intermediate_size
        return cls(
            num_body_parameters=config.num_hidden_layers * (attention + mlp),
            num_head_parameters=config.hidden_size * config.vocab_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
        )


@dataclass(frozen=True)
class Decoding:
    """What is generated: ``num_sequences`` at once, in tokens of ``dtype`` (float32, bfloat16).

    ``mean_context`` is how many earlier tokens a token looks at; ``prompt_tokens`` how many come in
    for each one that goes out (a prompt of 36 for 50 tokens: 0.72). ``weight_dtype`` is what the
    weights could be stored in without rounding: the checkpoint's.
    """

    num_sequences: int
    mean_context: float
    dtype: str = "float32"
    weight_dtype: str | None = None
    prompt_tokens: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """Of one step, in which each sequence gets a token and its share of prompts is computed."""

    weight_bytes: float
    kv_bytes: float
    flop: float

    def seconds(self, machine: Machine, dtype: str) -> float:
        """The least it can take: memory and arithmetic go on at the same time."""
        reading_s = (self.weight_bytes + self.kv_bytes) / machine.memory_bytes_per_s
        return max(reading_s, self.flop / machine.flop_per_s(dtype))


def step_cost(shape: DecoderShape, decoding: Decoding) -> StepCost:
    """Bytes read and floating-point operations; a multiplication and its addition are two."""
    sequences = decoding.num_sequences
    tokens = sequences * (1 + decoding.prompt_tokens)
    parameters = shape.num_body_parameters + shape.num_head_parameters
    per_context = shape.num_layers * shape.num_heads * shape.head_dim
    kept = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    products = tokens * shape.num_body_parameters + sequences * shape.num_head_parameters
    return StepCost(
        weight_bytes=parameters * ITEM_SIZES[decoding.weight_dtype or decoding.dtype],
        kv_bytes=sequences * decoding.mean_context * kept * ITEM_SIZES[decoding.dtype],
        flop=2 * products + 4 * tokens * decoding.mean_context * per_context,
    )


def tokens_per_s_limit(machine: Machine, shape: DecoderShape, decoding: Decoding) -> float:
    """Output tokens/s, all sequences together, that this machine can't pass."""
    seconds = step_cost(shape, decoding).seconds(machine, decoding.dtype)
    return decoding.num_sequences / seconds
