"""Runs steps of encoder-decoders: the encoder for the sequences that begin, then their decoder's
first tokens; and one ``[num_seqs, 1]`` forward of the decoder for all that go on.

The model computes all of it by itself. It takes its keys and values from pages, and those of
sources from tables (``memory/model_cache.py``), and masks and positions for each row: its decoder
counts positions from how long its cache says that it is, which here is a number for each row,
(rows, 1). That is all that some decoders need; two places don't take it and are changed: embeddings
of positions, and T5's bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import torch

from hf_triton.runtime.devices.device import to_device
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.memory.model_cache import CrossCache
from hf_triton.text_generation.memory.page_layer import Rows
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.sequence.sequence import Sequence

from .cache_runner import sliding_windows
from .encoding import Encoder
from .runner import Runner

_OFFSET, _POSITIONS = "past_key_values_length", "position_ids"


class EncoderDecoderRunner(Runner):
    """Runs the model as it is, with its own attention."""

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        device: torch.device,
        *,
        pads: bool = False,
        equal_lengths: bool = False,
    ) -> None:
        """``pads``: the encoder may read texts of different lengths in one batch;
        ``equal_lengths``: only decoders of one length are computed together.
        """
        self.model, self.cache, self.device = model, cache, device
        self._equal_lengths = equal_lengths
        self._model_cache = CrossCache(cache)
        self._encoder = Encoder(model, device, pads=pads)
        self._decoder = model.get_decoder()
        self._windows = sliding_windows(getattr(self._decoder, "config", model.config))
        self._accepted = set(inspect.signature(self._decoder.forward).parameters)
        self._changes = changes_by_row(self._decoder)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_sampled, vocab) in the order of ``step.sampled``."""
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
        states = self._encoder.states(sequences)  # (rows, longest source, size), and lengths
        tokens = [sequence.tokens(0, sequence.num_prefill_tokens) for sequence in sequences]
        for sequence, length in zip(sequences, states.lengths, strict=True):
            self.cache.begin_source(sequence.slot, length)
        input_ids = to_device(torch.tensor(tokens), self.device)
        length = input_ids.shape[1]
        positions = torch.arange(length, device=self.device).expand(len(sequences), -1)
        rows = Rows(sequences, positions, 0, length, self.cache.size.page_size)
        self._model_cache.select(rows, 0, states.hidden.shape[1])
        return self._run(input_ids, positions, states.hidden, states.lengths)

    def _decode(self, sequences: list[Sequence]) -> torch.Tensor:
        """One token each, which are all of the running sequences or at equal positions."""
        last = [[[s.last_token_id] for s in sequences]]
        last.append([[s.num_computed_tokens - 1] for s in sequences])
        input_ids, positions = to_device(torch.tensor(last), self.device)  # (rows, 1) each
        places = {s.num_computed_tokens - 1 for s in sequences}
        offset = places.pop() if len(places) == 1 else positions
        length = max(s.num_computed_tokens for s in sequences)
        lengths = [self.cache.source_lengths[s.slot] for s in sequences]
        rows = Rows(sequences, positions, length - 1, length, self.cache.size.page_size)
        self._model_cache.select(rows, offset, max(lengths))
        # The keys and values of sources are there: of their states only the shape is looked at.
        hidden = torch.empty(1, 1, 1, dtype=self.model.dtype, device=self.device)
        hidden = hidden.expand(len(lengths), max(lengths), self._encoder.size)
        return self._run(input_ids, positions, hidden, lengths)

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
        """Additive masks (rows, 1, tokens, length) of what the decoder wrote, one for each kind of
        layer where it has sliding windows; of equal lengths none, for all columns are visible.
        """
        if self._equal_lengths:
            return None
        columns = torch.arange(self._model_cache.own[0].rows.length, device=self.device)
        places = positions.unsqueeze(-1)  # (rows, tokens, 1)
        masks = {}
        for kind, window in (self._windows or {"": 0}).items():
            hidden = columns > places
            masks[kind] = self._mask(hidden | (columns <= places - window) if window else hidden)
        return masks if self._windows else masks[""]

    def _cross_mask(self, input_ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """The same (rows, 1, tokens, longest source) of what the encoder read; of equal lengths
        (rows, longest source) of 0 and 1, which the model makes its own of.
        """
        columns = torch.arange(max(lengths), device=self.device)
        ends = to_device(torch.tensor(lengths), self.device)[:, None]
        if self._equal_lengths:
            return (columns < ends).to(torch.int64)
        return self._mask((columns >= ends)[:, None].expand(-1, input_ids.shape[1], -1))

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(mask.dtype).min).unsqueeze(1)

    @contextmanager
    def _given(self, inputs: dict[str, Any]) -> Iterator[None]:
        """Gives the decoder these inputs meanwhile, whatever the model around it makes of its own;
        and an offset for each row where the model knows one for all.
        """
        by_row = isinstance(self._model_cache.get_seq_length(), torch.Tensor)

        def give(decoder: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, **inputs}

        with ExitStack() as stack:
            hook = self._decoder.register_forward_pre_hook(give, with_kwargs=True)
            stack.callback(hook.remove)
            for change in self._changes if by_row else ():
                stack.enter_context(change.made())
            yield


def _grouped(
    sequences: Iterable[Sequence], length: Callable[[Sequence], int]
) -> Iterable[list[Sequence]]:
    """Those of one length together."""
    groups: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        groups.setdefault(length(sequence), []).append(sequence)
    return groups.values()


class Change:
    """Another function in the place of a module's own, while it is made."""

    def __init__(self, module: Any, name: str) -> None:
        self._module, self._name = module, name
        self._own: Callable[..., Any] = getattr(module, name)

    @contextmanager
    def made(self) -> Iterator[None]:
        setattr(self._module, self._name, self._by_row)
        try:
            yield
        finally:
            delattr(self._module, self._name)

    def _by_row(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class BiasChange(Change):
    """T5's relative bias (1, heads, tokens, columns) becomes (rows, heads, 1, columns): given
    (rows, 1) of offsets, it computes a row's where a token's would be.
    """

    def _by_row(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs).transpose(0, 2)


class PositionsChange(Change):
    """Embeddings (rows, 1, size) of a position for each row: at once where the module looks up what
    it is given, else for each position that a row has.
    """

    def __init__(self, module: Any, name: str) -> None:
        super().__init__(module, name)
        self._signature = inspect.signature(self._own)
        self._at_once = True

    def _by_row(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind(*args, **kwargs).arguments
        offsets: torch.Tensor = given[_OFFSET]
        if self._at_once:
            try:
                return self._own(**given).reshape(len(offsets), 1, -1)
            except (RuntimeError, TypeError):
                self._at_once = False
        places = offsets[:, 0].tolist()
        found = {}
        for place in set(places):
            if given.get(_POSITIONS) is not None:
                given[_POSITIONS] = torch.tensor([place], device=offsets.device)
            embedded = self._own(**{**given, _OFFSET: place})
            found[place] = embedded.reshape(-1, 1, embedded.shape[-1]).expand(len(places), -1, -1)
        return torch.stack([found[place][row] for row, place in enumerate(places)])


def changes_by_row(decoder: Any) -> list[Change]:
    changes: list[Change] = [
        BiasChange(module, "compute_bias")
        for module in decoder.modules()
        if hasattr(module, "compute_bias")
    ]
    positions = getattr(decoder, "embed_positions", None)
    if positions is not None and _OFFSET in inspect.signature(positions.forward).parameters:
        changes.append(PositionsChange(positions, "forward"))
    return changes
