"""Texts as messages of a chat: what sentence-transformers embeds and scores where the model was
saved with a chat template. A text is a user's message, a prompt the system's, and the texts of a
pair have roles of their own.

Sources: sentence-transformers, base/modality.py, and base/modules/transformer.py,
``_process_chat_messages``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

from hf_triton.runtime.errors import LoadError, OverloadedError, RequestError, reason

from .encoding import Encoding
from .tokenization import Tokenization

PAIR_ROLES = ("query", "document")
# transformers' model types whose templates name types of parts, but take texts.
_FLAT_TYPES = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")
# What a template has that takes a message's content as a list of parts.
_OF_PARTS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
# Texts of other lengths and tokens: what is the same behind them is the template's.
_FILLERS = ("0", "1 2 3 4")
_PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))


class MessageTokenization(Tokenization):
    def __init__(
        self,
        tokenizer: Any,
        *,
        content: str,
        variables: Mapping[str, Any],
        restores_end: bool,
        model_type: str,
        **limits: Any,
    ) -> None:
        """``content``: whether the template takes "flat" texts or a "structured" list of parts;
        "auto" looks at it. ``variables`` are what it takes besides, ``restores_end``: of a text
        that is cut the template's end is kept. ``limits`` are Tokenization's. Raises LoadError.
        """
        super().__init__(tokenizer, **limits, adds_special_tokens=False)
        template = tokenizer.chat_template
        if not template:
            raise LoadError("its texts are messages of a chat, but it has no chat template")
        self._has_parts = content == "structured"
        if content == "auto" and model_type not in _FLAT_TYPES:
            is_text = isinstance(template, str)
            self._has_parts = not is_text or any(part in template for part in _OF_PARTS)
        self._variables, self._restores_end = variables, restores_end
        self._end = lru_cache(256)(self._end_of)
        self.try_out("")

    def try_out(self, prompt: str) -> None:
        """Raises LoadError where the template fails at a text with this prompt."""
        try:
            self._rendered(prompt, "a")
        except RequestError as error:
            raise LoadError(str(error)) from None

    def encode(
        self,
        field: str,
        text: str,
        pair: str | None = None,
        *,
        prompt: str = "",
        truncate: bool | None = None,
    ) -> Encoding:
        """As Tokenization's, with the tokens that the template makes in the place of special ones.
        Raises RequestError.
        """
        if pair is not None and self._pair_problem is not None:
            raise RequestError(self._pair_problem)
        rendered = self._rendered(prompt, text, pair)
        found = super().encode(field, rendered, truncate=truncate)
        if found.is_cut and self._restores_end:
            end = self._end(prompt, pair is not None)[-len(found) :]
            found.input_ids[len(found) - len(end) :] = end
        return found

    @cached_property
    def _pair_problem(self) -> str | None:
        """Why no pair can be sent; None where both texts are in what the template makes."""
        try:
            first, *others = (self._rendered("", *pair) for pair in _PROBES)
        except RequestError as error:
            return str(error)
        pairs = zip(PAIR_ROLES, others, strict=True)
        missing = [role for role, other in pairs if other == first]
        if not missing:
            return None
        roles = " and ".join(missing)
        return f"text_pair: this model's chat template leaves out the messages of role {roles}"

    def _rendered(self, prompt: str, text: str, pair: str | None = None) -> str:
        said = [("system", prompt)] if prompt else []
        said += [("user", text)] if pair is None else zip(PAIR_ROLES, (text, pair), strict=True)
        messages: list[dict[str, Any]] = [
            {"role": role, "content": content} for role, content in said
        ]
        if self._has_parts:
            for message in messages:
                message["content"] = [{"type": "text", "text": message["content"]}]
        try:
            return str(
                self.tokenizer.apply_chat_template(messages, tokenize=False, **self._variables)
            )
        except (RequestError, OverloadedError):
            raise
        except Exception as error:
            roles = ", ".join(role for role, _ in said)
            raise RequestError(
                f"this model's chat template fails at messages of role {roles}: {reason(error)}"
            ) from None

    def _end_of(self, prompt: str, is_pair: bool) -> list[int]:
        """The tokens behind the texts, which are the same whatever these are."""
        one, other = (
            self.tokenizer(
                self._rendered(prompt, filler, filler if is_pair else None),
                add_special_tokens=False,
            )["input_ids"]
            for filler in _FILLERS
        )
        same = takewhile(lambda pair: pair[0] == pair[1], zip(one[::-1], other[::-1], strict=False))
        end = [token for token, _ in same][::-1]
        return end if len(end) < min(len(one), len(other)) else []
