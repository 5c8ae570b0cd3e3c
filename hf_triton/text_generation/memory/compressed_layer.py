"""A layer that keeps windows of tokens compressed to one entry each beside its keys (DeepSeek V4:
compressed sparse and heavily compressed attention), for rows that are at different places.

A row's unfinished window, and what the next one reads of the finished one (``prior``), lie in
states. In a decode every row's window is compressed as if it were full: whose is not yet gets an
entry that no query sees, and that the full window replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .layer_shapes import StateShape
from .page_layer import PageLayer, Rows, TableLayer


class CompressedLayer(TableLayer, PageLayer):
    """Its compressors store through transformers' names: ``compressor``, and ``indexer`` where it
    has one.
    """

    def __init__(
        self, shapes: tuple[StateShape, ...], stored: list[torch.Tensor], keys: torch.Tensor
    ) -> None:
        PageLayer.__init__(self, keys, keys)
        TableLayer.__init__(self, shapes, stored)
        self.compress_rate = shapes[0].shape[0]

    def select(self, rows: Rows) -> None:
        self.rows = rows
        TableLayer.select(self, rows)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys are the values too."""
        keys, _ = PageLayer.update(self, key_states, key_states)
        return keys, keys

    def store_compression_weights(
        self, name: str, kv: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """kv and gate (rows, tokens, dim) -> those of the windows to compress, (rows, windows *
        rate, dim), and where the first of them begins.
        """
        rate, (rows, positions) = self.compress_rate, self._places(kv.device)
        windows = []
        for part, new in (("kv", kv), ("gate", gate)):
            stored = self._state(f"{name}.{part}")
            begun = stored[:, : self.rows.num_past % rate].to(new.dtype)
            if len(positions) == 1:  # a chunk: some of its tokens may be overwritten at once
                whole = torch.cat([begun, new], dim=1)
                windows.append(whole[:, : whole.shape[1] // rate * rate])
                new, places = new[:, -rate:], positions[:, -rate:] % rate
                stored[rows, places] = new.to(stored.dtype)
            else:
                stored[rows, positions % rate] = new.to(stored.dtype)
                windows.append(stored.to(new.dtype))
        first = positions[:, 0] // rate * rate
        return windows[0], windows[1], int(first) if len(positions) == 1 else _Starts(first)

    def update_overlap_state(
        self, name: str, chunk_kv: torch.Tensor, chunk_gate: torch.Tensor, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """chunk_kv and chunk_gate (rows, windows, rate, dim) -> what the windows before them left,
        (rows, rate, head_dim); the gate is -inf where there is none before.
        """
        _, positions = self._places(chunk_kv.device)
        first, ends = positions[:, :1], positions[:, -1:] + 1
        begins = (first < self.compress_rate).unsqueeze(-1)
        closes = (ends % self.compress_rate == 0).unsqueeze(-1)
        if len(first) == 1:
            closes = torch.ones_like(closes)  # a chunk's windows are full
        found = []
        for part, chunk, empty in (("kv", chunk_kv, 0.0), ("gate", chunk_gate, float("-inf"))):
            stored = self._state(f"{name}.prior_{part}")
            found.append(stored.masked_fill(begins, empty))
            stored.copy_(torch.where(closes, chunk[:, -1, :, :head_dim].to(stored.dtype), stored))
        return found[0], found[1]

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """Writes entries (rows, windows, head_dim) -> all, (rows, entries, head_dim)."""
        entries = self._state(f"{name}.entries")
        rows, positions = self._places(entries.device)
        number = torch.arange(compressed.shape[1], device=entries.device)
        entries[rows, positions[:, :1] // self.compress_rate + number] = compressed
        return entries[:, : self.rows.length // self.compress_rate]

    def _state(self, kind: str) -> torch.Tensor:
        kinds = [shape.kind for shape in self.shapes]
        return self.views[kinds.index(kind)]

    def _places(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The forward's rows (rows, 1) and positions (rows, tokens)."""
        positions = self.rows.positions.to(device)
        return torch.arange(len(positions), device=device).unsqueeze(1), positions


class _Starts:
    """Where each row's window begins, for ``(offsets + first).unsqueeze(0).expand(rows, -1)``."""

    def __init__(self, starts: torch.Tensor) -> None:
        self._starts = starts.unsqueeze(1)

    def __radd__(self, offsets: torch.Tensor) -> _Starts:
        return _Starts((self._starts + offsets)[:, 0])

    def unsqueeze(self, dim: int) -> _Starts:
        return self

    def expand(self, *sizes: int) -> torch.Tensor:
        return self._starts


def compressors(model: Any) -> list[Any]:
    """The modules that give a layer's attention its entries."""
    named = model.named_modules()
    return [module for name, module in named if name.endswith(".compressor") and module]


@contextmanager
def entries_hidden(modules: list[Any], positions: torch.Tensor) -> Iterator[None]:
    """Has ``modules`` (compressors), which let a single token see all entries, hide from each row
    of ``positions`` (rows, 1) those that are not its own.
    """

    def hide(module: Any, args: Any, output: Any) -> Any:
        entries, bias = output
        if bias is None:
            number = torch.arange(entries.shape[2], device=entries.device)
            hidden = number >= (positions + 1) // module.compress_rate
            bias = entries.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            bias = bias[:, None, None]
        return entries, bias

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hide).remove)
        yield
