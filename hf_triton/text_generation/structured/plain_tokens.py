"""Added tokens that stand for plain text, such as Qwen's ``<tool_call>``, in a form that llguidance
takes as text.

By itself it takes each added token of the form ``<...>`` as a special one, which no text matches;
where a grammar allows nothing but such a text, it demands that token and then refuses it.
https://github.com/guidance-ai/llguidance/blob/main/toktrie_hf_tokenizers/src/lib.rs
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tokenizers import pre_tokenizers

_LITERALS = r'//.*|#.*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/'  # and comments, in Lark


def with_plain_tokens(tokenizer: str) -> tuple[str, dict[str, int]]:
    """The tokenizer (``tokenizer.json``'s text) with its added tokens of that form that are not
    special among its vocabulary, and their texts and ids. Only BPE's vocabulary takes more entries.
    """
    described = json.loads(tokenizer)
    added, model = described["added_tokens"], described["model"]
    plain = [token for token in added if _is_plain(token)] if model["type"] == "BPE" else []
    if not plain:
        return tokenizer, {}
    described["added_tokens"] = [token for token in added if not _is_plain(token)]
    has_bytes = "ByteFallback" in json.dumps(described["decoder"])
    for token in plain:
        text = token["content"]
        model["vocab"][text.replace(" ", "▁") if has_bytes else _byte_level(text)] = token["id"]
    return json.dumps(described), {token["content"]: token["id"] for token in plain}


def with_numbered_tokens(lark: str, plain_tokens: Mapping[str, int]) -> str:
    """A grammar in which these are named by their numbers, as llguidance knows no other names."""
    if not plain_tokens:
        return lark
    names = "|".join(map(re.escape, plain_tokens))
    numbered = {name: f"<[{token_id}]>" for name, token_id in plain_tokens.items()}
    return re.sub(f"{_LITERALS}|{names}", lambda found: numbered.get(found[0], found[0]), lark)


def _is_plain(token: dict[str, object]) -> bool:
    text = str(token["content"])
    return not token["special"] and text.startswith("<") and text.endswith(">")


def _byte_level(text: str) -> str:
    """A character for each byte, as in GPT-2's vocabulary."""
    step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return str(step.pre_tokenize_str(text)[0][0])
