"""Plans how an encoder-decoder is held: in a short trial run (sources of different lengths, some
encoded together, that begin while others decode) its runner has to give the logits of the model's
own ``generate``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hf_triton.runtime.errors import reason
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.generation_rules import decoder_start, neutral_config
from hf_triton.text_generation.engine.own_logits import narrowed, random_tokens
from hf_triton.text_generation.forward.transformers.encoder_decoder import (
    Encoder,
    EncoderDecoderRunner,
)
from hf_triton.text_generation.memory.layer_shapes import (
    LayerShape,
    cross_layer_shapes,
    max_lengths,
)
from hf_triton.text_generation.memory.paged_cache import plan_pages
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.source import Source, text_source

from ..generate.batches import SIZES, SMALL_WIDTHS
from .largest_step import free_beside_steps, longest_source_step
from .plan import Plan
from .runner_selection import UnsupportedModelError
from .trial import Probe, Trial, dummy_sequence

_LENGTHS = (13, 10, 6, 6, 6)  # of sources, in tokens; a step encodes 16
_NUM_ENCODED = 16
_NUM_FORCED = 5
_WINDOW = 4
# If fewer sequences fit, for their sources are long, generate holds more.
_FEWEST_SEQS = 4
_RUNNERS: dict[str, Any] = {
    "encoder-decoder": EncoderDecoderRunner,
    # For decoders that can't count an offset for each row.
    "encoder-decoder, equal lengths": partial(EncoderDecoderRunner, equal_lengths=True),
}


def plan_encoder_decoder(setup: EngineSetup) -> Plan:
    """Prepares the model's layers too.

    Raises:
        UnsupportedModelError: no runner computes what the model's own ``generate`` does, or the
          cache holds few sequences.
        LoadError: max_model_len is above the model's own limit, or the cache does not fit.
    """
    model, options, start = setup.model, setup.options, decoder_start(setup.model)
    if start is None:
        raise UnsupportedModelError("no setting names the token that its outputs begin with")
    neutral_config(model)  # its lengths are not those of the trial
    max_source_len, max_model_len = max_lengths(model.config, options.max_model_len)
    sources = list(setup.sources or map(text_source, random_tokens(model, *_LENGTHS)))
    try:
        encoder = Encoder(model, setup.device, pads=False)
        begun = dummy_sequence([0], SamplingParams(1), sources[0])
        encoded = encoder.outputs(encoder.states([begun])[0])
        shapes = cross_layer_shapes(model, encoded, start.token_id)
    except Exception as error:
        # Any failure of an unknown architecture means the same: this engine can't serve it.
        raise UnsupportedModelError(f"{type(error).__name__}: {reason(error)}") from error
    runner = _select(setup, shapes, sources, start.token_id)
    longest = sources[0]
    if not setup.sources:
        shapes = [shape.with_longest_source(max_source_len) for shape in shapes]
        longest = text_source([0] * max_source_len)
    setup.prepare(model)
    options = replace(options, max_model_len=max_model_len)
    size = plan_pages(shapes, options, max_model_len, setup.free_bytes)
    if setup.device.type == "cuda":
        free = free_beside_steps(setup, shapes, runner, size, longest_source_step(longest))
        size = plan_pages(shapes, options, max_model_len, free)
    is_asked = options.max_num_seqs is not None or options.kv_cache_gib is not None
    if size.max_num_seqs < _FEWEST_SEQS and not is_asked:
        raise UnsupportedModelError(
            f"the cache holds {size.max_num_seqs} sequences only; a smaller max_model_len lets it "
            "hold more"
        )
    return Plan(runner, shapes, size, max_source_len=None if setup.sources else max_source_len)


def _trial(setup: EngineSetup, sources: list[Source], start: int) -> Trial:
    """Sequences with these sources and a few forced tokens each."""
    numbers = random_tokens(setup.model, *[_NUM_FORCED + 2] * len(sources), seed=1)
    # Decoders of sounds start with several tokens: a language, a task.
    num_more = 2 if setup.sources else 0
    probes = [
        Probe([start, *row[:num_more]], row[num_more : num_more + _NUM_FORCED], source)
        for row, source in zip(numbers, sources, strict=True)
    ]
    length = 1 + num_more + _NUM_FORCED
    return Trial(setup.model, setup.device, probes, num_step_tokens=_NUM_ENCODED, length=length)


def _select(
    setup: EngineSetup, shapes: list[LayerShape], sources: list[Source], start: int
) -> RunnerSpec:
    """The first runner whose logits agree with the model's own. One that pads texts is tried only
    where windows and blocks can be narrowed to a few tokens: else the trial would not show what
    they do.
    """
    model, trial = setup.model, _trial(setup, sources, start)

    def matching(*, pads: bool) -> tuple[RunnerSpec | None, str]:
        specs = [
            RunnerSpec(name, partial(kind, pads=pads), chunked_prefill=False)
            for name, kind in _RUNNERS.items()
        ]
        return trial.select(trial.expected(), specs, shapes)

    for width in () if setup.sources else SMALL_WIDTHS:
        with suppress(Exception), narrowed(model, SIZES.search, width):
            found, _ = matching(pads=True)
            if found is not None:
                return found
            break
    with narrowed(model, "sliding_window".__eq__, _WINDOW):
        found, refusals = matching(pads=False)
    if found is None:
        raise UnsupportedModelError(refusals)
    return found
