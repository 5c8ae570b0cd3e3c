"""The texts of models of a vector for each token: queries filled up, and the tokens that have a
vector. The formula is sentence-transformers' and PyLate's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hf_triton.encoder.sentence_transformers.late_interaction import QUERY, LateInteraction
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.errors import LoadError


class LateTexts:
    def __init__(self, late: LateInteraction, tokenization: Tokenization) -> None:
        """Makes the markers that the tokenizer knows one token each. Raises LoadError."""
        tokenizer = tokenization.tokenizer
        _register(tokenizer, late.markers)
        self._late = late
        limited = tokenization.limited
        self._of_use = {use: limited(length) for use, length in late.lengths.items()}
        known = [_token(tokenizer, word) for word in late.skipped_words]
        self._skipped = frozenset(token for token in known if token is not None)
        self._filler = _filler(tokenizer, late.token) if late.filled_length else 0

    def encode(
        self, field: str, text: str, use: str, prompt: str, *, truncate: bool | None
    ) -> Encoding:
        """Raises RequestError."""
        tokenization = self._of_use[use]
        found = tokenization.encode(field, text, prompt=prompt, truncate=truncate)
        num_given, skipped = len(found), frozenset[int]()
        if use == QUERY:
            found = self._filled(found, tokenization.max_length)
        if use in self._late.skipped_uses:
            skipped = self._skipped
        kept = [
            place
            for place, token in enumerate(found.input_ids)
            if token not in skipped or place >= num_given
        ]
        return replace(found, positions=tuple(kept)) if len(kept) < len(found) else found

    def _filled(self, query: Encoding, most: int) -> Encoding:
        missing = min(self._late.filled_length, most) - len(query)
        if missing <= 0:
            return query
        types = query.token_type_ids
        return replace(
            query,
            input_ids=query.input_ids + [self._filler] * missing,
            token_type_ids=None if types is None else types + [0] * missing,
            num_seen=None if self._late.are_seen else len(query),
        )


def _register(tokenizer: Any, markers: tuple[str, ...]) -> None:
    """Makes each marker a special token, as its text would be several. Source:
    sentence-transformers, multi_vector_encoder/model.py, ``_register_prefix_tokens``.
    """
    from tokenizers import AddedToken

    known, found = tokenizer.get_vocab(), []
    for marker in markers:
        token = next((one for one in (marker, marker.split()[0]) if one in known), None)
        if token is not None and tokenizer.tokenize(token) != [token]:
            found.append(AddedToken(token, normalized=False, special=True))
    if found:
        tokenizer.add_special_tokens({"additional_special_tokens": found})


def _token(tokenizer: Any, word: str) -> int | None:
    token: int | None = tokenizer.convert_tokens_to_ids(word)
    is_unknown = token == tokenizer.unk_token_id and word != tokenizer.unk_token
    return None if is_unknown else token


def _filler(tokenizer: Any, named: str | None) -> int:
    """Raises LoadError where the tokenizer has no token to fill queries up with."""
    names = (named,) if named else (tokenizer.mask_token, tokenizer.eos_token)
    found = [_token(tokenizer, name) for name in names if name]
    if not found or found[0] is None:
        wanted = f"no token {named}" if named else "neither a mask nor an end token"
        raise LoadError(f"query_expansion: the tokenizer has {wanted} to fill queries up with")
    return found[0]
