"""The most tokens of a step, and the memory that it takes on a GPU beside weights and cache,
found by running the largest there can be.

The cache is planned with what that leaves: a prompt that fits the cache, and finds no memory for
its activations, would fail while it is served.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.devices.device import devices_of, total_bytes
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.step import PrefillChunk, Step
from hf_triton.text_generation.forward.transformers.transformers_runner import Runner
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PagedSize, num_pages_of
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source

from .trial import EVERY_OPTION, dummy_sequence

_ON_CPU = 512  # tokens
# By a GPU's memory: a longer step reads the weights for more tokens, and has larger activations.
_ON_GPU = ((70, 8192), (40, 4096), (0, 2048))  # (GiB at least, tokens)
_NUM_PAGES = 3  # of the cache that it runs on: all sequences say that they lie there


def max_num_batched_tokens(options: Options, device: torch.device, max_num_seqs: int) -> int:
    """The option, else 512 on a CPU and 2,048 to 8,192 on a GPU; each running sequence has one at
    least.
    """
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    number = _ON_CPU
    if device.type == "cuda":
        gib = total_bytes(device) / 2**30
        number = next(number for least, number in _ON_GPU if gib >= least)
    return max(number, max_num_seqs)


def free_beside_steps(
    setup: EngineSetup,
    shapes: list[LayerShape],
    make_runner: RunnerSpec,
    size: PagedSize,
    step: Step | None = None,
    encode: Callable[[], object] = lambda: None,
) -> Callable[[torch.device], int]:
    """The bytes of each GPU that steps leave to a cache of at most this size. ``step`` replaces a
    decoder's largest step. ``encode`` runs before a step, not beside it. Raises LoadError where
    there is no memory for a step without a cache, or none to encode.
    """
    model, device = setup.model, setup.device
    num_tokens = max_num_batched_tokens(setup.options, device, size.max_num_seqs)
    if not make_runner.chunked_prefill:
        num_tokens = max(num_tokens, size.max_model_len)
    try:
        encoding = _peak_bytes(model, encode)
    except torch.OutOfMemoryError as error:
        raise LoadError(
            "no memory for the largest images or sounds of a prompt: lower max_images and "
            f"max_image_megapixels, or max_sounds and max_audio_s: {reason(error)}"
        ) from error
    try:
        # A few pages, which are given out again and again.
        few = replace(size, num_pages=_NUM_PAGES, max_num_seqs=1, num_bytes=0)
        runner = make_runner(model, PagedCache(shapes, few), device)
        taken = _peak_bytes(model, partial(_run, runner, step or largest_step(size, num_tokens)))
    except torch.OutOfMemoryError as error:
        raise LoadError(
            f"no memory for a step of {num_tokens} tokens (max_num_batched_tokens) and "
            f"{size.max_num_seqs} sequences (max_num_seqs): lower one of them: {reason(error)}"
        ) from error
    del runner
    torch.cuda.empty_cache()
    # Once for steps that run eagerly, once for the graphs' own memory.
    return lambda one: (
        setup.free_bytes(one) - taken.get(one, 0) - max(taken.get(one, 0), encoding.get(one, 0))
    )


def _peak_bytes(model: Any, compute: Callable[[], object]) -> dict[torch.device, int]:
    devices = devices_of(model)
    before = {one: torch.cuda.memory_allocated(one) for one in devices}
    for one in devices:
        torch.cuda.reset_peak_memory_stats(one)
    compute()
    return {one: torch.cuda.max_memory_allocated(one) - before[one] for one in devices}


def _run(runner: Runner, step: Step) -> None:
    Sampler(()).sample(runner.forward(step), step.sampled)


def largest_step(size: PagedSize, num_tokens: int) -> Step:
    """The end of the longest prompt beside decodes of all other sequences; all share the cache."""
    longest = max(1, size.max_model_len - 1)
    num_decodes = min(size.max_num_seqs, num_tokens) - 1
    length = min(longest, max(1, size.num_tokens // size.max_num_seqs))
    decodes = [_sequence(length, size) for _ in range(num_decodes)]
    for sequence in decodes:
        sequence.append(0, frozenset())
        sequence.num_computed_tokens = sequence.num_prompt_tokens + 1
    last = _sequence(longest, size)
    last.slot, last.num_prefill_tokens = 1, longest
    start = max(0, longest - (num_tokens - num_decodes))
    return Step(decodes, [PrefillChunk(last, start, longest)])


def longest_source_step(source: Source) -> Step:
    """A sequence of an encoder-decoder that begins with its longest source."""
    sequence = dummy_sequence([0], EVERY_OPTION)
    sequence.slot, sequence.source, sequence.pages = 1, source, array("i", [1])
    return Step([], [PrefillChunk(sequence, 0, 1)])


def _sequence(num_tokens: int, size: PagedSize) -> Sequence:
    sequence = dummy_sequence([0] * num_tokens, EVERY_OPTION)
    numbers = range(num_pages_of(num_tokens + 1, size.page_size))
    sequence.pages = array("i", (1 + number % (_NUM_PAGES - 1) for number in numbers))
    return sequence
