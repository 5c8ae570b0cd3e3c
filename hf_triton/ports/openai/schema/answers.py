"""What answers of several paths have in common."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

_ENCODER = msgspec.json.Encoder()


class Usage(Struct):
    """Tokens."""

    prompt_tokens: int
    total_tokens: int


class PromptDetails(Struct):
    """Tokens of prompts that were known from earlier requests."""

    cached_tokens: int


class CompletionDetails(Struct):
    """Tokens of reasoning."""

    reasoning_tokens: int


class GenerationUsage(Usage):
    """Tokens of prompts and answers."""

    completion_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET

    @property
    def num_cached(self) -> int:
        """Tokens that were known, as far as it is told."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0

    @property
    def num_reasoning(self) -> int:
        """Tokens of reasoning."""
        details = self.completion_tokens_details
        return details.reasoning_tokens if details else 0


def to_json(value: Any) -> bytes:
    """Compact UTF-8."""
    return _ENCODER.encode(value)


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"
