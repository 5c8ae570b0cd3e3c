"""Offsets of a completion's tokens, of those that are parts of characters too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_triton.ports.openai.schema.logprobs import (
    ChatLogprobs,
    Offsets,
    TextLogprobs,
    read_positions,
)
from hf_triton.text_generation.request.answer import described

TEXT = "a é😀b\u2003"


def byte_level() -> tuple[Any, list[int]]:
    """Every byte a token, but for those of one half of a face."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    [(face, _)] = pre_tokenizers.ByteLevel(False).pre_tokenize_str("😀")
    vocab = {piece: number for number, piece in enumerate([*alphabet, face[:2]])}
    built = Tokenizer(models.BPE(vocab, [(face[0], face[1])]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built)
    return tokenizer, tokenizer(TEXT).input_ids


def byte_fallback() -> tuple[Any, list[int]]:
    """A token for each byte of what is no token itself."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    vocab |= {piece: len(vocab) + number for number, piece in enumerate("ab ")}
    built = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    built.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=built)
    return tokenizer, tokenizer(TEXT).input_ids


@pytest.mark.parametrize("tokenizer_of", [byte_level, byte_fallback])
def test_parts_of_a_character_are_where_it_begins(tokenizer_of: Any) -> None:
    tokenizer, ids = tokenizer_of()
    entries = [{str(i): {"logprob": -1.0, "rank": 1, **described(tokenizer, i)}} for i in ids]
    positions = read_positions(json.dumps(entries), Offsets())
    sizes = [len(bytes(one.bytes or ())) for one in ChatLogprobs.of(positions, 0).content]
    assert sum(sizes) == len(TEXT.encode()), "the bytes of all are those of the text"
    starts = [len(TEXT[:n].encode()) for n in range(len(TEXT) + 1)]
    expected = [
        max(n for n, start in enumerate(starts) if start <= sum(sizes[:number]))
        for number in range(len(ids))
    ]
    assert TextLogprobs.of(positions, 0).text_offset == expected


def test_bytes_that_are_no_character_count_as_the_text_shows_them() -> None:
    tokenizer, _ = byte_level()
    ids = tokenizer.convert_tokens_to_ids(["a", "Ł", "ð", "Ł", "b"])  # a 9f f0 9f b
    entries = [{str(i): {"logprob": -1.0, "rank": 1, **described(tokenizer, i)}} for i in ids]
    offsets = Offsets()
    chunks = [read_positions(json.dumps(part), offsets) for part in (entries[:3], entries[3:])]
    assert tokenizer.decode(ids) == "a\ufffd\ufffdb"
    assert [one.offset for chunk in chunks for one in chunk] == [0, 1, 2, 2, 3]
