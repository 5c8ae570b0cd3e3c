"""A request's rows as a model reads them that sees images or hears sounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.media.decoding import MediaLimits, image, sound
from hf_triton.runtime.request.json_text import MAX_CHARACTERS_WITH_FILES
from hf_triton.runtime.tokenizing.lengths import check_characters

from ..media_options import MediaOptions
from .media_chat import MediaChatTemplate
from .media_parts import KINDS, Item, items_of_row, take_items
from .parsing import Prompt, PromptReader
from .row_options import CHAT_FIELDS, RowFields
from .sampling_json import lenient_integer

if TYPE_CHECKING:
    from ..media.processor import MediaProcessor

_MIB = 2**20


@dataclass(frozen=True)
class MediaReader(PromptReader):
    """What parsing needs of such a model. ``bos_token`` is the tokenizer's, empty where it has
    none.
    """

    fields: ClassVar[RowFields] = replace(
        CHAT_FIELDS,
        options={"num_images": (lenient_integer, None), "num_sounds": (lenient_integer, None)},
        files=KINDS,
    )
    max_json_characters: ClassVar[int] = MAX_CHARACTERS_WITH_FILES

    processor: MediaProcessor = field(kw_only=True)
    chat: MediaChatTemplate = field(kw_only=True)
    options: MediaOptions = field(kw_only=True)
    bos_token: str = field(kw_only=True)

    def find_files(self, row: dict[str, Any]) -> dict[str, Any]:
        messages, items = None, items_of_row(row)
        if row["messages"]:
            messages, items = take_items(self.read_messages(row), items)
        self._check(items)
        return {**row, "items": items, "read_messages": messages}

    def read_prompt(self, row: dict[str, Any]) -> Prompt:
        items = row["items"]
        if row["messages"]:
            text = self.rendered(row, row["read_messages"])
        else:
            text = self._with_placeholders(row["text_input"] or "", items)
        name = "messages" if row["messages"] else "text_input"
        self._check_places(name, text, items)
        # As transformers' processors do it: only some chat templates write the first token.
        adds = row["add_special_tokens"]
        if adds is None:
            adds = not (row["messages"] and self.bos_token and text.startswith(self.bos_token))
        token_ids = self.tokenize(text, add_special_tokens=adds)
        if not items:
            return Prompt(text, token_ids)
        if self.max_model_len is not None:
            check_characters(name, len(text), self.max_model_len)
        images, sounds = self._decoded(items)
        try:
            token_ids, source = self.processor.read(text, images, sounds, add_special_tokens=adds)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from None
        return Prompt(text, token_ids, source=source)

    def _with_placeholders(self, text: str, items: list[Item]) -> str:
        """The text, with placeholders before it of those kinds that it has none of."""
        chat = self.chat
        missing = (item.kind for item in items if chat.tokens[item.kind] not in text)
        return "".join((*(chat.placeholders[kind] for kind in missing), text))

    def _check_places(self, name: str, text: str, items: list[Item]) -> None:
        """Refuses a prompt with more or fewer placeholders than images or sounds."""
        for kind, token in self.chat.tokens.items():
            num_items = sum(item.kind == kind for item in items)
            num_places = text.count(token) if token else num_items
            if num_places != num_items:
                raise RequestError(
                    f"{name}: got {num_places} of the placeholder {token}, allowed: {num_items}, "
                    f"one for each {kind}"
                )

    def _check(self, items: Sequence[Item]) -> None:
        """Refuses what is too much before anything of it is decoded."""
        options, reads = self.options, self.processor
        kinds = (
            ("image", reads.takes_images, "max_images", options.max_images),
            ("audio", reads.takes_sounds, "max_sounds", options.max_sounds),
        )
        for kind, is_taken, option, most in kinds:
            found = [item for item in items if item.kind == kind]
            if found and not is_taken:
                raise RequestError(f"{found[0].place}: this model takes no {kind}")
            if len(found) > most:
                place = found[most].place
                raise RequestError(f"{place}: got {len(found)}, allowed: {most} ({option})")
        num_bytes = 0
        for item in items:
            num_bytes += len(item.value)
            if num_bytes > options.max_input_mib * _MIB:
                raise RequestError(
                    f"{item.place}: got {num_bytes / _MIB:.1f} MiB up to it, at most "
                    f"{options.max_input_mib:g} (max_input_mib)"
                )

    def _decoded(self, items: Sequence[Item]) -> tuple[list[Any], list[Any]]:
        """The images and the sounds; the limits hold for those of a prompt together."""
        images: list[Any] = []
        sounds: list[Any] = []
        rate = self.processor.sampling_rate
        limits = MediaLimits(self.options.max_image_megapixels * 1e6, self.options.max_audio_s)
        for item in items:
            if item.kind == "image":
                picture = image(item.place, item.value, limits)
                images.append(picture)
                left = limits.image_pixels - picture.width * picture.height
                limits = replace(limits, image_pixels=left)
            else:
                samples = sound(item.place, item.value, rate, limits)
                sounds.append(samples)
                limits = replace(limits, audio_s=limits.audio_s - len(samples) / rate)
        return images, sounds
