"""How models of a vector for each token (late interaction) read their texts: by
sentence-transformers' own keys, and by those of PyLate and of Stanford's ColBERT, which are turned
into its own as it does itself (multi_vector_encoder/model.py, ``_parse_model_config``).
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.regular_file import read_json

from .keys import LATE_KEYS, PYLATE_KEYS, STANFORD_FILE

QUERY, DOCUMENT = USES = ("query", "document")
_LENGTH = 32  # tokens of a query, where no file says how many
_WIDTH = 128  # numbers of a vector, likewise
STANFORD = "HF_ColBERT"  # its architecture in config.json


@dataclass(frozen=True)
class LateInteraction:
    """``lengths`` are the longest query and document in tokens, special ones included, by use;
    None is the model's own. A query is filled up with ``token`` (None: the tokenizer's mask, else
    its end) to ``filled_length``; other tokens see those that fill only where they ``are_seen``.
    Tokens of ``skipped_words`` have no vector in texts of ``skipped_uses``. ``markers`` are prompts
    that are one token, if the tokenizer knows them.
    """

    lengths: Mapping[str, int | None]
    filled_length: int = 0
    are_seen: bool = False
    token: str | None = None
    skipped_words: tuple[str, ...] = ()
    skipped_uses: tuple[str, ...] = (DOCUMENT,)
    markers: tuple[str, ...] = ()


def own_keys(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """PyLate's keys of config_sentence_transformers.json as sentence-transformers' own: those of
    the transformer, ``skiplist_words`` and ``prompts``; empty where it did not save the model.
    """
    if not any(key in whole for key in PYLATE_KEYS):
        return {}
    found = {key: whole[key] for key in LATE_KEYS if whole.get(key) is not None}
    if whole.get("do_query_expansion", True) is not False:
        seen = whole.get("attend_to_expansion_tokens", whole.get("attend_to_mask_tokens"))
        length = found.pop("query_length", None) or _LENGTH
        found["query_expansion"] = {"strategy": "fixed", "attend": bool(seen), "length": length}
    words = whole.get("skiplist_words")
    found["skiplist_words"] = [*string.punctuation] if words is None else words
    found["prompts"] = dict(whole.get("prompts") or {})
    for use in USES:
        if f"{use}_prefix" in whole:
            marker = whole[f"{use}_prefix"] or ""
            own = (found["prompts"].get(use) or "").removeprefix(marker)
            found["prompts"][use] = marker + own
    return found


def stanford_keys(files: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The keys of Stanford's ColBERT in PyLate's words, and the configuration of its projection;
    None where the folder has another model. Raises LoadError.
    """
    try:
        config = read_json(files / "config.json") if (files / "config.json").is_file() else {}
        saved = read_json(files / STANFORD_FILE) if (files / STANFORD_FILE).is_file() else {}
    except (OSError, ValueError) as error:
        raise LoadError(f"{STANFORD_FILE}: can't be read: {error}") from error
    if STANFORD not in (config.get("architectures") or ()):
        return None
    markers = saved.get("query_token_id"), saved.get("doc_token_id")
    keys: dict[str, Any] = {
        "query_prefix": f"{markers[0] or '[unused0]'} ",
        "document_prefix": f"{markers[1] or '[unused1]'} ",
        "query_length": saved.get("query_maxlen"),
        "document_length": saved.get("doc_maxlen"),
        "attend_to_mask_tokens": saved.get("attend_to_mask_tokens"),
        "skiplist_words": None if saved.get("mask_punctuation", True) else [],
    }
    sizes = {"in_features": config.get("hidden_size"), "out_features": saved.get("dim", _WIDTH)}
    return keys, {**sizes, "bias": False, "activation_function": None}
