"""What share of the tokens/s that a machine allows a measurement of text generation reached: from
what a model's config.json says and what was sent. Knows no server; measures nothing.

A model of another shape than Llama's, or a load whose tokens are not counted, has no share.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.yaml_file.regular_file import read_json
from perf.report.schema import Load, Measurement
from perf.roofline.step import (
    ITEM_SIZES,
    NEEDED_KEYS,
    DecoderShape,
    Decoding,
    Machine,
    tokens_per_s_limit,
)

# Models of a gated MLP and plain or grouped attention, whose layers are all alike.
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "granite")


@dataclass(frozen=True)
class Decoder:
    """A served model: its shape, what it is computed in, and what its weights could be stored in
    without rounding; at most so many sequences at once, where that is known.
    """

    shape: DecoderShape
    dtype: str
    weight_dtype: str
    max_num_seqs: int | None = None
    longest_read: int | None = None  # earlier tokens, of a sliding window


@dataclass(frozen=True)
class Lengths:
    """Means, in tokens, of a load's prompts and answers, and of how far back a token looks."""

    prompt: float
    output: float
    context: float

    @classmethod
    def of(cls, prompt: str, output: str) -> Lengths | None:
        """Of labels as a Load has them: ``32``, ``8-64``, ``8/16/32``. None of other ones.

        A token of an answer looks at its prompt and, in the mean, at half of the answer; long
        answers have most of the tokens.
        """
        prompts, outputs = _moments(prompt), _moments(output)
        if prompts is None or outputs is None:
            return None
        (prompt_mean, _), (output_mean, output_square) = prompts, outputs
        return cls(prompt_mean, output_mean, prompt_mean + output_square / 2 / output_mean)


def decoder_in(folder: Path, dtype: str, max_num_seqs: int | None = None) -> Decoder | None:
    """The model whose config.json lies there, served on a processor in ``dtype`` (``auto``: as it
    is stored; float16 then becomes float32). None where there is none, or of another shape.
    """
    config = _config(folder / "config.json")
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if dtype == "auto":
        dtype = "float32" if stored == "float16" else stored
    known = dtype in ITEM_SIZES and stored in ITEM_SIZES
    if config.get("model_type") not in _LLAMA_LIKE or "quantization_config" in config or not known:
        return None
    if not all(isinstance(config.get(key), int) and config[key] > 0 for key in NEEDED_KEYS):
        return None
    return Decoder(
        shape=DecoderShape.of(Namespace(**config)),
        dtype=dtype,
        weight_dtype=min(dtype, stored, key=ITEM_SIZES.__getitem__),
        max_num_seqs=max_num_seqs,
        longest_read=config.get("sliding_window"),
    )


def is_countable(load: Load) -> bool:
    """Whether it says how long its texts are, in tokens, and how many callers there are."""
    return bool(load.concurrency) and Lengths.of(load.prompt_tokens, load.output_tokens) is not None


def share_of(machine: Machine, decoder: Decoder, found: Measurement) -> float | None:
    """0 to 1; None of a load whose lengths or number of callers are not known."""
    load = found.load
    lengths = Lengths.of(load.prompt_tokens, load.output_tokens)
    if lengths is None or not load.concurrency or not found.output_tokens_per_s:
        return None
    if decoder.longest_read and lengths.context > decoder.longest_read:
        return None
    sequences = min(load.concurrency, decoder.max_num_seqs or load.concurrency)
    return found.output_tokens_per_s / limit(machine, decoder, lengths, sequences)


def limit(machine: Machine, decoder: Decoder, lengths: Lengths, num_sequences: int) -> float:
    """Output tokens/s that this machine can't pass."""
    decoding = Decoding(
        num_sequences=num_sequences,
        mean_context=lengths.context,
        dtype=decoder.dtype,
        weight_dtype=decoder.weight_dtype,
        prompt_tokens=lengths.prompt / lengths.output,
    )
    return tokens_per_s_limit(machine, decoder.shape, decoding)


def _moments(label: str) -> tuple[float, float] | None:
    """The mean of the lengths, and of their squares."""
    low, dash, high = label.partition("-")
    numbers = (low, high) if dash else tuple(label.split("/"))
    if not all(each.isascii() and each.isdecimal() and int(each) for each in numbers):
        return None
    values = [int(each) for each in numbers]
    mean = sum(values) / len(values)
    if dash:  # each between the two as often as the others
        return mean, mean**2 + ((values[1] - values[0] + 1) ** 2 - 1) / 12
    return mean, sum(each**2 for each in values) / len(values)


def _config(file: Path) -> Mapping[str, Any]:
    try:
        values = read_json(file)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
