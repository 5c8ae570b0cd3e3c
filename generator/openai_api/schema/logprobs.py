"""Log-probabilities: the model's own form to OpenAI's two.

The model gives a JSON list with an object per token, ``{"<token_id>": {"logprob", "rank",
"decoded_token"}, ...}``: the sampled token first, then the others by rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# OpenAI's stand-in for a probability too small to tell; JSON has no infinity.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True)
class Entry:
    """One token that could stand at a position; ``rank`` 1 is the likeliest."""

    text: str
    logprob: float
    rank: int


@dataclass(frozen=True)
class Position:
    """One position of the output: the sampled token, and all that are known there by rank."""

    sampled: Entry
    all: tuple[Entry, ...]


def read_positions(text: str) -> list[Position]:
    """The positions of one choice, from the model's JSON."""
    positions = []
    for tokens in json.loads(text):
        entries = [
            Entry(token["decoded_token"], max(token["logprob"], LEAST_LOGPROB), token["rank"])
            for token in tokens.values()
        ]
        positions.append(Position(entries[0], tuple(sorted(entries, key=lambda entry: entry.rank))))
    return positions


def for_completion(
    positions: Sequence[Position], num_alternatives: int, first_offset: int
) -> dict[str, Any]:
    """The form of /v1/completions: four lists, one element per token each.

    ``first_offset`` is where in the choice's text the first token begins. Of tokens that read
    alike, ``top_logprobs`` has the likeliest.
    """
    offsets, offset = [], first_offset
    for position in positions:
        offsets.append(offset)
        offset += len(position.sampled.text)
    top = None
    if num_alternatives:
        top = [
            {entry.text: entry.logprob for entry in reversed(position.all)}
            for position in positions
        ]
    return {
        "tokens": [position.sampled.text for position in positions],
        "token_logprobs": [position.sampled.logprob for position in positions],
        "top_logprobs": top,
        "text_offset": offsets,
    }


def for_chat(positions: Sequence[Position], num_alternatives: int) -> dict[str, Any]:
    """The form of /v1/chat/completions: an object per token, with the likeliest ones in it."""
    content = [
        {
            **_chat_entry(position.sampled),
            "top_logprobs": [
                _chat_entry(entry) for entry in position.all if entry.rank <= num_alternatives
            ],
        }
        for position in positions
    ]
    return {"content": content, "refusal": None}


def _chat_entry(entry: Entry) -> dict[str, Any]:
    """``bytes`` is null for a token that is only a part of a character."""
    whole = "\ufffd" not in entry.text
    as_bytes = list(entry.text.encode()) if whole else None
    return {"token": entry.text, "logprob": entry.logprob, "bytes": as_bytes}
