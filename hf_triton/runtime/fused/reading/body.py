"""Reads a model from its embedding to its last norm off one recorded forward: what decoders and
encoders have in common.

Every part is held against what the model computed in that forward. Whether the whole is right shows
in the trial at load.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..parts import Body, Embedding, Layer, Linear, Norm, UnsupportedLayersError
from .layers import read_layer
from .norms import read_norm
from .recording import Call, near, same
from .rotary import Rotations


def read_body(
    model: Any,
    root: Call,
    made: torch.Tensor,
    span: tuple[int, int],
    join: Callable[..., Linear],
) -> tuple[Body, list[Call]]:
    """The layers whose last norm gives ``made``, and their calls; ``span``: the first position, and
    how many there are. ``join`` makes one of linear layers that have one input. Raises
    UnsupportedLayersError.
    """
    calls = _layer_calls(model, root)
    rotations = Rotations(root, span[1])
    layers: list[Layer] = [read_layer(call, rotations, join) for call in calls]
    embedding = _embedding(model, root, calls[0], sum(span))
    return Body(embedding, layers, _last_norm(root, calls[-1], made)), calls


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


def _embedding(model: Any, root: Call, first: Call, num_positions: int) -> Embedding:
    """What makes the first layer's input."""
    calls = list(itertools.takewhile(lambda call: call is not first, root.walk()))
    tables = [call for call in calls if isinstance(call.module, nn.Embedding)]
    own = [call for call in tables if call.module is model.get_input_embeddings()]
    if len(own) != 1:
        raise UnsupportedLayersError("its embedding is not computed once")
    made, added = own[0].output, []
    positions = types = None
    for call in tables:
        if call is own[0] or call.output.shape[-1] != made.shape[-1]:
            continue  # an embedding of something else shows where the sum is compared
        if (table := _positions(call, root.kwargs["position_ids"])) is not None:
            positions = _only(positions, table)
        elif (table := _types(call, root.kwargs.get("token_type_ids"))) is not None:
            types = _only(types, table)
        added.append(call.output)
    if positions is not None and len(positions) < num_positions:
        raise UnsupportedLayersError(f"it has {len(positions)} positions, not {num_positions}")
    leaves = [leaf for call in calls for leaf in ([] if call.inner else call.leaves())]
    for scale in dict.fromkeys((1.0, float(getattr(model.config, "embedding_multiplier", 1.0)))):
        total = made if scale == 1 else made * scale
        for one in added:
            total = total + one
        found = _after_embedding(total, leaves, first.input)
        if found is not None:
            return Embedding(own[0].module, positions, types, *found, scale)
    raise UnsupportedLayersError(f"{first.kind} is given more than embeddings")


def _positions(call: Call, position_ids: torch.Tensor) -> torch.Tensor | None:
    """The table of a position embedding from position 0 on."""
    weight: torch.Tensor = call.module.weight.detach()
    weight = weight[getattr(call.module, "offset", 0) :].contiguous()
    if len(weight) <= position_ids.max() or not same(weight[position_ids], call.output):
        return None
    return weight


def _types(call: Call, token_type_ids: torch.Tensor | None) -> torch.Tensor | None:
    """The table of an embedding of types of tokens, or of the one type that there is."""
    weight: torch.Tensor = call.module.weight.detach()
    if token_type_ids is not None and same(call.inputs[0], token_type_ids):
        return weight
    return None if call.inputs[0].any() else weight[:1]


def _only(before: torch.Tensor | None, table: torch.Tensor) -> torch.Tensor:
    """The table, where there was none of its kind before."""
    if before is not None:
        raise UnsupportedLayersError("it adds up several tables of positions, or of types")
    return table


def _after_embedding(
    total: torch.Tensor, leaves: Sequence[Call], made: torch.Tensor
) -> tuple[Norm | None, Linear | None] | None:
    """The norm and the product that make ``made`` of what was looked up, where there are any; None
    where something else does.
    """
    norm, reached = None, total
    for leaf in leaves:
        if near(leaf.input, total) and (found := read_norm(leaf)) is not None:
            norm, reached = found, leaf.output
    if near(reached, made):
        return norm, None
    products = (leaf for leaf in leaves if same(leaf.input, reached) and same(leaf.output, made))
    return next(((norm, leaf.module) for leaf in products), None)


def _last_norm(root: Call, last: Call, made: torch.Tensor) -> Norm | None:
    """The norm that makes ``made`` of the last layer's output."""
    if same(made, last.output):
        return None
    for call in root.walk():
        if same(call.input, last.output) and same(call.output, made) and not call.inner:
            norm = read_norm(call)
            if norm is not None:
                return norm
    raise UnsupportedLayersError("it does more with its last layer's output than a norm")
