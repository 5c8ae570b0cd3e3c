"""Reads DeBERTa's attention, https://arxiv.org/abs/2006.03654, as its second and third versions
compute it: to a score are added the products of the query, and of the key, with projections of the
distance between the two.

What was read is held against what the module computed of its queries, keys and values.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.fused.reading.recording import Attended, Call, same

from .attention import COLUMNS
from .own_attention import error_of

_TOLERANCE = 0.1  # of the largest number; bfloat16 rounds three products and their sums
_MARK = "disentangled_attention_bias"


def note_disentangled_attention(model: Any, root: Call, max_length: int) -> None:
    """Notes with each such call what it would have given to an attention function, and under
    "relative_keys" and "relative_queries" what an Attention has.
    """
    for call in list(root.walk()):
        if hasattr(call.module, _MARK):
            leaves = call.leaves()
            if not all(same(leaf.input, call.input) for leaf in leaves[:3]):
                raise UnsupportedLayersError(f"{call.kind} projects something else")
            call.inner = leaves[:3]
            attended = _attended(call, leaves[3:], _rows_by_distance(model, call, max_length))
            if error_of(attended, _added(attended), call.output) > _TOLERANCE:
                raise UnsupportedLayersError(f"{call.kind} attends in a way of its own")
            call.attended.append(attended)


def _rows_by_distance(model: Any, call: Call, max_length: int) -> torch.Tensor:
    """Which row of the relative embeddings is that of each distance from a query to its key, int64:
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
        attended.given["relative_keys"] = _table(keys[rows.flip(0)], heads)
    if projected and "p2c" in kinds:
        queries = made[id(getattr(module, f"{prefix}query_proj"))]
        attended.given["relative_queries"] = _table(queries[rows], heads)
    return attended


def _table(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """(distances, heads * dim) -> (heads, dim, distances)."""
    return rows.view(len(rows), heads, -1).permute(1, 2, 0).contiguous()


def _added(attended: Attended) -> torch.Tensor:
    """What is added to the scores, (rows, heads, tokens, tokens)."""
    tokens = torch.arange(attended.query.shape[2])
    distance = tokens - tokens[:, None]  # of the key from its query
    scale, total = attended.given["scaling"], torch.zeros(())
    if (keys := attended.given.get("relative_keys")) is not None:
        columns = keys[:, :, keys.shape[2] // 2 + distance]
        total = torch.einsum("rhid,hdij->rhij", attended.query.float(), columns.float()) * scale
    if (queries := attended.given.get("relative_queries")) is not None:
        columns = queries[:, :, queries.shape[2] // 2 - distance]
        total = (
            total + torch.einsum("rhjd,hdij->rhij", attended.key.float(), columns.float()) * scale
        )
    return total
