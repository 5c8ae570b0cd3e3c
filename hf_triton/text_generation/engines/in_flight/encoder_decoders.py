"""Plans how an encoder-decoder is held: in a short trial run (sources of different lengths, some
encoded together, that begin while others decode) its runner has to give the logits of the model's
own ``generate``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.errors import reason
from hf_triton.runtime.trial import Refusals, RunnerSpec, first_agreeing
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.generation_rules import decoder_start, neutral_config
from hf_triton.text_generation.engine.own_logits import (
    check_numbers,
    difference,
    narrowed,
    own_source_logits,
)
from hf_triton.text_generation.forward.transformers.encoder_decoder import (
    Encoder,
    EncoderDecoderRunner,
)
from hf_triton.text_generation.forward.transformers.transformers_runner import Runner
from hf_triton.text_generation.memory.layer_shapes import LayerShape, cross_layer_shapes
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.source import Source, text_source

from ..generate.batches import SIZES, SMALL_WIDTHS
from ..generate.lengths import max_lengths
from .runner_selection import UnsupportedModelError
from .trial import TrialRun, dummy_sequence, trial_logits

_LENGTHS = (13, 10, 6, 6, 6)  # of sources, in tokens; a step encodes 16
_NUM_ENCODED = 16
_NUM_FORCED = 5
_WINDOW = 4
_RUNNERS: dict[str, Any] = {
    "encoder-decoder": EncoderDecoderRunner,
    # For decoders that can't count an offset for each row.
    "encoder-decoder, equal lengths": partial(EncoderDecoderRunner, equal_lengths=True),
}


@dataclass(frozen=True)
class EncoderDecoderPlan:
    """``max_model_len``: the most tokens that the decoder writes; ``max_source_len``: that the
    encoder reads of a text, None for sounds. ``longest`` is the longest source.
    """

    make_runner: RunnerSpec
    shapes: list[LayerShape]
    max_source_len: int | None
    max_model_len: int
    longest: Source


def plan_encoder_decoder(setup: EngineSetup) -> EncoderDecoderPlan:
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
        begun = dummy_sequence([0], SamplingParams(1))
        begun.source = sources[0]
        encoded = encoder.outputs(encoder.states([begun])[0])
        shapes = cross_layer_shapes(model, encoded, start.token_id)
    except Exception as error:
        # Any failure of an unknown architecture means the same: this engine can't serve it.
        raise UnsupportedModelError(f"{type(error).__name__}: {reason(error)}") from error
    runner = _select(setup, shapes, sources, start.token_id)
    if setup.sources:
        return EncoderDecoderPlan(runner, shapes, None, max_model_len, sources[0])
    shapes = [shape.with_longest_source(max_source_len) for shape in shapes]
    longest = text_source([0] * max_source_len)
    return EncoderDecoderPlan(runner, shapes, max_source_len, max_model_len, longest)


def _texts(model: Any) -> list[Source]:
    size = int(model.config.get_text_config().vocab_size)
    draw = torch.Generator().manual_seed(0)
    rows = (torch.randint(1, size, (length,), generator=draw) for length in _LENGTHS)
    return [text_source(row.tolist()) for row in rows]


class SourceTrial(TrialRun):
    """Sequences with these sources and a few forced tokens each."""

    def __init__(self, setup: EngineSetup, sources: list[Source], start: int) -> None:
        super().__init__(setup.model, setup.device)
        size = int(setup.model.config.get_text_config().vocab_size)
        draw = torch.Generator().manual_seed(1)
        numbers = torch.randint(1, size, (len(sources), _NUM_FORCED + 2), generator=draw).tolist()
        # Of sounds, decoders start with several tokens: a language, a task.
        num_more = 2 if setup.sources else 0
        self.prompts = [[start, *row[:num_more]] for row in numbers]
        self.forced = [row[num_more : num_more + _NUM_FORCED] for row in numbers]
        self.sources = {
            id(prompt): source for prompt, source in zip(self.prompts, sources, strict=True)
        }
        self.num_step_tokens, self.length = _NUM_ENCODED, 1 + num_more + _NUM_FORCED

    def own_logits(self, prompt: list[int], forced: list[int]) -> torch.Tensor:
        return own_source_logits(self.model, self.sources[id(prompt)], prompt, forced)

    def noise(self, logits: list[torch.Tensor]) -> float:
        """By how much the first row changes where most of its tokens are read at once."""
        with suppress(Exception):  # a decoder that starts with one token only
            prompt, forced = self.prompts[0], self.forced[0]
            whole, source = prompt + forced[:-1], self.sources[id(prompt)]
            last = own_source_logits(self.model, source, whole, forced[-1:])
            return difference(last, logits[0][-2:])
        return 0.0

    def run(self, runner: Runner, *, chunked_prefill: bool = True) -> torch.Tensor:
        cache = runner.cache
        cache.source_lengths = [cache.states[0][0].shape[2]] * (1 + len(self.prompts))
        return super().run(runner, chunked_prefill=chunked_prefill)


def _select(
    setup: EngineSetup, shapes: list[LayerShape], sources: list[Source], start: int
) -> RunnerSpec:
    """The first runner whose logits agree with the model's own. One that pads texts is tried only
    where windows and blocks can be narrowed to a few tokens: else the trial would not show what
    they do.
    """
    model, trial = setup.model, SourceTrial(setup, sources, start)
    for width in () if setup.sources else SMALL_WIDTHS:
        with suppress(Exception), narrowed(model, SIZES.search, width):
            found = _matching(trial, shapes, Refusals(), pads=True)
            if found is not None:
                return found
            break
    refusals = Refusals()
    with narrowed(model, "sliding_window".__eq__, _WINDOW):
        found = _matching(trial, shapes, refusals, pads=False)
    if found is None:
        raise UnsupportedModelError(str(refusals))
    return found


def _matching(
    trial: SourceTrial, shapes: list[LayerShape], refusals: Refusals, *, pads: bool
) -> RunnerSpec | None:
    expected = trial.expected()
    check_numbers(expected.logits)
    return first_agreeing(
        [
            RunnerSpec(name, partial(kind, pads=pads), chunked_prefill=False)
            for name, kind in _RUNNERS.items()
        ],
        lambda spec: difference(trial_logits(spec, shapes, trial), expected.logits),
        expected.tolerance,
        refusals,
    )
