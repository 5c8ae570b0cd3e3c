"""Computes a batch of packed texts on the CPU, with compiled kernels.

Between two matrix products one compiled loop replaces a dozen torch operators, and each text reads
its own keys alone. The products are the model's own linear layers, however they are laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch

from hf_triton.runtime.fused.parts import Layer, UnsupportedLayersError, check_body
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking
from hf_triton.runtime.fused.reading.layers import read_body
from hf_triton.runtime.fused.reading.recording import NUM_TOKENS, record
from hf_triton.runtime.fused.row_loops import RowLoops
from hf_triton.runtime.kernels.compiled_loops import ThreadTeam

from ..runners.encoder_runner import RunnerSetup, call_options
from ..runners.packed_runner import PackedRows
from ..texts.encoding import Encoding
from .attention import COLUMNS, Encoder, TextAttention, Texts, relative_tables
from .own_attention import note_disentangled_attention, note_own_attention

_DTYPES = (torch.float32, torch.bfloat16)


class FusedRunner(PackedRows):
    """Computes with the weights of a model, which is not changed. Raises UnsupportedLayersError;
    ImportError without Numba.
    """

    name = "fused"

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        model = setup.model
        if setup.device.type != "cpu" or model.dtype not in _DTYPES:
            raise UnsupportedLayersError(f"it is {model.dtype} on {setup.device.type}")
        if setup.hides_tokens:
            raise UnsupportedLayersError("no token sees those that fill queries up")
        types = setup.has_token_types
        self._encoder = read_encoder(
            model.base_model, self.first, setup.max_length, has_token_types=types
        )
        check_sizes(self._encoder, setup.max_length, model.dtype)
        team = ThreadTeam(torch.get_num_threads())
        self._loops = RowLoops(model.dtype, team)
        self._attention = TextAttention(self._encoder, self._loops, team)

    def hidden(self, row: Sequence[Encoding], wanted: list[int] | None) -> torch.Tensor:
        positions = self.positions(row)
        hidden = self._embedded(row, positions)
        lengths = [len(encoding) for encoding in row]
        starts = torch.tensor(list(accumulate(lengths, initial=0)))
        places = (positions - self.first).clamp_(min=0) if self.first else positions
        texts = Texts(max(lengths), starts, places.int())
        delta, last = None, self._encoder.layers[-1]
        for layer in self._encoder.layers:
            rows = wanted if layer is last else None
            hidden, delta = self._layer(layer, hidden, delta, texts, rows)
        return self._loops.added(hidden, delta, self._encoder.norm)

    def _embedded(self, row: Sequence[Encoding], positions: torch.Tensor) -> torch.Tensor:
        """(tokens, hidden)."""
        ids = torch.tensor(list(chain.from_iterable(encoding.input_ids for encoding in row)))
        kinds = None
        if any(any(encoding.token_type_ids or ()) for encoding in row):
            types = [encoding.token_type_ids or [0] * len(encoding) for encoding in row]
            kinds = torch.tensor(list(chain.from_iterable(types)))
        return self._loops.embedded(self._encoder.embedding, ids, positions, kinds)

    def _layer(
        self,
        layer: Layer,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        texts: Texts,
        wanted: list[int] | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states and the term still to be added, (tokens, hidden) each, of the ``wanted``
        tokens or of all.
        """
        norm = None if layer.norms_sums else layer.attention_norm
        x = self._loops.added(hidden, delta, norm)
        attended = self._attention(layer.attention, layer.attention.qkv(x), texts)
        if wanted is not None:
            hidden, x, attended = hidden[wanted], x[wanted], attended[wanted]
        made = layer.attention.output(attended)
        if not layer.norms_sums:
            return hidden, self._loops.rest(layer, hidden, x, made)
        hidden = self._loops.added(hidden, made, layer.attention_norm)
        made = self._loops.mlp(layer.mlp, hidden)
        return self._loops.added(hidden, made, layer.mlp_norm), None


@torch.inference_mode()
def read_encoder(
    model: Any, first_position: int, max_length: int, *, has_token_types: bool
) -> Encoder:
    """Reads a base model, whose texts begin at ``first_position``, from one recorded forward of a
    few tokens, and checks every part against it. Raises UnsupportedLayersError.
    """
    ends = first_position, first_position + max_length - 1
    inputs = call_options(model)
    if has_token_types:
        inputs["token_type_ids"] = torch.tensor([[0], [1]]).expand(-1, NUM_TOKENS)
    root = record(model, ends, **inputs)
    if not any(call.attended for call in root.walk()):
        note_own_attention(model, root, max_length)
        note_disentangled_attention(model, root, max_length)
    span = first_position, max_length
    body, calls = read_body(model, root, root.output, span, joined_by_prepacking)
    keys = [inner.attended[0].key for call in calls for inner in call.walk() if inner.attended]
    if len({(key.shape[1], key.shape[3]) for key in keys}) > 1:
        raise UnsupportedLayersError("its layers differ in the number of key heads")
    return Encoder(body.embedding, body.layers, body.norm, keys[0].shape[1], keys[0].shape[3])


@torch.inference_mode()
def check_sizes(encoder: Encoder, length: int, dtype: torch.dtype) -> None:
    """Raises UnsupportedLayersError where a layer does not fit texts of ``length`` tokens, or
    computes what the kernels do not.
    """
    check_body(encoder, (encoder.kv_heads, encoder.dim, length), dtype)
    for layer in encoder.layers:
        attention = layer.attention
        if attention.softcap or attention.sinks is not None or attention.is_interleaved:
            raise UnsupportedLayersError("its attention has soft caps, sinks or interleaved heads")
        bias = attention.bias
        if bias is not None and bias.shape != (attention.num_heads, 2 * length - 1):
            raise UnsupportedLayersError(f"a position bias of shape {tuple(bias.shape)}")
        for table in relative_tables(attention):
            width = 2 * (length - 1 + COLUMNS) + 1
            wanted = attention.num_heads, encoder.dim, width
            if table is not None and (table.shape != wanted or not table.is_contiguous()):
                raise UnsupportedLayersError(f"relative positions of shape {tuple(table.shape)}")
