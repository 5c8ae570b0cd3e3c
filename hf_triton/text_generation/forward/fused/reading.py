"""Reads a transformers model as a decoder, from one recorded forward of a few tokens.

Every part is held against what the model computed in that forward. Whether the whole is right shows
in the trial run of in_flight/trial.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hf_triton.runtime.fused.parts import Body, Linear, UnsupportedLayersError
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.runtime.fused.reading.body import read_body
from hf_triton.runtime.fused.reading.recording import Call, near, record
from hf_triton.runtime.fused.sizes import check_body
from hf_triton.text_generation.lora.linear import with_adapters, without_adapters
from hf_triton.text_generation.memory.layer_shapes import context_length


@dataclass(frozen=True)
class Decoder(Body):
    """Logits of the ``head`` are capped and scaled where ``softcap`` is not 0 or ``logit_scale``
    not 1.
    """

    head: Linear
    logit_scale: float = 1.0
    softcap: float = 0.0


@torch.inference_mode()
def read_decoder(model: Any, max_model_len: int) -> Decoder:
    """Reads the model's layers. Linear layers that have one input are one where prepacking has made
    them so. Raises UnsupportedLayersError.
    """
    furthest = (context_length(model.config.get_text_config()) or max_model_len) - 1
    root = record(model, (0, furthest), use_cache=False)
    heads = [call for call in root.walk() if call.module is model.get_output_embeddings()]
    if not heads:
        raise UnsupportedLayersError("it has no head")
    body, _ = read_body(model, root, heads[-1].input, (0, max_model_len), _joined)
    logits = _logits(model.config.get_text_config(), root, heads[-1])
    return Decoder(body.embedding, body.layers, body.norm, heads[-1].module, *logits)


def _joined(*parts: Any) -> Linear:
    """Linear layers of one input as one, with the adapters of each."""
    return with_adapters(joined_by_prepacking(*map(without_adapters, parts)), parts)


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


@torch.inference_mode()
def check_sizes(
    decoder: Decoder, stored: list[torch.Tensor], kv_heads: int, length: int, dtype: torch.dtype
) -> None:
    """Checks every layer against the others, ``stored``, which are all keys and values
    (..., head dim) of sequences of ``length`` tokens, and ``dtype``.

    Raises:
        UnsupportedLayersError: one does not fit.
    """
    shape = stored[0].shape
    if len(stored) != 2 * len(decoder.layers):
        raise UnsupportedLayersError("not every layer keeps keys and values")
    if any(one.shape != shape or one.dtype != dtype for one in stored):
        raise UnsupportedLayersError("its keys and values differ in size")
    check_body(decoder, (kv_heads, shape[-1], length), dtype)
    if len({layer.attention.num_heads for layer in decoder.layers}) > 1:
        raise UnsupportedLayersError("its layers differ in the number of heads")
    if any(layer.norms_sums for layer in decoder.layers):
        raise UnsupportedLayersError("it norms sums")
