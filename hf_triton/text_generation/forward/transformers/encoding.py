"""Runs a model's encoder for the sequences that begin: sources of equal shapes together, and texts
of different lengths where padding was shown to change nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from hf_triton.runtime.devices.device import to_device
from hf_triton.text_generation.sequence.sequence import Sequence

_MOST_PADDING = 1.5  # columns that are computed, for each of the texts' own


@dataclass(frozen=True)
class States:
    """``hidden`` (rows, longest, size) of the encoder, of each row its ``lengths``."""

    hidden: torch.Tensor
    lengths: list[int]


class Encoder:
    """Runs a model's encoder; ``size`` is that of its states, known after the first."""

    def __init__(self, model: Any, device: torch.device, *, pads: bool) -> None:
        self._encoder, self._device, self._pads = model.get_encoder(), device, pads
        self._dtype = model.dtype
        self._accepted = set(inspect.signature(self._encoder.forward).parameters)
        self.size = 0
        self._output_class: Any = None

    def outputs(self, hidden: torch.Tensor) -> Any:
        """States (rows, tokens, size) in what the encoder answers with."""
        return self._output_class(last_hidden_state=hidden)

    def states(self, sequences: list[Sequence]) -> States:
        """What the encoder makes of the sequences' sources; choices of one request share theirs."""
        found: dict[int, torch.Tensor] = {}
        read_once = {id(sequence.source): sequence for sequence in sequences}
        for group in self._groups(read_once.values()):
            ids = (id(sequence.source) for sequence in group)
            found.update(zip(ids, self._encode(group), strict=True))
        states = [found[id(sequence.source)] for sequence in sequences]
        self.size = states[0].shape[-1]
        return States(pad_sequence(states, batch_first=True), [len(one) for one in states])

    def _groups(self, sequences: Iterable[Sequence]) -> Iterable[list[Sequence]]:
        """Sequences whose sources are read in one batch."""
        groups: dict[Any, list[Sequence]] = {}
        for sequence in sequences:
            groups.setdefault(_shapes(sequence), []).append(sequence)
        if not self._pads:
            return groups.values()
        merged: list[list[Sequence]] = []
        for group in sorted(groups.values(), key=lambda group: -_length(group[0])):
            if merged and _is_tight(merged[-1] + group):
                merged[-1] += group
            else:
                merged.append(group)
        return merged

    def _encode(self, sequences: list[Sequence]) -> list[torch.Tensor]:
        """-> (length, size) of each."""
        if _shapes(sequences[0]) != _shapes(sequences[-1]):
            return self._encode_padded(sequences)
        sources = [_inputs(sequence) for sequence in sequences]
        inputs = {name: torch.cat([one[name] for one in sources]) for name in sources[0]}
        if "input_ids" in inputs and "attention_mask" not in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        return list(self._run(inputs))

    def _encode_padded(self, sequences: list[Sequence]) -> list[torch.Tensor]:
        texts = [_inputs(sequence)["input_ids"][0] for sequence in sequences]
        lengths = [len(text) for text in texts]
        input_ids = pad_sequence(texts, batch_first=True)
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).to(torch.int64)
        states = self._run({"input_ids": input_ids, "attention_mask": mask})
        return [one[:length] for one, length in zip(states, lengths, strict=True)]

    def _run(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """-> (rows, length, size)."""
        given = {
            name: to_device(
                value.to(self._dtype) if value.is_floating_point() else value, self._device
            )
            for name, value in inputs.items()
            if name in self._accepted
        }
        output = self._encoder(**given, return_dict=True)
        self._output_class = type(output)
        states: torch.Tensor = output.last_hidden_state
        return states


def _inputs(sequence: Sequence) -> dict[str, torch.Tensor]:
    assert sequence.source is not None
    return sequence.source.inputs


def _shapes(sequence: Sequence) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(value.shape)) for name, value in _inputs(sequence).items())


def _length(sequence: Sequence) -> int:
    return int(_inputs(sequence)["input_ids"].shape[1])


def _is_tight(sequences: list[Sequence]) -> bool:
    lengths = [_length(sequence) for sequence in sequences]
    return len(lengths) * max(lengths) <= _MOST_PADDING * sum(lengths)
