"""Plans how the in-flight engine holds a model: by which runner, and in how large a cache.

Leaves the model as that runner needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hf_triton.runtime.errors import reason
from hf_triton.runtime.fused.reading.attention import stable_length
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.forward.transformers.attention_interface import (
    use_attention_interface,
)
from hf_triton.text_generation.lora.linear import attach
from hf_triton.text_generation.media.decoder_entry import DecoderEntry
from hf_triton.text_generation.memory.layer_shapes import LayerShape, context_length, layer_shapes
from hf_triton.text_generation.memory.paged_cache import plan_pages
from hf_triton.text_generation.memory.pages import PagedSize

from .largest_step import free_beside_steps
from .media_plan import decoder_entry, encode_largest, select_with_media
from .runner_selection import UnsupportedModelError, select_runner


@dataclass(frozen=True)
class Plan:
    """``entry``: where images and sounds enter the decoder; with ``cuts_sources`` such prompts may
    be computed in chunks, with ``shares_sources`` their keys and values may be shared. An encoder
    reads ``max_source_len`` tokens of a text.
    """

    make_runner: RunnerSpec
    shapes: list[LayerShape]
    size: PagedSize
    entry: DecoderEntry | None = None
    cuts_sources: bool = True
    shares_sources: bool = True
    max_source_len: int | None = None


def plan_decoder(setup: EngineSetup) -> Plan:
    """Raises UnsupportedModelError where this engine can't serve the architecture, LoadError where
    the cache does not fit.
    """
    model, device = setup.model, setup.device
    use_attention_interface(model)
    entry = decoder_entry(setup) if setup.trial_prompts is not None else None
    if entry is not None and setup.adapters is not None:
        raise UnsupportedModelError("it has adapters and takes images or sounds")
    if entry is not None:
        own, kept = setup.free_bytes, entry.features.max_bytes
        setup = replace(setup, free_bytes=lambda at: own(at) - (kept if at == device else 0))
    try:
        shapes = layer_shapes(model, device)
    except Exception as error:
        # Any failure of an unknown architecture means the same: this engine can't serve it.
        raise UnsupportedModelError(reason(error)) from error
    size = _decoder_size(setup, shapes)
    longest, compiled = size.max_model_len, setup.compiled
    found = select_runner(model, shapes, device, compiled=compiled, max_model_len=longest)
    plan = Plan(found, shapes, size)
    if entry is not None:
        found, cuts, shares = select_with_media(setup, shapes, found, entry)
        plan = Plan(found, shapes, size, entry, cuts, shares)
    settle_rotary(model, longest)
    setup.prepare(model)  # after the trials, which may widen the model's own weights
    if setup.adapters is not None:
        attach(model, setup.adapters)
    if device.type == "cuda":
        encode = partial(encode_largest, setup, entry, size)
        free = free_beside_steps(setup, shapes, plan.make_runner, size, encode=encode)
        plan = replace(plan, size=_decoder_size(replace(setup, free_bytes=free), shapes))
    return plan


def _decoder_size(setup: EngineSetup, shapes: list[LayerShape]) -> PagedSize:
    config = setup.model.config.get_text_config()
    stable = stable_length(config)
    limit = context_length(config)
    if stable and not setup.options.max_model_len:
        limit = stable
    size = plan_pages(shapes, setup.options, limit, setup.free_bytes)
    if stable and size.max_model_len > stable:
        raise UnsupportedModelError(
            f"one sequence of more than {stable} tokens changes the rotary embedding of all; "
            f"lower max_model_len to {stable} for engine in_flight"
        )
    return size


def settle_rotary(model: Any, max_model_len: int) -> None:
    """Fixes rotary frequencies of rope_type ``dynamic``, which change for sequences longer than the
    model was made for: none fits in here, and asking the device at every step makes the host wait
    and rules out CUDA graphs. Raises UnsupportedModelError where sequences may be longer: one would
    change all others.
    """
    for module in model.modules():
        own = getattr(module, "rope_type", None)
        kinds = own if isinstance(own, dict) else {"": own}  # by the kind of layer
        if not any("dynamic" in str(kind) for kind in kinds.values()):
            continue
        longest = getattr(module, "original_max_seq_len", 0)
        if max_model_len > longest:
            raise UnsupportedModelError(
                f"one sequence of more than {longest} tokens changes the dynamic rotary embedding "
                f"of all; lower max_model_len to {longest} for engine in_flight"
            )
        kinds = {one: "default" if "dynamic" in str(kind) else kind for one, kind in kinds.items()}
        module.rope_type = kinds if isinstance(own, dict) else kinds[""]
