"""How the in-flight engine holds an encoder-decoder, shown at load: a short trial run (sources of
different lengths, some encoded together, that begin while others decode) has to give the logits of
the model's own ``generate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.errors import reason
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.generation_rules import decoder_start, neutral_config
from hf_triton.text_generation.engine.own_logits import (
    check_numbers,
    difference,
    narrowed,
    own_source_logits,
)
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.forward.transformers.encoder_decoder import (
    EncoderDecoderRunner,
    EqualPositionsRunner,
)
from hf_triton.text_generation.forward.transformers.encoding import Encoder
from hf_triton.text_generation.forward.transformers.runner import Making, RunnerFactory
from hf_triton.text_generation.memory.kv_cache import CacheSize, KVCache
from hf_triton.text_generation.memory.layer_shapes import LayerShape, cross_layer_shapes
from hf_triton.text_generation.memory.slot_contents import SlotContents
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source, text_source

from ..generate.batches import SIZES
from ..generate.lengths import max_lengths
from .runner_selection import UnsupportedModelError
from .trial import fill_with_nan, logits_after, tolerance
from .warm_up import dummy_sequence

_LENGTHS = (13, 10, 6, 6, 6)  # of sources, in tokens; a step encodes 16
_NUM_ENCODED = 16
_NUM_FORCED = 5
_WIDTHS = (2, 4, 8)  # of windows and blocks, the first that the architecture takes
_WINDOW = 4


@dataclass(frozen=True)
class EncoderDecoder:
    """How a model is held. ``max_model_len``: the most tokens that its decoder writes;
    ``max_source_len``: that its encoder reads of a text, None of a sound. ``longest`` is the
    longest source.
    """

    make_runner: RunnerFactory
    shapes: list[LayerShape]
    max_source_len: int | None
    max_model_len: int
    longest: Source


def hold_encoder_decoder(setup: EngineSetup) -> EncoderDecoder:
    """
    Raises:
        UnsupportedModelError: no runner computes what the model's own ``generate`` does.
        LoadError: max_model_len is above the model's own limit.
    """
    model, start = setup.model, decoder_start(setup.model)
    if start is None:
        raise UnsupportedModelError("nothing says with which token its outputs begin")
    neutral_config(model)  # its lengths are not those of the trial
    max_source_len, max_model_len = max_lengths(model.config, setup.options.max_model_len)
    sources = list(setup.sources) or _texts(model)
    try:
        encoder = Encoder(model, setup.device, pads=False)
        encoded = encoder.outputs(encoder.states(_begun([[0]], sources[:1])).hidden)
        shapes = cross_layer_shapes(model, encoded, start.token_id)
    except Exception as error:
        # Any failure of an unknown architecture means the same: this engine can't serve it.
        raise UnsupportedModelError(f"{type(error).__name__}: {reason(error)}") from error
    runner = _Trial(setup, shapes, sources, start.token_id).select()
    if setup.sources:
        return EncoderDecoder(runner, shapes, None, max_model_len, sources[0])
    shapes = [shape.with_longest_source(max_source_len) for shape in shapes]
    longest = text_source([0] * max_source_len)
    return EncoderDecoder(runner, shapes, max_source_len, max_model_len, longest)


def _texts(model: Any) -> list[Source]:
    """Texts of a trial's lengths."""
    size = int(model.config.get_text_config().vocab_size)
    draw = torch.Generator().manual_seed(0)
    rows = (torch.randint(1, size, (length,), generator=draw) for length in _LENGTHS)
    return [text_source(row.tolist()) for row in rows]


def _begun(prompts: list[list[int]], sources: list[Source]) -> list[Sequence]:
    sequences = [dummy_sequence(prompt, SamplingParams(_NUM_FORCED + 1)) for prompt in prompts]
    for sequence, source in zip(sequences, sources, strict=True):
        sequence.source = source
    return sequences


class _Trial:
    """Sequences with these sources and a few forced tokens each."""

    def __init__(
        self, setup: EngineSetup, shapes: list[LayerShape], sources: list[Source], start: int
    ) -> None:
        self._model, self._device, self._shapes = setup.model, setup.device, shapes
        self._sources, self._is_text = sources, not setup.sources
        size = int(setup.model.config.get_text_config().vocab_size)
        draw = torch.Generator().manual_seed(1)
        numbers = torch.randint(1, size, (len(sources), _NUM_FORCED + 2), generator=draw).tolist()
        # Of sounds, decoders start with several tokens: a language, a task.
        num_more = 0 if self._is_text else 2
        self._prompts = [[start, *row[:num_more]] for row in numbers]
        self._forced = [row[num_more : num_more + _NUM_FORCED] for row in numbers]

    def select(self) -> RunnerFactory:
        """The first runner whose logits agree with the model's own: one that pads texts only where
        windows and blocks can be narrowed to a few tokens, so that the trial shows what they do.

        Raises:
            UnsupportedModelError: none does.
        """
        reasons: list[str] = []
        for width in _WIDTHS if self._is_text else ():
            with suppress(Exception), narrowed(self._model, SIZES.search, width):
                found = self._matching(_runners(pads=True), [])
                if found is not None:
                    return found
                break
        with narrowed(self._model, "sliding_window".__eq__, _WINDOW):
            found = self._matching(_runners(pads=False), reasons)
        if found is None:
            raise UnsupportedModelError("; ".join(reasons))
        return found

    def _matching(
        self, candidates: Iterator[RunnerFactory], reasons: list[str]
    ) -> RunnerFactory | None:
        expected = self._expected()
        most = tolerance(self._model, self._noise(expected[0]))
        for candidate in candidates:
            try:
                error = difference(self._logits(candidate), expected)
            except Exception as failure:
                reasons.append(
                    f"{candidate.name}: {type(failure).__name__}: {reason(failure, 120)}"
                )
            else:
                if error <= most:
                    return candidate
                reasons.append(f"{candidate.name}: its logits differ by {error:.2g} of their range")
        return None

    def _expected(self) -> torch.Tensor:
        """What the model's own generate computes, source by source."""
        rows = zip(self._sources, self._prompts, self._forced, strict=True)
        logits = torch.stack([own_source_logits(self._model, *row) for row in rows])
        check_numbers(logits)
        return logits

    def _noise(self, own: torch.Tensor) -> Callable[[], float]:
        """By how much the first row changes where most of its tokens are read at once."""

        def noise() -> float:
            with suppress(Exception):  # a decoder that starts with one token only
                whole = self._prompts[0] + self._forced[0][:-1]
                last = own_source_logits(self._model, self._sources[0], whole, self._forced[0][-1:])
                return difference(last, own[-2:])
            return 0.0

        return noise

    def _logits(self, make_runner: RunnerFactory) -> torch.Tensor:
        sequences = _begun(self._prompts, self._sources)
        length = len(self._prompts[0]) + _NUM_FORCED
        cache = KVCache(self._shapes, CacheSize(len(sequences), length, num_bytes=0))
        fill_with_nan(cache)
        cache.source_lengths = [cache.states[0][0].shape[2]] * len(sequences)
        runner = make_runner(self._model, cache, self._device)
        space = SlotContents(len(sequences), num_written=length)
        scheduler = Scheduler(len(sequences), _NUM_ENCODED, space, chunked_prefill=False)
        return logits_after(sequences, self._forced, scheduler, runner)


def _runners(*, pads: bool) -> Iterator[RunnerFactory]:
    for kind in (EncoderDecoderRunner, EqualPositionsRunner):
        yield Making(kind.name, partial(kind, pads=pads), chunked_prefill=False)
