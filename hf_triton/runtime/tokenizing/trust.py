"""Which tokenizers take a bounded time and memory for each character, by what their files say.

A regular expression of a tokenizer.json may take time with the square of a text's length or worse,
a normaliser may make a thousand letters of one. What is not known to be harmless runs in a
sandbox, and is a little slower there.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import LoadError

_MOST_GROWTH = 32  # letters made of one: sentencepiece's own normaliser makes up to 18
_REFUSED_GROWTH = 4096
_LONGEST_TOKEN = 4096  # characters
_LONGEST_WORD = 1000  # of WordPiece, which looks up all beginnings of a word; usually 100
_LONGEST_AFFIX = 16
_PARTS = ("normalizer", "pre_tokenizer", "decoder")

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD, _MARKED_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LOWER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_UPPER_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_OTHERS, _PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_UNMARKED_OTHERS = r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
_SIGN, _SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]", r" ?[\p{P}\p{S}]+[\r\n]*"
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
# Of what transformers makes and many models have; each takes time with a text's length.
KNOWN_EXPRESSIONS = frozenset(
    (
        # GPT-2
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # Llama 3, Qwen 2, Qwen 3.5
        rf"{_SUFFIXES}|{_WORD}|\p{{N}}{{1,3}}|{_OTHERS}|{_SPACES}",
        rf"{_SUFFIXES}|{_WORD}|\p{{N}}|{_OTHERS}|{_SPACES}",
        rf"{_SUFFIXES}|{_MARKED_WORD}|\p{{N}}|{_UNMARKED_OTHERS}|{_SPACES}",
        # GPT-4o and Llama 4, Mistral's Tekken
        rf"{_LOWER_WORD}{_SUFFIXES}?|{_UPPER_WORD}{_SUFFIXES}?|\p{{N}}{{1,3}}|{_PATHS}|{_SPACES}",
        rf"{_LOWER_WORD}|{_UPPER_WORD}|\p{{N}}|{_PATHS}|{_SPACES}",
        # DeepSeek
        rf"{_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|{_SIGNS}|{_SPACES}",
        "[一-龥\u3040-ゟ\u30a0-ヿ]+",
        "[一-龥ࠀ-一가-퟿]+",
        *(r"\s?\p{L}+", r"\s?\p{P}+"),
        # CLIP
        rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}",
        _CLIP,
        # BLOOM, Falcon, and parts of others
        " ?[^(\\s|[.,!?…。\uff0c、।\u06d4،])]+",
        *(r"[0-9][0-9][0-9]", r"\p{N}{1,3}", r"\p{N}+", r"\p{N}", r"\d{1,3}", r"\d"),
        *(r"[\r\n]", r"[\n\r\t]", r"\n", r"\s{2,}|[\n\r\t]", r" {2,}", r"\s+"),
    )
)


def check_growth(files: Path) -> None:
    """Raises LoadError for a tokenizer.json among a model's files that makes far too much of a
    text: loading it already normalises texts, those of its added tokens.
    """
    file = files / "tokenizer.json"
    if not file.is_file():
        return
    try:
        described = json.loads(file.read_bytes())
        growth = max(_growth(described[name]) for name in _PARTS)
    except (ValueError, LookupError, TypeError, AttributeError):
        return  # transformers says what is wrong with it
    if growth > _REFUSED_GROWTH:
        raise LoadError(
            f"tokenizer.json: it makes up to {growth:.3g} characters of one, allowed: at most "
            f"{_REFUSED_GROWTH}"
        )


def is_trusted(backend: Any) -> bool:
    """Whether a ``tokenizers.Tokenizer`` may run in the process of its model."""
    parts = [_described(getattr(backend, name)) for name in _PARTS]
    expressions = {step["Regex"] for step in _steps(parts) if "Regex" in step}
    return (
        max(map(_growth, parts)) <= _MOST_GROWTH
        and expressions <= KNOWN_EXPRESSIONS
        and _is_usual(backend)
    )


def _described(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a part's description."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for child in value if isinstance(value, list) else ():
        yield from _steps(child)


def _growth(part: Any) -> float:
    """How many characters a part may make of one, at least 1."""
    return math.prod(map(_growth_of_step, _steps(part)))


def _growth_of_step(step: dict[str, Any]) -> float:
    """By what it holds: tokenizers reads steps without their ``type`` too."""
    if "add_prefix_space" in step:  # ByteLevel
        return 4
    if "prepend" in step:
        return max(1, len(step["prepend"]))
    if "precompiled_charsmap" in step:
        return max(1, _longest_of_charsmap(step["precompiled_charsmap"] or ""))
    if "content" in step and "pattern" in step:
        literal = step["pattern"].get("String")
        return max(1, len(step["content"]) / max(1, len(literal or "")))
    return 4 if step.get("type") == "ByteLevel" else 1  # whose normalizer holds nothing


def _longest_of_charsmap(encoded: str) -> int:
    """The longest text in sentencepiece's map of characters: the size of a trie in four bytes, the
    trie, and texts that end with a zero byte.
    """
    content = base64.b64decode(encoded)
    texts = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return max((len(text.decode("utf-8", "replace")) for text in texts), default=1)


def _is_usual(backend: Any) -> bool:
    """Whether a model has tokens and words of usual length."""
    model = backend.model
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    longest = max(map(len, backend.get_vocab()), default=1)
    return (
        longest <= _LONGEST_TOKEN
        and getattr(model, "max_input_chars_per_word", 0) <= _LONGEST_WORD
        and all(len(getattr(model, name, None) or "") <= _LONGEST_AFFIX for name in affixes)
    )
