"""Reads a transformers model as an encoder, from one recorded forward of a few tokens.

Every part is held against what the model computed in that forward. Whether the whole is right shows
in the trial of runners/runner.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hf_triton.runtime.fused.parts import Linear, Norm, UnsupportedLayersError
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.runtime.fused.reading.layers import read_layer
from hf_triton.runtime.fused.reading.norms import read_norm
from hf_triton.runtime.fused.reading.recording import NUM_TOKENS, Call, near, record, same
from hf_triton.runtime.fused.reading.rotary import Rotations

from .disentangled import note_disentangled_attention
from .encoder import Embedding, Encoder
from .own_attention import note_own_attention


@torch.inference_mode()
def read_encoder(
    model: Any, first_position: int, max_length: int, *, has_token_types: bool
) -> Encoder:
    """Reads a base model whose texts begin at ``first_position``. Raises UnsupportedLayersError."""
    ends = first_position, first_position + max_length - 1
    inputs: dict[str, Any] = {}
    if has_token_types:
        inputs["token_type_ids"] = torch.tensor([[0], [1]]).expand(-1, NUM_TOKENS)
    if getattr(model.config, "use_cache", False):
        inputs["use_cache"] = False
    root = record(model, ends, **inputs)
    if not any(call.attended for call in root.walk()):
        note_own_attention(model, root, max_length)
        note_disentangled_attention(model, root, max_length)
    layers = _layer_calls(model, root)
    rotations = Rotations(root, max_length)
    keys = [inner.attended[0].key for call in layers for inner in call.walk() if inner.attended]
    if len({(key.shape[1], key.shape[3]) for key in keys}) > 1:
        raise UnsupportedLayersError("its layers differ in the heads of keys")
    return Encoder(
        embedding=_embedding(model, root, layers[0], (first_position, max_length)),
        layers=[read_layer(call, rotations, joined_by_prepacking) for call in layers],
        norm=_last_norm(root, layers[-1]),
        kv_heads=keys[0].shape[1],
        dim=keys[0].shape[3],
    )


def _layer_calls(model: Any, root: Call) -> list[Call]:
    """The calls of the modules of a list that attention is called in, one after the other."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = {id(module) for modules in lists for module in modules}
    found = []
    for attending in root.walk():
        if attending.attended:
            call: Call | None = attending
            while call is not None and id(call.module) not in layers:
                call = call.parent
            if call is None:
                raise UnsupportedLayersError(f"{attending.kind} is in no list of layers")
            found.append(call)
    if not found:
        raise UnsupportedLayersError(f"{root.kind} attends in a way of its own")
    for before, after in itertools.pairwise(found):
        if not same(before.output, after.input):
            raise UnsupportedLayersError("its layers do not follow one another")
    return found


def _embedding(model: Any, root: Call, first: Call, span: tuple[int, int]) -> Embedding:
    """What makes the first layer's input; ``span``: the first position, and how many there are."""
    calls = list(itertools.takewhile(lambda call: call is not first, root.walk()))
    tables = [call for call in calls if isinstance(call.module, nn.Embedding)]
    (tokens,) = [call for call in tables if call.module is model.get_input_embeddings()]
    given = {name: value for name, value in root.kwargs.items() if torch.is_tensor(value)}
    total, positions, types = tokens.output, None, None
    for call in tables:
        weight = call.module.weight.detach()
        if call is tokens or weight.shape[1] != total.shape[-1]:
            continue  # an embedding of something else shows where the sum is compared
        if same(call.inputs[0], given["position_ids"]):
            positions = _only(positions, weight[: sum(span)].contiguous())
        elif "token_type_ids" in given and same(call.inputs[0], given["token_type_ids"]):
            types = _only(types, weight)
        elif not call.inputs[0].any():
            types = _only(types, weight[:1])
        total = total + call.output
    if positions is not None and len(positions) < sum(span):
        raise UnsupportedLayersError(f"it has {len(positions)} positions, not {sum(span)}")
    leaves = [leaf for call in calls for leaf in ([] if call.inner else call.leaves())]
    norm, projection = _after_embedding(total, leaves, first.input)
    return Embedding(tokens.module, positions, types, norm, projection)


def _only(before: torch.Tensor | None, table: torch.Tensor) -> torch.Tensor:
    """The table, where there was none of its kind before."""
    if before is not None:
        raise UnsupportedLayersError("it adds up several tables of positions, or of types")
    return table


def _after_embedding(
    total: torch.Tensor, leaves: Sequence[Call], made: torch.Tensor
) -> tuple[Norm | None, Linear | None]:
    """The norm and the product that make ``made`` of what was looked up, where there are any."""
    norm, reached = None, total
    for leaf in leaves:
        if near(leaf.input, total) and (found := read_norm(leaf)) is not None:
            norm, reached = found, leaf.output
    if near(reached, made):
        return norm, None
    for leaf in leaves:
        if same(leaf.input, reached) and same(leaf.output, made):
            return norm, leaf.module
    raise UnsupportedLayersError("its first layer is given more than embeddings")


def _last_norm(root: Call, last: Call) -> Norm | None:
    """The norm that makes the model's output of the last layer's."""
    if same(root.output, last.output):
        return None
    for call in root.walk():
        if same(call.input, last.output) and same(call.output, root.output) and not call.inner:
            norm = read_norm(call)
            if norm is not None:
                return norm
    raise UnsupportedLayersError("it does more with its last layer's output than a norm")
