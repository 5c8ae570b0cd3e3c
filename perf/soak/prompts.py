"""The prompts of the soak: everyday, Unicode, odd and very long ones, and chats."""

from __future__ import annotations

import json
import random

EVERYDAY = (
    "Once upon a time",
    "I am going",
    "What is the capital of Germany?",
    "The old man looked at the",
    "She opened the door and",
    "They lived happily",
    "Hello",
    "How are you?",
    "Question: How many legs does a dog have?\nAnswer:",
    "It was a cold morning in the village. The children",
    "a",
    " ",
    "\n\n",
    "My name is Anna and I",
    "The end",
)
UNICODE = (
    "Zoë said: 日本 🙂",
    "🙂🙃🙂🙃",
    "naïve café\n\n",
    "Ünïcödé ✓ — “quotes”",
    "المعرفة قوة",
    "हिन्दी में",
    "e\u0301 combining, \u200b zero width, \ufeff mark",
    "👩‍👩‍👧‍👦 family",
    "\u0000\u0001 control",
    "ﷺ \U0010ffff \ufffd",
)
_WORDS = (
    *("the", "old", "man", "went", "to", "market", "and", "bought", "a", "red", "apple"),
    *("then", "she", "saw", "her", "friend", "near", "river", "because", "it", "rained"),
    *("Zoë", "日本", "🙂", "7", "42", "\n", "“so”", "he", "said"),
)
_ASKED = (
    "What is the capital of Germany?",
    "Hello, how are you?",
    "Zoë: 日本 🙂",
    "Why does it rain?",
    "Goodbye!",
)


def long_prompt(rng: random.Random, num_words: int) -> str:
    """Random words; a word is one to four tokens or so of the demo model."""
    return " ".join(rng.choice(_WORDS) for _ in range(num_words))


def chat(rng: random.Random) -> str:
    """A conversation as JSON, ready for the model's turn; contents also as text parts."""
    messages: list[dict[str, object]] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": "You are kind."})
    for _ in range(rng.choice((0, 0, 1, 2))):
        messages.append({"role": "user", "content": rng.choice(_ASKED)})
        messages.append({"role": "assistant", "content": "I am fine, thank you."})
    last = rng.choice(_ASKED)
    parts = [{"type": "text", "text": last}]
    messages.append({"role": "user", "content": parts if rng.random() < 0.2 else last})
    return json.dumps(messages, ensure_ascii=rng.random() < 0.5)
