"""Added tokens that stand for plain text, such as Qwen's ``<tool_call>``, in a form that llguidance
takes as text.

By itself it takes each added token of the form ``<...>`` as a special one, which no text matches;
where a grammar allows nothing but such a text, it demands that token and then refuses it.
https://github.com/guidance-ai/llguidance/blob/main/toktrie_hf_tokenizers/src/lib.rs
"""

from __future__ import annotations

import json

from tokenizers import pre_tokenizers


def with_plain_tokens(tokenizer: str) -> tuple[str, list[str]]:
    """The tokenizer (``tokenizer.json``'s text) with its added tokens of that form that are not
    special among its vocabulary, and their texts. Only BPE's vocabulary takes more entries.
    """
    described = json.loads(tokenizer)
    added, model = described["added_tokens"], described["model"]
    plain = [token for token in added if _is_plain(token)] if model["type"] == "BPE" else []
    if not plain:
        return tokenizer, []
    described["added_tokens"] = [token for token in added if token not in plain]
    has_bytes = "ByteFallback" in json.dumps(described["decoder"])
    for token in plain:
        text = token["content"]
        model["vocab"][text.replace(" ", "▁") if has_bytes else _byte_level(text)] = token["id"]
    return json.dumps(described), [token["content"] for token in plain]


def _is_plain(token: dict[str, object]) -> bool:
    text = str(token["content"])
    return not token["special"] and text.startswith("<") and text.endswith(">")


def _byte_level(text: str) -> str:
    """A character for each byte, as in GPT-2's vocabulary."""
    step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return str(step.pre_tokenize_str(text)[0][0])
