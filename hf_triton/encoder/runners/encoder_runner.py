"""Defines runners, and selects one for a model by trying each on random texts.

No list of architectures: each candidate computes texts of different lengths in one batch, and its
outputs are compared with the model's own forward of each text alone. The first that agrees is
selected. Knows nothing of queues.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hf_triton.runtime.attention import OwnAttention
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.fused.reading.attention import stable_length
from hf_triton.runtime.trial import RunnerSpec, first_agreeing

from ..task import OutputKind
from ..texts.encoding import Encoding

# The largest difference from the model's own outputs, as ``largest_difference`` counts it. Another
# order of sums rounds differently: float32 keeps 24 bits of a number, float16 11, bfloat16 8. Wrong
# masks or positions differ by more.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 8e-2}
_QUANTIZED_TOLERANCE = 8e-2
# Layers that round their input to 8 bits: where the last bit of a sum differs, it may round to the
# next of 256 values, and later layers round that again. Random tokens differ by 0.14 in MiniLM's
# six layers, a text with one other token by 0.9.
_ROUNDED_INPUT_TOLERANCE = 0.25
_TRIAL_LENGTHS = (5, 17, 9, 17, 3, 30)
# Beyond these, attention ignores tokens or clips distances.
_WINDOWS = ("sliding_window", "local_attention", "position_buckets")
_LONGEST_WINDOW = 1024  # longer ones are not tried: loading would take too long


@dataclass(frozen=True)
class RunnerSetup:
    """A loaded model and how to compute it: ``max_length`` is the longest input in tokens,
    ``has_token_types`` whether the model takes ``token_type_ids``, ``hides_tokens`` whether there
    are encodings with ``num_seen``.
    """

    model: Any
    device: torch.device
    output: OutputKind
    max_length: int
    has_token_types: bool
    hides_tokens: bool = False


def call_options(model: Any) -> dict[str, Any]:
    """Arguments that keep a decoder from returning a cache."""
    return {"use_cache": False} if getattr(model.config, "use_cache", False) else {}


class Runner(ABC):
    """Computes batches of encodings. One thread calls it.

    ``follows_threads``: whether it computes with as many CPU threads as torch has at the time.
    """

    name = ""
    follows_threads = True

    def __init__(self, setup: RunnerSetup) -> None:
        self.setup = setup

    @abstractmethod
    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        """One output for each encoding, in order: (num_outputs, size) on the model's device, or
        (size,) where the kind is "sequences". An output does not depend on the others' texts.
        """


def select_runner(
    setup: RunnerSetup,
    candidates: Iterable[RunnerSpec | type[Runner]],
    tolerance: float | None = None,
) -> Runner:
    """The first candidate whose outputs agree with the model's own to ``tolerance``, by default
    that of their dtype, or of quantized layers. The model attends by itself again after each that
    is rejected. Raises LoadError.
    """
    config = setup.model.config.get_text_config()
    windows = [getattr(config, name, None) or 0 for name in _WINDOWS]
    beyond = [size + 8 for size in windows if 0 < size <= _LONGEST_WINDOW]
    scene = random_encodings(setup, [*_TRIAL_LENGTHS, *beyond])
    expected = [reference_forward(setup, encoding) for encoding in scene]
    if not all(bool(output.isfinite().all()) for output in expected):
        dtype = str(expected[0].dtype).removeprefix("torch.")
        narrow = "" if dtype == "float32" else f", or {dtype} too narrow: try dtype: float32"
        raise LoadError(
            f"the model itself computes NaN or infinity: its weights may be broken{narrow}"
        )
    made: list[Runner] = []

    def difference(candidate: RunnerSpec | type[Runner]) -> float:
        made.clear()
        made.append(candidate(setup))
        return largest_difference(made[0].forward(scene), expected)

    give_back = OwnAttention(setup.model).restore
    allowed = tolerance_of(setup.model) if tolerance is None else tolerance
    told = "differs from the model's own output by {:.2g}"
    named = ((candidate.name, candidate) for candidate in candidates)
    found, refusals = first_agreeing(named, difference, allowed, told=told, give_back=give_back)
    if found is None:
        raise LoadError(f"no runner computes this model correctly: {refusals}")
    return made[0]


def tolerance_of(model: Any) -> float:
    """The largest difference of a module's outputs that rounding explains."""
    if any(getattr(one, "act_quant_kwargs", None) is not None for one in model.parameters()):
        return _ROUNDED_INPUT_TOLERANCE
    is_quantized = getattr(model, "hf_quantizer", None) is not None
    return _QUANTIZED_TOLERANCE if is_quantized else _TOLERANCE.get(model.dtype, 1e-4)


def random_encodings(setup: RunnerSetup, lengths: Sequence[int] = _TRIAL_LENGTHS) -> list[Encoding]:
    """Encodings of random tokens without special ones, at most ``setup.max_length`` long."""
    draw = random.Random(0)
    config = setup.model.config.get_text_config()
    reserved = {getattr(config, f"{name}_token_id", None) for name in ("pad", "eos", "bos", "sep")}
    known = [i for i in range(min(config.vocab_size, 4096)) if i not in reserved] or [0]
    found = []
    for length in lengths:
        ids = draw.choices(known, k=min(length, setup.max_length))
        types = [0] * len(ids) if setup.has_token_types else None
        num_seen = len(ids) // 2 if setup.hides_tokens and len(ids) > 9 else None
        places = _trial_positions(setup.output, len(ids))
        found.append(Encoding(ids, types, places, num_seen=num_seen))
    return found


def _trial_positions(output: OutputKind, num_tokens: int) -> tuple[int, ...] | None:
    """Two positions where the head is computed per token, skipping a prompt."""
    if output == "tokens" and num_tokens > 1:
        return (0, num_tokens - 1)
    return tuple(range(2, num_tokens)) if output == "hidden" and num_tokens > 9 else None


def check_rotation(setup: RunnerSetup) -> None:
    """Raises TypeError where a text's rotary embedding may depend on the longest of its batch."""
    stable = stable_length(setup.model.config.get_text_config())
    if stable is not None and setup.max_length > stable:
        raise TypeError("its rotary embedding changes with the longest text of a batch")


def largest_difference(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Relative to the expected's largest value where that is above 1; infinite where shapes differ
    or a value is not finite.
    """
    worst = 0.0
    for one, other in zip(got, expected, strict=True):
        if one.shape != other.shape:
            return float("inf")
        a, b = one.float(), other.float()
        difference = float((a - b).abs().max()) / max(1.0, float(b.abs().max()))
        worst = max(worst, difference) if difference == difference else float("inf")
    return worst


@torch.inference_mode()
def reference_forward(setup: RunnerSetup, encoding: Encoding) -> torch.Tensor:
    """The model's own forward of one encoding without neighbours or padding: (num_outputs, size),
    or (size,) for "sequences".
    """
    ids = torch.tensor([encoding.input_ids], device=setup.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][:, encoding.num_seen or len(encoding) :] = 0
    if encoding.token_type_ids is not None:
        inputs["token_type_ids"] = torch.tensor([encoding.token_type_ids], device=setup.device)
    output = output_of(setup, setup.model(**inputs))[0]
    return output if setup.output == "sequences" else encoding.of_tokens(output)


def output_of(setup: RunnerSetup, result: object) -> torch.Tensor:
    """The wanted tensor of the model's result: (batch, length, size), or (batch, size) for
    "sequences". Question answering's two become one, (batch, length, 2).
    """
    if setup.output == "hidden":
        hidden: torch.Tensor = result.last_hidden_state  # type: ignore[attr-defined]
        return hidden
    if hasattr(result, "start_logits"):
        return torch.stack((result.start_logits, result.end_logits), dim=-1)  # type: ignore[attr-defined]
    logits: torch.Tensor = result.logits  # type: ignore[attr-defined]
    return logits
