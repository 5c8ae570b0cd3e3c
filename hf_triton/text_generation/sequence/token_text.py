"""What a token is in a text: its own text, and its bytes where it is a part of a character."""

from __future__ import annotations

import functools
import re
from typing import Any

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def described(tokenizer: Any, token_id: int) -> dict[str, Any]:
    """``decoded_token``; and ``bytes``, where its text is not all that it is and they are known."""
    text: str = tokenizer.decode(
        [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    found: dict[str, Any] = {"decoded_token": text}
    if _REPLACEMENT in text:
        known = _bytes_of(tokenizer.convert_ids_to_tokens(token_id))
        return {**found, "bytes": known} if known else found
    return found


def _bytes_of(piece: Any) -> list[int] | None:
    """Those of a token as a vocabulary has it: of SentencePiece's byte fallback, or byte-level."""
    if not isinstance(piece, str):
        return None
    if fallback := _FALLBACK.fullmatch(piece):
        return [int(fallback[1], 16)]
    known = _byte_level()
    return [known[one] for one in piece] if all(one in known for one in piece) else None


@functools.cache
def _byte_level() -> dict[str, int]:
    """The bytes by the characters that stand for them, as GPT-2 began it: a byte that shows as a
    character is that one, the others count on from U+0100.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in shown)
    return {chr(byte): byte for byte in shown} | {chr(256 + n): b for n, b in enumerate(others)}
