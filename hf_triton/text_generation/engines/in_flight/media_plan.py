"""Prompts with images or sounds: plans how they are held, tried on prompts of the model's own
processor as text is tried, and encodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import EngineError, place, reason
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.own_logits import difference, narrowed
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.forward.transformers.transformers_runner import Runner, StepMedia
from hf_triton.text_generation.media.decoder_entry import DecoderEntry, Encoded
from hf_triton.text_generation.media.features import tensors_of
from hf_triton.text_generation.media.processor import Prompt
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.pages import PagedSize
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source

from .runner_selection import CACHE, UnsupportedModelError
from .trial import TRIAL_WIDTH, WIDTHS, Probe, Trial, text_probes

_MOST_FEATURE_BYTES, _FEATURE_SHARE = 2**28, 0.05
_NUM_PROMPTS = 2  # with images or sounds that runners are tried with; encoders, with more
# Of the longest trial prompt, in a step: it is cut, and decodes beside the next one.
_STEP_SHARE = 2 / 3


def decoder_entry(setup: EngineSetup) -> DecoderEntry:
    """Raises UnsupportedModelError where the model hands no embeddings to a decoder."""
    most_bytes = min(_MOST_FEATURE_BYTES, int(setup.free_bytes(setup.device) * _FEATURE_SHARE))
    try:
        return DecoderEntry(setup.model, setup.device, most_bytes)
    except Exception as error:
        raise UnsupportedModelError(f"with images: {reason(error)}") from error


def encode_largest(setup: EngineSetup, entry: DecoderEntry | None, size: PagedSize) -> None:
    make = setup.largest_prompt
    prompt = None if entry is None or make is None else make(size.max_model_len)
    if entry is not None and prompt is not None:
        entry.encode(*prompt)
        entry.features.clear()


def select_with_media(
    setup: EngineSetup, shapes: list[LayerShape], plain: RunnerSpec, entry: DecoderEntry
) -> tuple[RunnerSpec, bool, bool]:
    """The runner, ``plain`` for steps of text alone; whether prompts with images or sounds may be
    computed in chunks, and whether their keys and values may be shared. Raises
    UnsupportedModelError where no runner's logits agree with the model's own.
    """
    preferred, own_attention = plain.of_model or plain, entry.own_attention
    with narrowed(setup.model, WIDTHS.__contains__, TRIAL_WIDTH):
        try:
            with own_attention.restored():
                prompts = [] if setup.trial_prompts is None else setup.trial_prompts()
                trial, shares = _trial(setup, entry, prompts[:_NUM_PROMPTS])
                expected = trial.expected()
        except Exception as error:
            raise UnsupportedModelError(f"with images: {reason(error)}") from error
        specs = [
            _with_media(plain if spec is preferred else spec, spec, entry)
            for spec in dict.fromkeys((preferred, CACHE))
        ]
        own_attention.restore()
        found, refusals = trial.select(expected, specs, shapes)
        if found is None:
            raise UnsupportedModelError(f"with images: {refusals}")
        _encode_by_item(entry, prompts, expected.tolerance)
    return found, trial.cuts_sources, shares


def _trial(setup: EngineSetup, entry: DecoderEntry, prompts: Items[Prompt]) -> tuple[Trial, bool]:
    """Prompts with images or sounds, then one of text; and whether all blocks are whole images."""
    probes = [Probe(tokens, _last_of_text(tokens, source), source) for tokens, source in prompts]
    probes.append(text_probes(setup.model)[-1])
    encoded = [entry.encode(*prompt) for prompt in prompts]
    shares = all(
        _is_content(block, source)
        for (_, source), one in zip(prompts, encoded, strict=True)
        for block in one.blocks
    )
    longest = max(len(probe.prompt) for probe in probes)
    trial = Trial(
        setup.model,
        setup.device,
        probes,
        num_step_tokens=max(Trial.num_step_tokens, int(longest * _STEP_SHARE) + 1),
        length=longest + len(probes[-1].forced) + 1,
        cuts_sources=not any(one.blocks for one in encoded),
        encode=entry.encode,
    )
    return trial, shares


def _encode_by_item(entry: DecoderEntry, prompts: Items[Prompt], tolerance: float) -> None:
    """Encodes each image and sound by itself if the features are those of whole prompts."""
    features = entry.features
    try:
        with entry.own_attention.restored():
            together = [entry.encode(*prompt) for prompt in prompts]
            features.by_item = True
            by_item = [entry.encode(*prompt) for prompt in prompts]
        pairs = zip(_features_of(by_item), _features_of(together), strict=True)
        worst = max(difference(*pair) for pair in pairs)
        why_not = "" if worst <= tolerance else f"features differ by {worst:.2g} of their range"
    except Exception as error:
        why_not = f"{type(error).__name__}: {reason(error, 120)}"
    if why_not:
        features.by_item = False
        log.info(f"images and sounds are encoded prompt by prompt: {why_not}")
    features.clear()


def _with_media(plain: RunnerSpec, media: RunnerSpec, entry: DecoderEntry) -> RunnerSpec:
    """``plain`` for text, ``media`` for steps with images or sounds."""

    def make(*given: Any) -> Runner:
        # The one that runs the model last: another may reset how the model attends.
        of_text = None if plain is media else plain(*given)
        runner: Runner = media(*given)
        runner.extras = StepMedia(entry)
        if of_text is not None:
            runner.plain, runner.argmax = of_text, of_text.argmax
        return runner

    name = media.name if plain is media else f"{plain.name}, {media.name} with images"
    return replace(media, name=name, make=make)


def _last_of_text(tokens: list[int], source: Source) -> list[int]:
    """The last two tokens that no feature replaces."""
    keys = source.cache_token_ids or tokens
    text = [token for token, key in zip(tokens, keys, strict=True) if key >= 0]
    return (text or [0])[-2:] if len(text) > 1 else [0, 0]


def _features_of(encoded: list[Encoded]) -> Iterator[torch.Tensor]:
    """Each tensor that decoders are given, (tokens, size)."""
    for one in encoded:
        extras = [getattr(extra, "rows", extra) for extra in one.extras.values()]
        for value in tensors_of([one.embeds, *extras]):
            if value.is_floating_point():
                yield value.float().flatten(1)


def _is_content(block: tuple[int, int], source: Source) -> bool:
    """True if a block is one whole image."""
    keys = (source.cache_token_ids or [0])[slice(*block)]
    return len(set(keys)) == 1 and keys[0] < 0


def encode_sources(step: Step, entry: DecoderEntry) -> tuple[Step, dict[Sequence, EngineError]]:
    """Encodes the images and sounds of the sequences that a step begins -> the step without those
    that fail, and their errors. A sequence that shares an image or sound with a failed one fails
    too.
    """
    failed: dict[Sequence, EngineError] = {}
    bad_digests: set[bytes] = set()
    for sequence in (chunk.sequence for chunk in step.prefills):
        source = sequence.source
        if source is None or sequence.encoded is not None:
            continue
        try:
            if not bad_digests.isdisjoint(source.digests):
                raise EngineError("the same image or sound failed in another request")
            sequence.encoded = entry.encode(sequence.prompt_token_ids, source)
        except Exception as error:
            log.error(f"an encoder failed: {place(error)}")
            bad_digests.update(source.digests)
            text = f"encoding failed: {type(error).__name__}: {reason(error)}"
            failed[sequence] = EngineError(text)
    if failed:
        step = replace(step, prefills=[one for one in step.prefills if one.sequence not in failed])
    return step, failed
