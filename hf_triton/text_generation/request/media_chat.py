"""Renders chats with images and sounds, whose places the chat template marks.

Templates differ in what they take: contents as texts, or as lists of parts, or either. What a
template takes is found by rendering a few short chats when the model loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_triton.runtime.errors import RequestError

from .chat import ChatTemplate, text_part
from .media_parts import KINDS

_PROBE = "Anna"
_ROLES = ("system", "user", "assistant")


class MediaChatTemplate(ChatTemplate):
    """The chat template of a model that sees or hears. By their kind, ``placeholders`` are
    the texts that stand for an image or a sound in its prompts, and ``tokens`` what is counted of
    them; empty where nothing does.
    """

    def __init__(
        self,
        tokenizer: Any,
        tokens: Mapping[str, str],
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        """``tokens`` are the placeholders that its processor names."""
        super().__init__(tokenizer, tool_parser, reasoning_parser)
        self._text_roles = {role for role in _ROLES if self._takes(role, _PROBE)}
        self._part_roles = {role for role in _ROLES if self._takes(role, _text(_PROBE))}
        marks = {kind: self._mark(kind) for kind in KINDS if "user" in self._part_roles}
        self._marks_parts = {kind for kind, mark in marks.items() if mark}
        self.placeholders = {kind: marks.get(kind) or tokens.get(kind, "") for kind in KINDS}
        # Without what a template writes around them, such as <|vision_start|>.
        self.tokens = {
            kind: tokens[kind] if tokens.get(kind) and tokens[kind] in mark else mark.strip()
            for kind, mark in self.placeholders.items()
        }

    def content(self, where: str, role: str, content: str | list[Any]) -> str | list[Any]:
        """A message's content as the template takes it."""
        if isinstance(content, str):
            only_parts = role in self._part_roles and role not in self._text_roles
            return _text(content) if only_parts else content
        parts = [_part(f"{where}[{n}]", part) for n, part in enumerate(content)]
        kinds = {part["type"] for part in parts} - {"text"}
        if role in self._part_roles and kinds <= self._marks_parts:
            return parts
        texts = {"text": None, **self.placeholders}
        return "\n".join(texts[part["type"]] or part["text"] for part in parts)

    def _takes(self, role: str, content: Any) -> bool:
        """Whether such a content is rendered as its text, and not as Python writes it."""
        rendered = self._rendered(role, content)
        return _PROBE in rendered and "{'" not in rendered and '{"' not in rendered

    def _mark(self, kind: str) -> str:
        """What the template writes for an image or a sound; empty where it writes nothing."""
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
