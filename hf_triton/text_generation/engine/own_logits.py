"""Logits of a model by itself: the reference that an engine is tried against at load."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

from hf_triton.runtime.devices.device import free_bytes
from hf_triton.runtime.errors import LoadError

from .generation_rules import vocab_size

_MASKED = -1e9  # a logit below this is one that a model never chooses


@torch.inference_mode()
def own_logits(
    model: Any, forced: list[list[int]], *input_ids: torch.Tensor, **inputs: Any
) -> torch.Tensor:
    """The logits by which ``generate`` chooses; a forward without its cache and masks may compute
    something else.

    ``input_ids`` (rows, length), if any, and ``inputs`` are ``generate``'s; ``forced``: for each
    row as many tokens, generated one after the other -> (rows, tokens + 1, vocab), float32. A
    decoder reads the given ``decoder_input_ids`` alone first.
    """
    config = copy.deepcopy(model.generation_config)
    for name in ("max_length", "min_length", "min_new_tokens", "forced_eos_token_id"):
        setattr(config, name, None)
    config.exponential_decay_length_penalty = None  # of an end that never comes
    config.update(
        max_new_tokens=len(forced[0]) + 1,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        pad_token_id=0 if config.pad_token_id is None else config.pad_token_id,
        eos_token_id=vocab_size(model),  # an id that never comes
        return_dict_in_generate=True,
        output_logits=True,
    )
    ways = [model.generate, partial(GenerationMixin.generate, model)]
    if "decoder_input_ids" in inputs:
        config.decoder_start_token_id = int(inputs["decoder_input_ids"][0, 0])
        del ways[0]  # Whisper's cuts what it reads into windows
    for generate in ways:
        output: Any = generate(
            *input_ids,
            generation_config=config,
            logits_processor=LogitsProcessorList([_Forced(forced)]),
            **inputs,
        )
        taken = output.sequences[:, -len(forced[0]) - 1 : -1].tolist()
        if taken == forced:  # Janus's own generate drops the processor
            break
    return torch.stack(output.logits, dim=1).float()


def random_tokens(model: Any, *lengths: int, seed: int = 0) -> list[list[int]]:
    """Prompts of these lengths, the same at each call."""
    draw, size = torch.Generator().manual_seed(seed), vocab_size(model)
    return [torch.randint(1, size, (length,), generator=draw).tolist() for length in lengths]


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest of ``differences``; infinite for NaN."""
    worst = float(differences(logits, expected).max().item())
    return float("inf") if worst != worst else worst


def differences(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The largest difference of each row of logits (..., vocab), as a share of its range. Tokens
    that the model masks don't count, nor rows for which it computes no numbers.
    """
    top = expected.amax(-1, keepdim=True)
    masked = (expected < _MASKED) | ~top.isfinite()
    top = top.nan_to_num(0, 0, 0)
    logits, expected = (torch.where(masked, top, one) for one in (logits, expected))
    span = (top.squeeze(-1) - expected.amin(-1)).clamp_min(1e-6)
    return (logits - expected).abs().amax(-1) / span


def check_numbers(logits: torch.Tensor) -> None:
    """Raises LoadError where no row of logits (..., vocab) has a finite largest one."""
    top = logits.amax(-1)
    if (~top.isfinite()).all():
        raise LoadError(
            f"the model's scores are NaN or infinite after all {top.numel()} tokens of a trial: "
            "its weights hold such numbers, or overflow in its dtype"
        )


@contextmanager
def narrowed(model: Any, names: Callable[[str], object], width: int) -> Iterator[None]:
    """Sets sizes of more than ``width`` tokens (windows, chunks, blocks) that ``names`` is true for
    to ``width``, in modules and configurations, so that a short trial shows what they do.
    """
    configs = [getattr(module, "config", None) for module in model.modules()]
    owners = {id(owner): owner for owner in (*model.modules(), *configs) if owner is not None}
    sizes = [
        (owner, name, size)
        for owner in owners.values()
        for name in {*vars(owner), *(getattr(owner, "attribute_map", None) or ())}
        if names(name) and type(size := getattr(owner, name, None)) is int and size > width
    ]
    try:
        for owner, name, _ in sizes:
            setattr(owner, name, width)
        yield
    finally:
        for owner, name, size in sizes:
            setattr(owner, name, size)


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Widens the model's 16-bit weights to float32. Raises MemoryError where they would take more
    than half of a device's free memory.
    """
    tensors = [
        (one, one.data)
        for one in chain(model.parameters(), model.buffers())
        if one.dtype in (torch.float16, torch.bfloat16)
    ]
    needed: Counter[torch.device] = Counter()
    for _, own in tensors:
        needed[own.device] += torch.float32.itemsize * own.numel()
    if any(size > free_bytes(device) // 2 for device, size in needed.items()):
        raise MemoryError
    try:
        for one, own in tensors:
            one.data = own.float()
        yield
    finally:
        for one, own in tensors:
            one.data = own


class _Forced(LogitsProcessor):
    """Takes the given tokens, row by row, then token 0."""

    def __init__(self, forced: list[list[int]]) -> None:
        self._tokens = iter(zip(*forced, strict=True))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        tokens = next(self._tokens, (0,) * len(scores))
        columns = torch.tensor(tokens, device=scores.device).unsqueeze(1)
        return torch.full_like(scores, float("-inf")).scatter_(1, columns, 0)
