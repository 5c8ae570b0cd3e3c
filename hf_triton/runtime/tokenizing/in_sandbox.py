"""What a sandboxed process does with a tokenizer. Imports neither torch nor transformers."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

_ready: list[tokenizers.Tokenizer] = []


def make_ready(definition: bytes) -> None:
    _ready[:] = [tokenizers.Tokenizer.from_buffer(definition)]


def encode(question: bytes) -> bytes:
    """The states of the Encodings of texts and pairs, a line each."""
    (tokenizer,) = _ready
    asked: dict[str, Any] = json.loads(question)
    tokenizer.encode_special_tokens = asked.pop("encode_special_tokens")
    truncation, padding = asked.pop("truncation"), asked.pop("padding")
    if truncation is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(**truncation)
    if padding is None:
        tokenizer.no_padding()
    else:
        tokenizer.enable_padding(**padding)
    given = [first if second is None else (first, second) for first, second in asked.pop("input")]
    found = tokenizer.encode_batch(given, **asked)
    return b"\n".join(one.__getstate__() for one in found)


def decode(question: bytes) -> bytes:
    """The text of token ids, as JSON."""
    return json.dumps(_ready[0].decode(**json.loads(question))).encode()
