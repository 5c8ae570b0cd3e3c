"""A model's processor: a prompt with images or sounds to tokens and tensors, on any thread."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from hf_triton.runtime.errors import LoadError, RequestError, reason

from ..sequence.source import Source
from .features import ContentNumbers, digests_of

if TYPE_CHECKING:
    from PIL.Image import Image

PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
_STEADY = {"sample": False}  # VibeVoice adds noise to a sound, and no answer would come again
_NOT_INPUTS = ("input_ids", "attention_mask")
_TRIAL_SIZES = ((56, 40), (40, 72))  # of images, in pixels
_TRIAL_SOUND_S = 0.5
_SHORTEST_SOUND_S = 0.1
# Larger ones are tried while the processor makes more of them.
_LARGE_IMAGE, _LONG_SOUND_S = 2.0**20, 30.0  # pixels, seconds

Samples = npt.NDArray[np.float32]
Prompt = tuple[list[int], Source]  # tokens, and an encoder's input beside them


class MediaProcessor:
    """Around a processor of transformers; the model's forward has the arguments ``accepted``."""

    def __init__(self, processor: Any, config: Any, accepted: Iterable[str]) -> None:
        """Raises LoadError for a processor that reads neither images nor sounds."""
        self.processor = processor
        self.takes_images = hasattr(processor, "image_processor")
        sounds = getattr(
            processor, "feature_extractor", getattr(processor, "audio_processor", None)
        )
        self.takes_sounds = sounds is not None
        if not self.takes_images and not self.takes_sounds:
            kind = type(processor).__name__
            raise LoadError(f"the model's processor ({kind}) reads neither images nor sounds")
        self.sampling_rate = int(getattr(sounds, "sampling_rate", 0) or 0)
        self._accepted = set(accepted)
        owners = (processor, config)
        ids = {getattr(owner, name, None) for owner in owners for name in PLACEHOLDERS}
        for name in ("image_token_ids", "audio_token_ids"):
            ids.update(getattr(processor, name, None) or ())
        # The tokens at whose places features go.
        self._placeholders = frozenset(one for one in ids if isinstance(one, int))
        self._numbers = ContentNumbers()

    def read(
        self,
        text: str,
        images: list[Image] | None = None,
        sounds: list[Samples] | None = None,
        *,
        add_special_tokens: bool = True,
    ) -> Prompt:
        """A prompt's tokens, with as many placeholders as there are features, and what the encoder
        reads. ``sounds`` are float32, mono, at ``sampling_rate``. Raises RequestError for other
        placeholders than images and sounds, and for what the processor can't read.
        """
        images, sounds = images or [], sounds or []
        given: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
        if images:
            given["images"] = [images]
        if sounds:
            given["audio"] = [long_enough(sound, self.sampling_rate) for sound in sounds]
            given["sampling_rate"] = self.sampling_rate
        try:
            made = self.processor(**given, add_special_tokens=add_special_tokens)
        except Exception as error:  # a processor may raise any error for an unreadable file
            raise RequestError(f"the model's processor refused it: {reason(error)}") from error
        token_ids: list[int] = made["input_ids"][0].tolist()
        return token_ids, self.source(
            token_ids,
            {
                **{name: value for name, value in made.items() if name in self._accepted},
                **{name: value for name, value in _STEADY.items() if name in self._accepted},
            },
            len(images) + len(sounds),
        )

    def source(self, token_ids: list[int], made: dict[str, Any], num_items: int) -> Source:
        """The encoder's input beside these tokens: arguments of the model's forward."""
        inputs = {name: value for name, value in made.items() if name not in _NOT_INPUTS}
        by_token = (1, len(token_ids))  # such tensors say nothing of the items
        contents = {
            name: value
            for name, value in inputs.items()
            if not isinstance(value, torch.Tensor) or value.shape != by_token
        }
        digests = digests_of(contents, num_items)
        num_tokens = sum(token in self._placeholders for token in token_ids)
        return Source(
            inputs,
            num_tokens or len(token_ids),
            digests,
            self._numbers.replace(token_ids, self._placeholders, digests),
        )

    def trial_prompts(self) -> list[Prompt]:
        """Short prompts of noise: two with one item, and one with two where these are taken."""
        kind = "image" if self.takes_images else "audio"
        text = self._trial_text(kind)
        prompts = [self._trial(kind, text, number) for number in range(len(_TRIAL_SIZES))]
        try:
            last = self._trial(kind, self._trial_text(kind, 2), len(prompts), 2)
        except RequestError:
            last = self._trial(kind, text, len(prompts))
        return [*prompts, last]

    def largest_prompt(self, size: float, max_tokens: int) -> Prompt | None:
        """A prompt of at most ``max_tokens`` with an image of up to ``size`` pixels, or a sound of
        up to ``size`` seconds: at least half of what fits, unless the processor makes less of it.
        """
        tried = min(size, _LARGE_IMAGE if self.takes_images else _LONG_SOUND_S)
        while (prompt := self._blank(tried, max_tokens)) is None:
            tried /= 2
            if tried < 1:
                return None
        while tried < size:
            tried = min(size, 2 * tried)
            larger = self._blank(tried, max_tokens)
            if larger is None or larger[1].num_bytes <= prompt[1].num_bytes:
                break
            prompt = larger
        return prompt

    def _blank(self, size: float, max_tokens: int) -> Prompt | None:
        """A prompt of one blank item, or None where it is too long or the processor refuses it."""
        from PIL import Image

        side = int(size**0.5)
        try:
            if self.takes_images:
                prompt = self.read(self._trial_text("image"), [Image.new("RGB", (side, side))])
            else:
                sound = np.zeros(int(size * self.sampling_rate), np.float32)
                prompt = self.read(self._trial_text("audio"), [], [sound])
        except RequestError:
            return None
        return prompt if len(prompt[0]) <= max_tokens else None

    @cached_property
    def tokens(self) -> dict[str, str]:
        """The placeholders of images and sounds in a prompt, found by trial; may be empty."""
        kinds = {"image": self.takes_images, "audio": self.takes_sounds}
        return {kind: self._token(kind) for kind, is_taken in kinds.items() if is_taken}

    def _token(self, kind: str) -> str:
        alone = self._num_places(kind, "")
        # Gemma 3's image_token is what an image becomes; its prompts have boi_token.
        for name in (f"{kind}_token", f"bo{kind[0]}_token"):
            token = str(getattr(self.processor, name, None) or "")
            found = self._num_places(kind, token) if token else 0
            if found:
                return "" if 0 < alone < found else token
        return ""

    def _num_places(self, kind: str, token: str) -> int:
        """The number of places for features in such a prompt; 0 where it is refused."""
        try:
            token_ids, _ = self._trial(kind, f"{token} What is this?", 0)
        except RequestError:
            return 0
        return sum(token in self._placeholders for token in token_ids)

    def _trial(self, kind: str, text: str, number: int, count: int = 1) -> tuple[list[int], Source]:
        from PIL import Image

        draw = np.random.default_rng(number)
        if kind == "image":
            width, height = _TRIAL_SIZES[number % len(_TRIAL_SIZES)]
            pixels = draw.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
            return self.read(text, [Image.fromarray(picture) for picture in pixels])
        length = int(self.sampling_rate * _TRIAL_SOUND_S * (number % len(_TRIAL_SIZES) + 1))
        return self.read(text, [], list(draw.normal(0, 0.1, (count, length)).astype(np.float32)))

    def _trial_text(self, kind: str, count: int = 1) -> str:
        if getattr(self.processor, "chat_template", None):
            content = [*[{"type": kind}] * count, {"type": "text", "text": "What is this?"}]
            messages = [{"role": "user", "content": content}]
            return str(self.processor.apply_chat_template(messages, add_generation_prompt=True))
        return f"{self.tokens[kind] * count} What is this?"


def long_enough(sound: Samples, sampling_rate: int) -> Samples:
    """The sound, with silence behind a short one: convolutions need some hundred samples."""
    missing = int(_SHORTEST_SOUND_S * sampling_rate) - len(sound)
    return np.pad(sound, (0, missing)) if missing > 0 else sound
