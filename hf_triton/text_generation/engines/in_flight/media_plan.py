"""Plans how prompts with images or sounds are held: tried on prompts of the model's own processor,
as text is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import reason
from hf_triton.runtime.trial import Refusals, RunnerSpec, first_agreeing
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.own_logits import difference, narrowed, own_logits
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.forward.transformers.step_extras import ExtrasRunner, StepMedia
from hf_triton.text_generation.media.encoded import Encoded
from hf_triton.text_generation.media.entry import DecoderEntry
from hf_triton.text_generation.media.features import tensors_of
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedSize
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source

from .runner_selection import CACHE, UnsupportedModelError
from .trial import TRIAL_WIDTH, WIDTHS, TrialRun, trial_logits

_MOST_FEATURE_BYTES, _FEATURE_SHARE = 2**28, 0.05
_NUM_PROMPTS = 2  # with images or sounds that runners are tried with; encoders, with more
_NUM_STEPS = 3  # that a trial prompt is computed in, at least


@dataclass(frozen=True)
class MediaPlan:
    """``cuts_sources``: prompts with images or sounds may be computed in chunks. ``shares``: their
    keys and values may be shared with prompts that begin like them.
    """

    make_runner: RunnerSpec
    entry: DecoderEntry
    cuts_sources: bool
    shares: bool


def decoder_entry(setup: EngineSetup) -> DecoderEntry:
    """
    Raises:
        UnsupportedModelError: the model hands no embeddings to a decoder.
    """
    try:
        return DecoderEntry(setup.model, setup.device, max_feature_bytes(setup))
    except Exception as error:
        raise UnsupportedModelError(f"with images: {reason(error)}") from error


def max_feature_bytes(setup: EngineSetup) -> int:
    """How much of the device's free memory features of images and sounds may take."""
    return min(_MOST_FEATURE_BYTES, int(setup.free_bytes(setup.device) * _FEATURE_SHARE))


def free_beside_features(setup: EngineSetup, entry: DecoderEntry) -> Callable[[torch.device], int]:
    """The free bytes of each device that kept features leave to the rest."""
    free, kept = setup.free_bytes, entry.features.max_bytes
    return lambda device: free(device) - (kept if device == setup.device else 0)


def encode_largest(setup: EngineSetup, entry: DecoderEntry | None, size: PagedSize) -> None:
    """Encodes the largest image or sound that there can be."""
    make = setup.largest_prompt
    prompt = None if entry is None or make is None else make(size.max_model_len)
    if entry is not None and prompt is not None:
        entry.encode(*prompt)
        entry.features.clear()


def plan_media(
    setup: EngineSetup, shapes: list[LayerShape], plain: RunnerSpec, entry: DecoderEntry
) -> MediaPlan:
    """``plain`` is the runner for text, which is kept for steps of text alone.

    Raises:
        UnsupportedModelError: no runner's logits agree with the model's own.
    """
    fed_first, refusals = plain.of_model or plain, Refusals()
    with narrowed(setup.model, WIDTHS.__contains__, TRIAL_WIDTH):
        try:
            with entry.own_attention.restored():
                trial = MediaTrial(setup, entry)
                expected = trial.expected()
        except Exception as error:
            raise UnsupportedModelError(f"with images: {reason(error)}") from error
        specs = [
            _with_media(plain if fed is fed_first else fed, fed, entry)
            for fed in dict.fromkeys((fed_first, CACHE))
        ]
        entry.own_attention.restore()
        found = first_agreeing(
            specs,
            lambda spec: difference(trial_logits(spec, shapes, trial), expected.logits),
            expected.tolerance,
            refusals,
            give_back=entry.own_attention.restore,
        )
        if found is None:
            raise UnsupportedModelError(f"with images: {refusals}")
        trial.encode_by_item(expected.tolerance)
    return MediaPlan(found, entry, trial.cuts_sources, trial.shares)


class MediaTrial(TrialRun):
    """Prompts with images or sounds, then one of text."""

    def __init__(self, setup: EngineSetup, entry: DecoderEntry) -> None:
        super().__init__(setup.model, setup.device)
        self._made = [] if setup.trial_prompts is None else setup.trial_prompts()
        prompts = self._made[:_NUM_PROMPTS]
        text, forced = self.prompts[-1], self.forced[-1]
        self._entry = entry
        self.sources = {id(tokens): source for tokens, source in prompts}
        self.prompts = [*(tokens for tokens, _ in prompts), text]
        self.forced = [*(_last_of_text(*prompt) for prompt in prompts), forced]
        longest = max(map(len, self.prompts))
        self.length = longest + len(forced) + 1
        self.num_step_tokens = max(self.num_step_tokens, -(-longest // _NUM_STEPS))
        encoded = [entry.encode(tokens, source) for tokens, source in prompts]
        self.cuts_sources = not any(one.blocks for one in encoded)
        self.shares = all(
            _is_content(block, source)
            for (_, source), one in zip(prompts, encoded, strict=True)
            for block in one.blocks
        )

    def encode_by_item(self, tolerance: float) -> None:
        """Has each image and sound computed by itself where that gives what a prompt's own gave."""
        entry, features = self._entry, self._entry.features
        try:
            with entry.own_attention.restored():
                together = [entry.encode(*prompt) for prompt in self._made]
                features.by_item = True
                by_item = [entry.encode(*prompt) for prompt in self._made]
            pairs = zip(_features_of(by_item), _features_of(together), strict=True)
            worst = max(difference(*pair) for pair in pairs)
            why_not = "" if worst <= tolerance else f"features differ by {worst:.2g} of their range"
        except Exception as error:
            why_not = f"{type(error).__name__}: {reason(error, 120)}"
        if why_not:
            features.by_item = False
            log.info(f"images and sounds are encoded prompt by prompt: {why_not}")
        features.clear()

    def own_logits(self, prompt: list[int], forced: list[int]) -> torch.Tensor:
        """(forced tokens + 1, vocab) of the model's own generate."""
        source = self.sources.get(id(prompt))
        tokens = torch.tensor([prompt], device=self.device)
        inputs = {} if source is None else source.on(self.device, self.model.dtype)
        return own_logits(self.model, tokens, torch.ones_like(tokens), [forced], **inputs)[0]

    def sequences(self) -> list[Sequence]:
        """The prompts, encoded."""
        sequences = super().sequences()
        for sequence in sequences:
            if sequence.source is not None:
                prompt = sequence.prompt_token_ids
                sequence.encoded = self._entry.encode(prompt, sequence.source)
        return sequences


def _with_media(plain: RunnerSpec, fed: RunnerSpec, entry: DecoderEntry) -> RunnerSpec:
    """Text by ``plain``, and by ``fed`` what the decoder's entry feeds."""

    def make(*given: Any) -> Runner:
        # The one that runs the model last: another may reset how the model attends.
        of_text = None if plain is fed else plain(*given)
        of_model = fed(*given)
        return ExtrasRunner(of_text or of_model, of_model, StepMedia(entry))

    name = fed.name if plain is fed else f"{plain.name}, {fed.name} with images"
    return replace(fed, name=name, make=make)


def _last_of_text(tokens: list[int], source: Source) -> list[int]:
    """The last two tokens that no feature takes the place of."""
    keys = source.cache_token_ids or tokens
    text = [token for token, key in zip(tokens, keys, strict=True) if key >= 0]
    return (text or [0])[-2:] if len(text) > 1 else [0, 0]


def _features_of(encoded: list[Encoded]) -> Iterator[torch.Tensor]:
    """What decoders are given, each (tokens, size)."""
    for one in encoded:
        extras = [getattr(extra, "rows", extra) for extra in one.extras.values()]
        for value in tensors_of([one.embeds, *extras]):
            if value.is_floating_point():
                yield value.float().flatten(1)


def _is_content(block: tuple[int, int], source: Source) -> bool:
    """Whether a block is all of one image, and nothing else."""
    keys = (source.cache_token_ids or [0])[slice(*block)]
    return len(set(keys)) == 1 and keys[0] < 0
