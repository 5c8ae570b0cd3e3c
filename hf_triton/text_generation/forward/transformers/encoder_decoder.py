"""Runs steps of encoder-decoders: the encoder for the sequences that begin, their decoder's first
tokens, and one ``[num_seqs, 1]`` forward of the decoder for all that go on.

The model takes its own keys and values from pages, and those of sources from tables. Masks,
positions and the cache's length are given for each row, (rows, 1). Two places don't take that and
are replaced: embeddings of positions, and T5's bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from hf_triton.runtime.devices.device import to_device
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.memory.model_cache import CrossCache, Rows
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source

from .cache_runner import additive_mask, causal_masks, last_tokens, sliding_windows
from .transformers_runner import Runner

_MOST_PADDING = 1.5  # columns that are computed, for each of the texts' own
_OFFSET, _POSITIONS = "past_key_values_length", "position_ids"


class EncoderDecoderRunner(Runner):
    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        device: torch.device,
        *,
        pads: bool = False,
        equal_lengths: bool = False,
    ) -> None:
        """``pads``: texts of different lengths share a batch of the encoder; ``equal_lengths``:
        only decoders of one length are computed together.
        """
        self.model, self.cache, self.device = model, cache, device
        self._equal_lengths = equal_lengths
        self._model_cache = CrossCache(cache)
        self._encoder = Encoder(model, device, pads=pads)
        self._decoder = model.get_decoder()
        self._windows = sliding_windows(getattr(self._decoder, "config", model.config))
        self._accepted = set(inspect.signature(self._decoder.forward).parameters)
        self._by_row = functions_by_row(self._decoder)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        computed: list[Sequence] = []
        parts = []
        decodes: Iterable[list[Sequence]] = [step.decodes] if step.decodes else []
        if self._equal_lengths:
            decodes = _grouped(step.decodes, attrgetter("num_computed_tokens"))
        for sequences in decodes:
            computed += sequences
            parts.append(self._decode(sequences))
        begun = (chunk.sequence for chunk in step.prefills)
        for sequences in _grouped(begun, attrgetter("num_prefill_tokens")):
            computed += sequences
            parts.append(self._begin(sequences))
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        if computed == step.sampled:
            return logits
        rows = {sequence: row for row, sequence in enumerate(computed)}
        order = torch.tensor([rows[sequence] for sequence in step.sampled])
        return logits[to_device(order, logits.device)]

    def _begin(self, sequences: list[Sequence]) -> torch.Tensor:
        """-> logits (sequences, vocab) after their prompts, which are equally long."""
        hidden, lengths = self._encoder.states(sequences)
        tokens = [sequence.tokens(0, sequence.num_prefill_tokens) for sequence in sequences]
        for sequence, length in zip(sequences, lengths, strict=True):
            self.cache.begin_source(sequence.slot, length)
        input_ids = to_device(torch.tensor(tokens), self.device)
        length = input_ids.shape[1]
        positions = torch.arange(length, device=self.device).expand(len(sequences), -1)
        rows = Rows(sequences, positions, 0, length, self.cache.size.page_size)
        self._model_cache.select(rows, hidden.shape[1])
        return self._run(input_ids, positions, hidden, lengths)

    def _decode(self, sequences: list[Sequence]) -> torch.Tensor:
        input_ids, rows = last_tokens(sequences, self.cache, self.device)
        places = {s.num_computed_tokens - 1 for s in sequences}
        rows.offset = places.pop() if len(places) == 1 else rows.positions
        lengths = [self.cache.source_lengths[s.slot] for s in sequences]
        self._model_cache.select(rows, max(lengths))
        # The keys and values of sources are there: of their states only the shape is looked at.
        hidden = torch.empty(1, 1, 1, dtype=self.model.dtype, device=self.device)
        hidden = hidden.expand(len(lengths), max(lengths), self._encoder.size)
        return self._run(input_ids, rows.positions, hidden, lengths)

    def _run(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        lengths: list[int],
    ) -> torch.Tensor:
        """input_ids and positions (rows, tokens), hidden (rows, source, size) and each row's
        ``lengths`` of it -> logits (rows, vocab) of the last tokens.
        """
        mask = self._cross_mask(input_ids, lengths)
        inputs = {
            "attention_mask": self._own_masks(positions),
            "encoder_attention_mask": mask,
            "position_ids": positions,
        }
        known = {name: value for name, value in inputs.items() if name in self._accepted}
        # FSMT's decoder knows it by another name.
        own = {} if "encoder_attention_mask" in known else {"attention_mask": mask}
        with self._given(known):
            output = self.model(
                **own,
                encoder_outputs=self._encoder.outputs(hidden),
                decoder_input_ids=input_ids,
                past_key_values=self._model_cache,
                use_cache=True,
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _own_masks(self, positions: torch.Tensor) -> Any:
        """Masks of the decoder's own tokens, one for each kind of layer with sliding windows; None
        for equal lengths, where all columns are visible.
        """
        if self._equal_lengths:
            return None
        length = self._model_cache.own[0].rows.length
        masks = causal_masks(positions, length, self._windows, self.model.dtype)
        return masks if self._windows else next(iter(masks.values()))

    def _cross_mask(self, input_ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """The mask of the encoder's tokens, (rows, 1, tokens, longest source); for equal lengths
        (rows, longest source) of 0 and 1.
        """
        columns = torch.arange(max(lengths), device=self.device)
        ends = to_device(torch.tensor(lengths), self.device)[:, None]
        if self._equal_lengths:
            return (columns < ends).to(torch.int64)
        hidden = (columns >= ends)[:, None].expand(-1, input_ids.shape[1], -1)
        return additive_mask(hidden, self.model.dtype)

    @contextmanager
    def _given(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Replaces the decoder's inputs within the block, and functions that take one offset for
        all rows.
        """
        by_row = isinstance(self._model_cache.get_seq_length(), torch.Tensor)

        def give(decoder: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, **inputs}

        with ExitStack() as stack:
            hook = self._decoder.register_forward_pre_hook(give, with_kwargs=True)
            stack.callback(hook.remove)
            for module, name, function in self._by_row if by_row else ():
                setattr(module, name, function)
                stack.callback(delattr, module, name)
            yield


def _grouped(
    sequences: Iterable[Sequence], key: Callable[[Sequence], object]
) -> Iterable[list[Sequence]]:
    groups: dict[object, list[Sequence]] = {}
    for sequence in sequences:
        groups.setdefault(key(sequence), []).append(sequence)
    return groups.values()


def functions_by_row(decoder: Any) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Replacements (module, name, function) for rows with an offset each."""
    found = [
        (module, "compute_bias", _bias_by_row(module.compute_bias))
        for module in decoder.modules()
        if hasattr(module, "compute_bias")
    ]
    positions = getattr(decoder, "embed_positions", None)
    if positions is not None and _OFFSET in inspect.signature(positions.forward).parameters:
        found.append((positions, "forward", _positions_by_row(positions.forward)))
    return found


def _bias_by_row(own: Callable[..., Any]) -> Callable[..., Any]:
    """T5's relative bias as (rows, heads, 1, columns): given offsets (rows, 1), the model computes
    a row's where a token's would be.
    """
    return lambda *args, **kwargs: own(*args, **kwargs).transpose(0, 2)


def _positions_by_row(own: Callable[..., Any]) -> Callable[..., Any]:
    """Embeddings of positions (rows, 1, size): at once where the module looks them up, else
    position by position.
    """
    signature = inspect.signature(own)
    looks_up = True

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal looks_up
        given = signature.bind(*args, **kwargs).arguments
        offsets: torch.Tensor = given[_OFFSET]
        if looks_up:
            try:
                return own(**given).reshape(len(offsets), 1, -1)
            except (RuntimeError, TypeError):
                looks_up = False
        places = offsets[:, 0].tolist()
        found = {}
        for place in set(places):
            if given.get(_POSITIONS) is not None:
                given[_POSITIONS] = torch.tensor([place], device=offsets.device)
            embedded = own(**{**given, _OFFSET: place})
            found[place] = embedded.reshape(-1, 1, embedded.shape[-1]).expand(len(places), -1, -1)
        return torch.stack([found[place][row] for row, place in enumerate(places)])

    return forward


class Encoder:
    """Runs a model's encoder; ``size`` is that of its states, known after the first."""

    def __init__(self, model: Any, device: torch.device, *, pads: bool) -> None:
        self._encoder, self._device, self._pads = model.get_encoder(), device, pads
        self._dtype = model.dtype
        self._accepted = set(inspect.signature(self._encoder.forward).parameters)
        self.size = 0
        self._output_class: Any = None

    def outputs(self, hidden: torch.Tensor) -> Any:
        """Wraps states (rows, tokens, size) as the encoder's output."""
        return self._output_class(last_hidden_state=hidden)

    def states(self, sequences: list[Sequence]) -> tuple[torch.Tensor, list[int]]:
        """States of the sequences' sources (rows, longest, size) and their lengths. Choices of one
        request share theirs.
        """
        found: dict[int, torch.Tensor] = {}
        read_once = {id(sequence.source): sequence for sequence in sequences}
        for group in self._groups(read_once.values()):
            ids = (id(sequence.source) for sequence in group)
            found.update(zip(ids, self._encode(group), strict=True))
        states = [found[id(sequence.source)] for sequence in sequences]
        self.size = states[0].shape[-1]
        return pad_sequence(states, batch_first=True), [len(one) for one in states]

    def _groups(self, sequences: Iterable[Sequence]) -> Iterable[list[Sequence]]:
        """Sequences whose sources are encoded in one batch."""
        groups = _grouped(sequences, _shapes)
        if not self._pads:
            return groups
        merged: list[list[Sequence]] = []
        for group in sorted(groups, key=lambda group: -_length(group[0])):
            lengths = [_length(one) for one in (*(merged[-1] if merged else ()), *group)]
            if merged and len(lengths) * max(lengths) <= _MOST_PADDING * sum(lengths):
                merged[-1] += group
            else:
                merged.append(group)
        return merged

    def _encode(self, sequences: list[Sequence]) -> list[torch.Tensor]:
        """-> (length, size) of each."""
        sources = [_inputs(sequence) for sequence in sequences]
        inputs = {
            name: pad_sequence([one[name][0] for one in sources], batch_first=True)
            for name in self._accepted & sources[0].keys()
        }
        given = Source(inputs, 0).on(self._device, self._dtype)
        output = self._encoder(**given, return_dict=True)
        self._output_class = type(output)
        states: torch.Tensor = output.last_hidden_state  # (rows, length, size)
        ends = [_length(one) if "input_ids" in sources[0] else None for one in sequences]
        return [one[:end] for one, end in zip(states, ends, strict=True)]


def _inputs(sequence: Sequence) -> dict[str, torch.Tensor]:
    assert sequence.source is not None
    return sequence.source.inputs


def _shapes(sequence: Sequence) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(value.shape)) for name, value in _inputs(sequence).items())


def _length(sequence: Sequence) -> int:
    return int(_inputs(sequence)["input_ids"].shape[1])
