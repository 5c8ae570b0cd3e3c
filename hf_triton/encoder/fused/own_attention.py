"""Finds modules that compute attention themselves, not by an attention function of transformers'.

MPNet's, whose scores have a bias for each distance; and DeBERTa's of versions 2 and 3
(https://arxiv.org/abs/2006.03654), which adds to a score the products of the query, and of the key,
with projections of the distance between the two. What such a module computed is compared with plain
attention over its queries, keys and values, with those terms added.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.fused.reading.recording import Attended, Call, same

from .attention import COLUMNS

_TOLERANCE = 0.03  # of the largest number; bfloat16 rounds scores and weights to less
_TOLERANCE_OF_SUMS = 0.1  # bfloat16 rounds three products and their sums
_MAKER = "compute_position_bias"
_DISENTANGLED = "disentangled_attention_bias"


def note_own_attention(model: Any, root: Call, max_length: int) -> None:
    """Records for each such call the inputs of an equivalent attention function; "bias" is what is
    added to its scores, (heads, 2 * max_length - 1) float32, by distance, starting with the key
    furthest before its query.
    """
    table = None
    for call in root.walk():
        found = _read(call, model.config)
        if found is not None:
            bias, attended = found
            if bias is not None:
                table = _table(model, bias, max_length) if table is None else table
                attended.given["bias"] = table
            call.attended.append(attended)


def _read(call: Call, config: Any) -> tuple[torch.Tensor | None, Attended] | None:
    """The bias and the inputs of a call that is plain attention."""
    leaves = call.leaves() if call.inner else []
    if len(leaves) != 4 or not same(leaves[-1].output, call.output):
        return None
    if not all(same(leaf.input, call.input) for leaf in leaves[:3]):
        return None
    heads, outputs = config.num_attention_heads, [leaf.output for leaf in leaves[:3]]
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in outputs)
    tokens, dim = query.shape[2:]
    biases = [one for one in call.inputs if one.shape[-3:] == (heads, tokens, tokens)]
    for bias in (*biases, None):  # where scores are large, few tokens don't show that there is one
        attended = Attended(query, key, value, {"scaling": dim**-0.5})
        if error_of(attended, bias, leaves[-1].input) <= _TOLERANCE:
            return bias, attended
    return None


def error_of(attended: Attended, bias: torch.Tensor | None, made: torch.Tensor) -> float:
    """The largest error of ``made`` against such attention, relative to the largest number."""
    query, key, value = (part.float() for part in (attended.query, attended.key, attended.value))
    scores = query @ key.transpose(2, 3) * attended.given["scaling"]
    weights = (scores if bias is None else scores + bias.float()).softmax(-1)
    expected = (weights @ value).transpose(1, 2).flatten(2)
    return float((expected - made.float()).abs().max() / expected.abs().max())


def _table(model: Any, bias: torch.Tensor, max_length: int) -> torch.Tensor:
    """The bias of each distance, from one more call of the module that makes it."""
    makers = [module for module in model.modules() if hasattr(module, _MAKER)]
    if len(makers) != 1:
        raise UnsupportedLayersError("no module computes its position bias")
    whole = getattr(makers[0], _MAKER)(torch.empty(1, max_length, 1))[0].float()
    first_row, first_column = whole[:, 0], whole[:, :, 0]  # of the first query; of the first key
    table = torch.cat([first_column.flip(1), first_row[:, 1:]], dim=1).contiguous()
    few = bias.shape[-1]
    near_ones = table.unfold(1, few, 1)[:, max_length - few : max_length].flip(1)
    if not torch.equal(near_ones, bias.reshape(-1, *bias.shape[-3:])[0].float()):
        raise UnsupportedLayersError("its position bias depends on more than distances")
    return table


def note_disentangled_attention(model: Any, root: Call, max_length: int) -> None:
    """Records for each such call the inputs of an equivalent attention function; "relative_keys"
    and "relative_queries" are as in Attention.
    """
    for call in list(root.walk()):
        if hasattr(call.module, _DISENTANGLED):
            leaves = call.leaves()
            if not all(same(leaf.input, call.input) for leaf in leaves[:3]):
                raise UnsupportedLayersError(f"not all projections of {call.kind} take its input")
            call.inner = leaves[:3]
            attended = _attended(call, leaves[3:], _rows_by_distance(model, call, max_length))
            if error_of(attended, _added(attended), call.output) > _TOLERANCE_OF_SUMS:
                raise UnsupportedLayersError(f"{call.kind} computes attention in its own way")
            call.attended.append(attended)


def _rows_by_distance(model: Any, call: Call, max_length: int) -> torch.Tensor:
    """Returns the row of the relative embeddings for each distance from a query to its key, int64:
    from -(max_length - 1) to max_length - 1, and COLUMNS more on both sides.
    """
    if not call.module.relative_attention:
        return torch.zeros(0)
    one, all_ = torch.zeros(1, 1), torch.zeros(max_length, 1)
    behind, before = model.encoder.get_rel_pos(all_, one), model.encoder.get_rel_pos(one, all_)
    rows = torch.cat([behind.flatten().flip(0)[:-1], before.flatten()])
    ends = rows[:1].expand(COLUMNS), rows[-1:].expand(COLUMNS)
    span: int = call.module.pos_ebd_size
    return (torch.cat([ends[0], rows, ends[1]]) + span).clamp(0, 2 * span - 1)


def _attended(call: Call, projected: list[Call], rows: torch.Tensor) -> Attended:
    """``projected``: the calls that project relative embeddings."""
    module, made = call.module, {id(leaf.module): leaf.output[0] for leaf in projected}
    kinds = [kind for kind in ("c2p", "p2c") if kind in module.pos_att_type]
    heads, prefix = module.num_attention_heads, "" if module.share_att_key else "pos_"
    parts = [leaf.output.unflatten(-1, (heads, -1)).transpose(1, 2) for leaf in call.inner]
    given = {"scaling": ((1 + len(kinds)) * parts[0].shape[-1]) ** -0.5}
    attended = Attended(parts[0], parts[1], parts[2], given)
    if projected and "c2p" in kinds:
        keys = made[id(getattr(module, f"{prefix}key_proj"))]
        attended.given["relative_keys"] = _columns(keys[rows.flip(0)], heads)
    if projected and "p2c" in kinds:
        queries = made[id(getattr(module, f"{prefix}query_proj"))]
        attended.given["relative_queries"] = _columns(queries[rows], heads)
    return attended


def _columns(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """(distances, heads * dim) -> (heads, dim, distances)."""
    return rows.view(len(rows), heads, -1).permute(1, 2, 0).contiguous()


def _added(attended: Attended) -> torch.Tensor:
    """Computes the terms that are added to the scores, (rows, heads, tokens, tokens)."""
    tokens = torch.arange(attended.query.shape[2])
    distance = tokens - tokens[:, None]  # of the key from its query
    scale, total = attended.given["scaling"], torch.zeros(())
    if (keys := attended.given.get("relative_keys")) is not None:
        columns = keys[:, :, keys.shape[2] // 2 + distance]
        total = torch.einsum("rhid,hdij->rhij", attended.query.float(), columns.float()) * scale
    if (queries := attended.given.get("relative_queries")) is not None:
        columns = queries[:, :, queries.shape[2] // 2 - distance]
        key = attended.key.float()
        total = total + torch.einsum("rhjd,hdij->rhij", key, columns.float()) * scale
    return total
