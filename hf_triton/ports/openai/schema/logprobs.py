"""Log-probabilities: the model's own form to OpenAI's two.

The model gives a JSON list with an object per token, ``{"<token_id>": {"logprob", "rank",
"decoded_token"}, ...}``: the sampled token first, then the others by rank. One that is a part of a
character has its ``bytes`` too. A prompt's first token has the logprob null: nothing comes before
it.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from msgspec import Struct, field, json

_DECODER = codecs.getincrementaldecoder("utf-8")


class Entry(Struct):
    """One token that could stand at a position; ``rank`` 1 is the likeliest."""

    logprob: float | None
    rank: Any  # an integer; None without a logprob
    text: str = field(name="decoded_token")
    bytes: Sequence[int] | None = None
    id: int = 0


_POSITIONS = json.Decoder(list[dict[int, Entry]])


@dataclass(frozen=True)
class Position:
    """One position of the output: the sampled token, all that are known there by rank, and where in
    the text the token begins; one that begins within a character is where that begins.
    """

    sampled: Entry
    all: tuple[Entry, ...]
    offset: int


class Offsets:
    """Computes the offsets of one text's tokens, one after the other."""

    def __init__(self) -> None:
        self._decoder = _DECODER("replace")
        self._num_characters = 0  # that are whole

    def next(self, token: Entry) -> int:
        data = token.text.encode() if token.bytes is None else bytes(token.bytes)
        self._take(data[:1])
        is_within, _ = self._decoder.getstate()
        offset = self._num_characters - bool(data and not is_within)
        self._take(data[1:])
        return offset

    def _take(self, data: bytes) -> None:
        self._num_characters += len(self._decoder.decode(data))


def read_positions(text: str, offsets: Offsets) -> list[Position]:
    positions = []
    for tokens in _POSITIONS.decode(text):
        for token_id, entry in tokens.items():
            entry.id = token_id
        sampled, *_ = tokens.values()
        ranked = tuple(sorted(tokens.values(), key=attrgetter("rank")))
        positions.append(Position(sampled, ranked, offsets.next(sampled)))
    return positions


def _texts(position: Position, num_alternatives: int) -> dict[str, float | None] | None:
    if position.sampled.logprob is None:
        return None
    entries = [one for one in position.all if one.rank <= num_alternatives]
    if position.sampled not in entries:
        entries.append(position.sampled)
    return {entry.text: entry.logprob for entry in reversed(entries)}


class TextLogprobs(Struct):
    """``top_logprobs`` has the likeliest of tokens that read alike."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None
    text_offset: list[int]

    @classmethod
    def of(cls, positions: Sequence[Position], num_alternatives: int) -> TextLogprobs:
        sampled = [position.sampled for position in positions]
        return cls(
            [one.text for one in sampled],
            [one.logprob for one in sampled],
            [_texts(one, num_alternatives) for one in positions] if num_alternatives else None,
            [position.offset for position in positions],
        )


class Token(Struct):
    """``bytes`` is null where they are not known, of a part of a character."""

    token: str
    logprob: float | None
    bytes: Sequence[int] | None


class TokenLogprobs(Token):
    top_logprobs: list[Token]


class ChatLogprobs(Struct):
    content: list[TokenLogprobs]
    refusal: None = None

    @classmethod
    def of(cls, positions: Sequence[Position], num_alternatives: int) -> ChatLogprobs:
        content = []
        for position in positions:
            top = [Token(*_token(one)) for one in position.all if one.rank <= num_alternatives]
            content.append(TokenLogprobs(*_token(position.sampled), top))
        return cls(content)


def _token(entry: Entry) -> tuple[str, float | None, Sequence[int] | None]:
    whole = "\ufffd" not in entry.text
    return entry.text, entry.logprob, list(entry.text.encode()) if whole else entry.bytes
