"""Reads the rows of a model that sees images or hears sounds: finds these in tensors and chats, and
their order in the prompt, decodes them, and has the model's processor read them. Renders chats
whose template marks the places of images and sounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.media.decoding import MediaLimits, image, sound
from hf_triton.runtime.request.json_text import MAX_CHARACTERS_WITH_FILES
from hf_triton.runtime.request.tensors import kind_of, shown
from hf_triton.runtime.tokenizing.lengths import check_characters

from ..options import MediaOptions
from .chat import ChatTemplate, text_part
from .parsing import Prompt, PromptReader
from .row_options import CHAT_FIELDS, RowFields
from .sampling_json import lenient_integer

if TYPE_CHECKING:
    from ..media.processor import MediaProcessor

KINDS = ("image", "audio")
_MIB = 2**20
_PROBE = "Anna"
_ROLES = ("system", "user", "assistant")
# Types of OpenAI's, vLLM's and Hugging Face's chats, and the keys that may hold a file or its URL.
_TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "image": ("image", ("image", "base64", "url", "image_url")),
    "image_url": ("image", ("image_url",)),
    "audio": ("audio", ("audio", "base64", "url", "audio_url")),
    "audio_url": ("audio", ("audio_url",)),
    "input_audio": ("audio", ("input_audio",)),
}


@dataclass(frozen=True)
class Item:
    """An image or a sound: ``kind`` is one of KINDS; errors about it begin with ``place``."""

    kind: str
    place: str
    value: bytes | str


class MediaChatTemplate(ChatTemplate):
    """A chat template that takes images or sounds. ``placeholders`` has, by kind, the texts that
    stand for one in prompts, and ``tokens`` what is counted of them. Whether the template takes
    contents as texts, as lists of parts or both is found by rendering short chats at load.
    """

    def __init__(
        self,
        tokenizer: Any,
        tokens: Mapping[str, str],
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        """``tokens`` are the processor's placeholders."""
        super().__init__(tokenizer, tool_parser, reasoning_parser)
        self._text_roles = {role for role in _ROLES if self._template_takes(role, _PROBE)}
        self._part_roles = {role for role in _ROLES if self._template_takes(role, _text(_PROBE))}
        marks = {kind: self._mark(kind) for kind in KINDS if "user" in self._part_roles}
        self._marks_parts = {kind for kind, mark in marks.items() if mark}
        self.placeholders = {kind: marks.get(kind) or tokens.get(kind, "") for kind in KINDS}
        # Without what a template writes around them, such as <|vision_start|>.
        self.tokens = {
            kind: tokens[kind] if tokens.get(kind) and tokens[kind] in mark else mark.strip()
            for kind, mark in self.placeholders.items()
        }

    def content(self, where: str, role: str, content: str | list[Any]) -> str | list[Any]:
        if isinstance(content, str):
            only_parts = role in self._part_roles and role not in self._text_roles
            return _text(content) if only_parts else content
        parts = [_part(f"{where}[{n}]", part) for n, part in enumerate(content)]
        kinds = {part["type"] for part in parts} - {"text"}
        if role in self._part_roles and kinds <= self._marks_parts:
            return parts
        texts = {"text": None, **self.placeholders}
        return "\n".join(texts[part["type"]] or part["text"] for part in parts)

    def _template_takes(self, role: str, content: Any) -> bool:
        """True if such a content is rendered as its text, and not as Python writes it."""
        rendered = self._rendered(role, content)
        return _PROBE in rendered and "{'" not in rendered and '{"' not in rendered

    def _mark(self, kind: str) -> str:
        """The template's text for an image or a sound, which may be empty."""
        plain = self._rendered("user", _text(_PROBE))
        before, _, after = plain.partition(_PROBE)
        rendered = self._rendered("user", [{"type": kind}, *_text(_PROBE)])
        if not plain or not rendered.startswith(before) or not rendered.endswith(_PROBE + after):
            return ""
        return rendered[len(before) : len(rendered) - len(_PROBE + after)]


def _text(text: str) -> list[Any]:
    return [{"type": "text", "text": text}]


def _part(where: str, part: Any) -> dict[str, Any]:
    if isinstance(part, dict) and part.get("type") in KINDS:
        return part
    if isinstance(part, dict) and part.get("type") == "text":
        return {"type": "text", "text": text_part(where, part)}
    raise RequestError(
        f"{where}: allowed: a part of type text, image_url, image, input_audio, audio"
    )


@dataclass(frozen=True)
class MediaReader(PromptReader):
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
        """The text behind the placeholders of those kinds that it has none of."""
        chat = self.chat
        missing = (item.kind for item in items if chat.tokens[item.kind] not in text)
        return "".join((*(chat.placeholders[kind] for kind in missing), text))

    def _check_places(self, name: str, text: str, items: list[Item]) -> None:
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


def items_of_row(row: Mapping[str, Any]) -> list[Item]:
    """The images and sounds of a row's tensors, images first. Rows of a batch are as long as the
    longest, so empty elements are skipped unless the row's count includes them. Raises
    RequestError.
    """
    found: list[Item] = []
    for kind, name in zip(KINDS, ("num_images", "num_sounds"), strict=True):
        values, count = row[kind], row[name]
        if count is None:
            values = filter(len, values)
        elif not 0 <= count <= len(values):
            raise RequestError(f"{name}: got {shown(count)}, allowed: 0 to {len(values)}")
        taken = enumerate(islice(values, count))
        found += [Item(kind, f"{kind}[{index}]", value) for index, value in taken]
    return found


def take_items(messages: list[Any], given: Iterable[Item]) -> tuple[list[Any], list[Item]]:
    """The messages with ``{"type": "image"}`` or ``audio`` in place of every image and sound, and
    these in the order of the prompt. A part without a file stands for the next of ``given``; where
    no part does, those come first in the last message of the user. Raises RequestError.
    """
    waiting = {kind: [item for item in given if item.kind == kind] for kind in KINDS}
    items: list[Item] = []
    found = [
        _without_files(message, f"messages[{number}]", waiting, items)
        for number, message in enumerate(messages)
    ]
    left = [item for kind in KINDS for item in waiting[kind]]
    if not left:
        return found, items
    if items:
        raise RequestError(f"{left[0].place}: no part of messages refers to it")
    roles = [one.get("role") if isinstance(one, dict) else None for one in found]
    last = max((n for n, role in enumerate(roles) if role == "user"), default=None)
    if last is None:
        raise RequestError(f"{left[0].place}: messages has no user's message to put it in")
    content = found[last].get("content") or []
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(texts, list):
        return found, left  # which is refused as any such content is
    found[last] = {**found[last], "content": [*({"type": item.kind} for item in left), *texts]}
    return found, left


def _without_files(
    message: Any, where: str, waiting: Mapping[str, list[Item]], items: list[Item]
) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = []
    for number, part in enumerate(content):
        item = _item(part, f"{where}.content[{number}]", waiting)
        if item is not None:
            items.append(item)
        parts.append(part if item is None else {"type": item.kind})
    return {**message, "content": parts}


def _item(part: Any, place: str, waiting: Mapping[str, list[Item]]) -> Item | None:
    """The file of a part of a message; None of a text."""
    of_type = _TYPES.get(str(part.get("type"))) if isinstance(part, dict) else None
    if of_type is None:
        return None
    kind, keys = of_type
    given = [part[key] for key in keys if part.get(key) is not None]
    if not given:
        if waiting[kind]:
            return waiting[kind].pop(0)
        raise RequestError(f"{place}: no {kind} in it, and no unused one in the tensor {kind}")
    value = given[0]
    if isinstance(value, dict):  # OpenAI's
        value = value.get("url", value.get("data"))
    if not isinstance(value, str):
        raise RequestError(f"{place}: got {kind_of(value)}, allowed: base64 or a data: URL")
    return Item(kind, place, value)
