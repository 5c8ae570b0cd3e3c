"""Reads a transformers model as a decoder, from one recorded forward of a few tokens.

Every part is held against what the model computed in that forward. Whether the whole is right shows
in the trial run of in_flight/trial.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.fused.parts import Linear, Norm, UnsupportedLayersError
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.runtime.fused.reading.layers import read_layer
from hf_triton.runtime.fused.reading.norms import read_norm
from hf_triton.runtime.fused.reading.recording import Call, near, record, same
from hf_triton.runtime.fused.reading.rotary import Rotations
from hf_triton.text_generation.lora.linear import with_adapters, without_adapters
from hf_triton.text_generation.memory.kv_cache import context_length

from .decoder import Decoder


@torch.inference_mode()
def read_decoder(
    model: Any, max_model_len: int, join: Callable[..., Linear] | None = None
) -> Decoder:
    """Reads the model's layers. ``join`` makes one of linear layers that have one input; without
    it, prepacking has made them so, or they stay apart. Raises UnsupportedLayersError.
    """
    furthest = (context_length(model.config.get_text_config()) or max_model_len) - 1
    root = record(model, (0, furthest), use_cache=False)
    chain = [call.parent for call in root.walk() if call.attended and call.parent is not None]
    if not chain:
        raise UnsupportedLayersError(f"{root.kind} calls no attention function")
    for before, after in itertools.pairwise(chain):
        if not same(before.output, after.input):
            raise UnsupportedLayersError("its layers do not follow one another")
    rotations = Rotations(root, max_model_len)
    join_layers = partial(_joined, join or joined_by_prepacking)
    embed, positions, embedding_scale = _embedding(model, root, chain[0], max_model_len)
    norm, head = _head(model, root, chain[-1])
    logit_scale, softcap = _logits(model.config.get_text_config(), root, head)
    return Decoder(
        embed=embed,
        layers=[read_layer(call, rotations, join_layers) for call in chain],
        norm=norm,
        head=head.module,
        positions=positions,
        embedding_scale=embedding_scale,
        logit_scale=logit_scale,
        softcap=softcap,
    )


def _joined(join: Callable[..., Linear], *parts: Any) -> Linear:
    """Linear layers of one input as one, with the adapters of each."""
    return with_adapters(join(*map(without_adapters, parts)), parts)


def _embedding(
    model: Any, root: Call, first: Call, max_model_len: int
) -> tuple[Linear, torch.Tensor | None, float]:
    """The embedding of tokens, what is added for each position, and the scale of the former."""
    calls = [call for call in root.walk() if call.module is model.get_input_embeddings()]
    if len(calls) != 1:
        raise UnsupportedLayersError("its embedding is not computed once")
    embed, made = calls[0].module, calls[0].output
    for scale in (1.0, float(getattr(model.config, "embedding_multiplier", 1.0))):
        scaled = made if scale == 1 else made * scale
        if same(scaled, first.input):
            return embed, None, scale
        for call in root.walk():
            if isinstance(call.module, torch.nn.Embedding) and call is not calls[0]:
                added = call.output.expand(made.shape) if call.output.dim() == 3 else made
                if same(scaled + added, first.input):
                    return embed, _positions(call, max_model_len), scale
    raise UnsupportedLayersError(f"{first.kind} is given more than embeddings")


def _positions(call: Call, max_model_len: int) -> torch.Tensor:
    """The table of a position embedding from position 0 on."""
    weight: torch.Tensor = call.module.weight.detach()
    weight = weight[getattr(call.module, "offset", 0) :].contiguous()
    if not same(weight[0], call.output[0, 0]) or len(weight) < max_model_len:
        raise UnsupportedLayersError(f"{call.kind} is no table of positions")
    return weight


def _head(model: Any, root: Call, last: Call) -> tuple[Norm, Call]:
    """The last norm, and the call of what makes logits of it."""
    heads = [call for call in root.walk() if call.module is model.get_output_embeddings()]
    for call in root.walk():
        if heads and same(call.input, last.output) and same(call.output, heads[-1].input):
            norm = None if call.inner else read_norm(call)
            if norm is not None:
                return norm, heads[-1]
    raise UnsupportedLayersError("its last layer is not normed for its head")


def _logits(config: Any, root: Call, head: Call) -> tuple[float, float]:
    """What logits are multiplied by, and their soft cap."""
    wanted = root.outputs
    for scale in (
        1.0,
        getattr(config, "logit_scale", 1.0),
        1 / (getattr(config, "logits_scaling", 1.0) or 1.0),
    ):
        for softcap in (0.0, getattr(config, "final_logit_softcapping", None) or 0.0):
            logits = finished(head.output.clone(), float(scale), float(softcap))
            if any(near(logits, made) for made in wanted if made.numel() == logits.numel()):
                return float(scale), float(softcap)
    raise UnsupportedLayersError(f"{root.kind} does more to its logits")


def finished(logits: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    """Logits of the head, scaled and capped in place."""
    if scale != 1:
        logits.mul_(scale)
    if softcap:
        logits.div_(softcap).tanh_().mul_(softcap)
    return logits
