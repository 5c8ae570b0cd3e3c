"""Reads a model's layers off one recorded forward, from its embedding to its last norm: each norm's
input, and the sums.

Recognizes modules by their inputs and outputs, not by their names: the norm that computed
attention's input stands before attention. The trial at load checks the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import Body, Embedding, Layer, Linear, Mlp, Norm, UnsupportedLayersError
from .attention import Rotations, called, joined, read_attention
from .recording import Call, near, read_norm, same

Join = Callable[..., Linear]
Norms = list[tuple[Call, Norm]]
# In place: where the operating system has to give memory for the result, that takes as long.
ACTIVATIONS: dict[str, Linear] = {
    "silu": partial(F.silu, inplace=True),
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "relu": torch.relu_,
}
_SCALE = "residual_multiplier"


def read_body(
    model: Any, root: Call, made: torch.Tensor, span: tuple[int, int], join: Join
) -> tuple[Body, list[Call]]:
    """The layers whose last norm gives ``made``, and their calls; ``span`` is the first position
    and the number of positions. ``join`` merges linear layers that have one input. Raises
    UnsupportedLayersError.
    """
    calls = _layer_calls(model, root)
    rotations = Rotations(root, *span)
    layers = [_read_layer(call, rotations, join) for call in calls]
    embedding = _embedding(model, root, calls[0], sum(span))
    found = [call for call in root.walk() if not call.inner and same(call.output, made)]
    norms = [(call, norm) for call in found if (norm := read_norm(call)) is not None]
    return Body(embedding, layers, _take_norm(norms, calls[-1].output, made)), calls


def _layer_calls(model: Any, root: Call) -> list[Call]:
    """The calls of the layers in order: members of an nn.ModuleList that call attention."""
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
        raise UnsupportedLayersError(f"{root.kind} computes attention in its own way")
    for before, after in itertools.pairwise(found):
        if not same(before.output, after.input):
            raise UnsupportedLayersError("a layer does not take its predecessor's output")
    return found


def _embedding(model: Any, root: Call, first: Call, num_positions: int) -> Embedding:
    """Reads the embedding that makes the first layer's input."""
    calls = list(itertools.takewhile(lambda call: call is not first, root.walk()))
    tables = [call for call in calls if isinstance(call.module, nn.Embedding)]
    own = [call for call in tables if call.module is model.get_input_embeddings()]
    if len(own) != 1:
        raise UnsupportedLayersError("its embedding is not computed once")
    made, added = own[0].output, []
    positions, types = list[torch.Tensor](), list[torch.Tensor]()
    for call in tables:
        if call is own[0] or call.output.shape[-1] != made.shape[-1]:
            continue  # any other embedding fails below, where the sum is compared
        if (table := _positions(call, root.kwargs["position_ids"])) is not None:
            positions.append(table)
        elif (table := _types(call, root.kwargs.get("token_type_ids"))) is not None:
            types.append(table)
        added.append(call.output)
    if max(len(positions), len(types)) > 1:
        raise UnsupportedLayersError("it adds up several tables of positions, or of types")
    if any(len(table) < num_positions for table in positions):
        raise UnsupportedLayersError(f"it has {len(positions[0])} positions, not {num_positions}")
    leaves = [leaf for call in calls for leaf in ([] if call.inner else call.leaves())]
    config = model.config.get_text_config()
    for scale in dict.fromkeys((1.0, float(getattr(config, "embedding_multiplier", 1.0)))):
        total = sum(added, made if scale == 1 else made * scale)
        found = _after_embedding(total, leaves, first.input)
        if found is not None:
            added_tables = next(iter(positions), None), next(iter(types), None)
            return Embedding(own[0].module, *added_tables, *found, scale)
    raise UnsupportedLayersError(f"{first.kind} takes more than embeddings")


def _positions(call: Call, position_ids: torch.Tensor) -> torch.Tensor | None:
    """The table of a position embedding from position 0 on."""
    weight: torch.Tensor = call.module.weight.detach()
    weight = weight[getattr(call.module, "offset", 0) :].contiguous()
    if len(weight) <= position_ids.max() or not same(weight[position_ids], call.output):
        return None
    return weight


def _types(call: Call, token_type_ids: torch.Tensor | None) -> torch.Tensor | None:
    """The table of a token type embedding; its first row alone if all types are 0."""
    weight: torch.Tensor = call.module.weight.detach()
    if token_type_ids is not None and same(call.inputs[0], token_type_ids):
        return weight
    return None if call.inputs[0].any() else weight[:1]


def _after_embedding(
    total: torch.Tensor, leaves: Sequence[Call], made: torch.Tensor
) -> tuple[Norm | None, Linear | None] | None:
    """The norm and the product that make ``made`` of ``total``; None where something else does."""
    norm, reached = None, total
    for leaf in leaves:
        if near(leaf.input, total) and (found := read_norm(leaf)) is not None:
            norm, reached = found, leaf.output
    if near(reached, made):
        return norm, None
    products = (leaf for leaf in leaves if same(leaf.input, reached) and same(leaf.output, made))
    return next(((norm, leaf.module) for leaf in products), None)


def _read_layer(call: Call, rotations: Rotations, join: Join) -> Layer:
    """Raises UnsupportedLayersError where it computes anything else than a Layer does."""
    last_leaf = call.leaves()[-1]
    if same(last_leaf.output, call.output) and read_norm(last_leaf) is not None:
        return _read_normed_sums(call, rotations, join)
    attentions = [inner for inner in call.inner if inner.attended]
    if len(attentions) != 1:
        raise call.unsupported()
    (attention,) = attentions
    others = [c for c in call.inner if c is not attention and not c.changes_nothing]
    read = [(c, read_norm(c)) for c in others]
    norms = [(c, norm) for c, norm in read if norm is not None]
    mlp = [c for c, norm in read if norm is None]
    if not mlp:
        raise UnsupportedLayersError("a layer has no MLP")
    scale = float(getattr(call.module, _SCALE, 1.0))
    attention_norm = _take_norm(norms, call.input, attention.input)
    added, attention_post_norm = _take_norm_of(norms, attention.output)
    given, made = mlp[0].input, mlp[-1].output
    between = _sum(call.input, added, scale)
    makers = [c.input for c, _ in norms if same(c.output, given)]
    is_parallel = not any(same(one, between) for one in (given, *makers))
    if is_parallel and not makers and same(given, attention.input):
        mlp_norm = attention_norm
    else:
        mlp_norm = _take_norm(norms, call.input if is_parallel else between, given)
    last, mlp_post_norm = _take_norm_of(norms, made)
    if norms or not near(_sum(between, last, scale), call.output):
        raise call.unsupported()
    return Layer(
        attention=read_attention(attention, rotations, join),
        mlp=_mlp(mlp, join),
        attention_norm=attention_norm,
        mlp_norm=mlp_norm,
        attention_post_norm=attention_post_norm,
        mlp_post_norm=mlp_post_norm,
        is_parallel=is_parallel,
        scale=scale,
    )


def _read_normed_sums(call: Call, rotations: Rotations, join: Join) -> Layer:
    """A layer that normalizes sums, as BERT's; its parts may lie in modules of any kind."""
    leaves = call.leaves()
    between = [
        number
        for number in range(1, len(leaves) - 1)
        if read_norm(leaves[number]) is not None
        and leaves[number].input.numel() == call.input.numel()
        and near(_sum(call.input, leaves[number - 1].output), leaves[number].input)
    ]
    if len(between) != 1:
        raise UnsupportedLayersError(f"{call.kind} normalizes {len(between) + 1} sums, not 2")
    (middle,), last = between, leaves[-1]
    given, made = leaves[middle].output, leaves[-2].output
    mlp = _dense(leaves[middle + 1 : -1], given, made, join)
    if mlp is None or not near(_sum(given, made), last.input):
        raise call.unsupported()
    (attending,) = [inner for inner in call.walk() if inner.attended]
    outputs = [leaves[middle - 1].output]
    attention = replace(attending, inputs=[call.input], outputs=outputs, inner=leaves[:middle])
    return Layer(
        attention=read_attention(attention, rotations, join),
        mlp=mlp,
        attention_norm=read_norm(leaves[middle]),
        mlp_norm=read_norm(last),
        norms_sums=True,
    )


def _take_norm(norms: Norms, hidden: torch.Tensor, given: torch.Tensor) -> Norm | None:
    """The norm that made ``given`` of ``hidden``, taken off the list; None where both are alike."""
    for place, (call, norm) in enumerate(norms):
        if same(call.input, hidden) and same(call.output, given):
            del norms[place]
            return norm
    if not same(given, hidden):
        raise UnsupportedLayersError("more than a norm comes before attention, an MLP or the head")
    return None


def _take_norm_of(norms: Norms, made: torch.Tensor) -> tuple[torch.Tensor, Norm | None]:
    """The output of the norm of ``made`` and the norm, taken off the list; or ``made`` and None."""
    for place, (call, norm) in enumerate(norms):
        if same(call.input, made):
            del norms[place]
            return call.output, norm
    return made, None


def _sum(hidden: torch.Tensor, delta: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    delta = delta.view(hidden.shape)
    return hidden + (delta if scale == 1 else delta * scale)


def _mlp(calls: list[Call], join: Join) -> Mlp | Linear:
    """An Mlp, or the module as it is."""
    leaves = [leaf for call in calls for leaf in call.leaves()]
    mlp = _dense(leaves, calls[0].input, calls[-1].output, join)
    if mlp is not None:
        return mlp
    if len(calls) > 1:
        raise UnsupportedLayersError("a layer's own linear layers are not an MLP")
    module = calls[0].module

    def over_rows(x: torch.Tensor) -> torch.Tensor:
        """x (tokens, hidden); a mixture of experts needs a batch dimension."""
        y = module(x.unsqueeze(0))
        rows: torch.Tensor = (y[0] if isinstance(y, tuple) else y).view(x.shape)
        return rows

    return over_rows


def _dense(leaves: list[Call], given: torch.Tensor, made: torch.Tensor, join: Join) -> Mlp | None:
    firsts = [leaf for leaf in leaves if same(leaf.input, given) and _is_linear(leaf)]
    acts = [leaf for leaf in leaves if not _is_linear(leaf)]
    lasts = [leaf for leaf in leaves if same(leaf.output, made)]
    if len(acts) != 1 or len(lasts) != 1 or len(leaves) != len(firsts) + 2:
        return None
    (act,), (last,) = acts, lasts
    outputs = [first.output for first in firsts]
    modules = [first.module for first in firsts]
    activation = _activation(act)
    if len(firsts) == 2 and same(outputs[1], act.input):
        outputs, modules = outputs[::-1], modules[::-1]
    if len(firsts) == 1 and outputs[0].shape[-1] == 2 * last.input.shape[-1]:
        outputs = list(outputs[0].chunk(2, dim=-1))
    if not outputs or not same(outputs[0], act.input):
        return None
    is_gated = len(outputs) == 2
    if not same(act.output * outputs[1] if is_gated else act.output, last.input):
        return None
    return Mlp(joined(join, modules), activation, called(last.module), is_gated)


def _is_linear(call: Call) -> bool:
    return hasattr(call.module, "weight")  # those that are prepacked have no parameters


def _activation(call: Call) -> str | Linear:
    """The name of the activation in ACTIVATIONS that computes the same; else the module itself."""
    x = torch.linspace(-6, 6, 97, device=call.input.device)
    x = torch.cat([x, 10 * x])  # some are clipped, ReLU6 and "gelu_10"
    for name, function in ACTIVATIONS.items():
        if torch.allclose(call.module(x), function(x.clone()), atol=1e-6):
            return name
    module: Linear = call.module
    return module
