"""Runs a step through ``transformers.Cache``, which supports the most decoders, slower than others.

A prompt chunk is a ``[1, chunk]`` forward; the decodes are one ``[num_seqs, 1]`` forward, with a
2-D attention mask and explicit positions. New keys and values are written at each row's own
position, old ones are gathered from its pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import nullcontext
from typing import Any

import torch

from hf_triton.runtime.devices.device import to_device
from hf_triton.text_generation.engine.step import PrefillChunk, Step
from hf_triton.text_generation.memory.layer_shapes import cache_argument, keep_states
from hf_triton.text_generation.memory.model_cache import ModelCache, Rows
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.sequence.sequence import Sequence

from .transformers_runner import CountedPositions, Runner

# Layers that keep states and attend to nothing: no row is padded, so they take no mask.
_STATE_KINDS = {"linear_attention", "conv"}
_SLIDING_KINDS = {"sliding_attention", "hybrid_sliding"}
Block = tuple[slice, slice]  # tokens of a chunk, and the columns that they see


class CacheRunner(Runner):
    def __init__(self, model: Any, cache: PagedCache, device: torch.device) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self._model_cache = ModelCache(cache)
        self._cache_name = cache_argument(model)
        self._accepted = set(inspect.signature(model.forward).parameters)
        self._attends = any(shape.num_kv_heads for shape in cache.shapes)
        self._has_states = keep_states(cache.shapes)
        self._counted = CountedPositions(model)
        self._windows = sliding_windows(model.config.get_text_config())

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        return self.in_parts(step, self._forward)

    def in_parts(self, step: Step, forward: Callable[[Step], torch.Tensor]) -> torch.Tensor:
        """Runs the decodes as one step, and each chunk as one."""
        parts = [Step(step.decodes)] if step.decodes else []
        parts += [Step(prefills=[chunk]) for chunk in step.prefills]
        return _joined([(part, forward(part)) for part in parts])

    def _forward(self, part: Step) -> torch.Tensor:
        if part.decodes:
            return self._run(*last_tokens(part.decodes, self.cache, self.device))[:, -1]
        (chunk,) = part.prefills
        last = [chunk.end - 1] if chunk.is_last else []
        return self._prefill(chunk, [*last, *chunk.scored])

    def _prefill(self, chunk: PrefillChunk, wanted: list[int]) -> torch.Tensor:
        """-> logits (wanted, vocab) of the tokens at these positions."""
        tokens = chunk.sequence.tokens(chunk.start, chunk.end)
        input_ids = to_device(torch.tensor([tokens]), self.device)
        positions = torch.arange(chunk.start, chunk.end, device=self.device).unsqueeze(0)
        size = self.cache.size.page_size
        rows = Rows([chunk.sequence], positions, chunk.start, chunk.end, size)
        blocks = [
            (slice(max(0, first - chunk.start), max(0, end - chunk.start)), slice(first, end))
            for first, end in (chunk.sequence.encoded.blocks if chunk.sequence.encoded else ())
        ]
        num_kept = chunk.end - min(wanted, default=chunk.end - 1)
        logits = self._run(input_ids, rows, num_kept, blocks)
        return logits[0, [position - chunk.end for position in wanted]]

    def _run(
        self, input_ids: torch.Tensor, rows: Rows, num_kept: int = 1, blocks: Items[Block] = ()
    ) -> torch.Tensor:
        """input_ids (rows, tokens) -> logits (rows, num_kept or more, vocab) of each row's last
        tokens.
        """
        positions = rows.positions
        self._model_cache.select(rows)
        inputs = {
            "input_ids": input_ids,
            "position_ids": positions,
            "attention_mask": self._mask(positions, rows.length, blocks),
            self._cache_name: self._model_cache,
            "use_cache": True,
            "logits_to_keep": num_kept,
        }
        inputs = {name: value for name, value in inputs.items() if name in self._accepted}
        # In a single row the model counts right.
        counted = self._counted.given(positions) if len(positions) > 1 else nullcontext()
        with counted:
            output = self.model(**inputs)
        self._model_cache.finish()
        logits: torch.Tensor = output.logits
        return logits

    def _mask(self, positions: torch.Tensor, length: int, blocks: Items[Block]) -> Any:
        """The model's ``attention_mask``: (rows, length) of 0 and 1 where all layers see all before
        them. Sliding windows follow each row's own position, which transformers takes from one
        offset for all rows, so they get additive masks, one for each kind of layer.
        """
        if not self._attends:
            return None
        if not self._windows and not blocks:
            columns = torch.arange(length, device=self.device)
            return (columns <= positions[:, -1:]).to(torch.int64)
        masks = causal_masks(positions, length, self._windows, self.model.dtype, blocks)
        if self._has_states:
            return {**masks, **dict.fromkeys(_STATE_KINDS)}
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _joined(parts: list[tuple[Step, torch.Tensor]]) -> torch.Tensor:
    """Joins the logits of parts, each in the order of its ``all_rows``, to those of the step."""
    rows = [logits[: len(part.rows)] for part, logits in parts if part.rows]
    scored = [logits[len(part.rows) :] for part, logits in parts if part.all_rows != part.rows]
    return torch.cat([*rows, *scored]) if rows or scored else torch.empty(0)


def last_tokens(
    sequences: list[Sequence], cache: PagedCache, device: torch.device
) -> tuple[torch.Tensor, Rows]:
    """The tokens that decodes compute, (rows, 1), and where they lie."""
    last = [[[s.last_token_id] for s in sequences]]
    last.append([[s.num_computed_tokens - 1] for s in sequences])
    input_ids, positions = to_device(torch.tensor(last), device)  # (rows, 1) each
    length = max(s.num_computed_tokens for s in sequences)
    return input_ids, Rows(sequences, positions, length - 1, length, cache.size.page_size)


def causal_masks(
    positions: torch.Tensor,
    length: int,
    windows: dict[str, int],
    dtype: torch.dtype,
    blocks: Items[Block] = (),
) -> dict[str, torch.Tensor]:
    """positions (rows, tokens) -> additive masks (rows, 1, tokens, length) by kind of layer, one
    for a model without ``windows``. Tokens of ``blocks`` see each other.
    """
    columns, ends = torch.arange(length, device=positions.device), positions.unsqueeze(-1)
    masks = {}
    for kind, window in (windows or {"full_attention": 0}).items():
        hidden = columns > ends  # (rows, tokens, length)
        if window:
            hidden = hidden | (columns <= ends - window)
        for tokens, seen in blocks:
            hidden[:, tokens, seen] = False
        masks[kind] = additive_mask(hidden, dtype)
    return masks


def additive_mask(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """hidden (rows, tokens, columns) bool -> (rows, 1, tokens, columns)."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)


def sliding_windows(config: Any) -> dict[str, int]:
    """Each layer kind's window (0: none); empty for a model without windows."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if not window or not kinds & _SLIDING_KINDS:
        return {}
    if "hybrid_sliding" in kinds:  # some models call their masks by what those layers attend to
        kinds |= {"full_attention", "sliding_attention"}
    return {kind: window if kind in _SLIDING_KINDS else 0 for kind in sorted(kinds - _STATE_KINDS)}
