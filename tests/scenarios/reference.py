"""The expected answers: transformers' own ``generate`` on the demo model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

_PROMPTS_THAT_MAY_END = (
    "The end",
    "The capital of France is",
    "Hello",
    "They lived happily",
    "Question: How",
    "She said goodbye.",
    "How are you?",
    "Once upon a time",
)


@dataclass(frozen=True)
class Expected:
    """A greedy answer. ``pieces`` is the text of each token (the tokenizer is byte-level)."""

    text: str
    token_ids: tuple[int, ...]
    num_input_tokens: int
    num_output_tokens: int
    finish_reason: str
    pieces: tuple[str, ...]


class Reference:
    """The demo model without any server."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.context: int = self._model.config.max_position_embeddings
        self._cached = functools.cache(self._answer)

    def answer(
        self,
        prompt: str,
        max_tokens: int,
        *,
        min_tokens: int = 0,
        repetition_penalty: float = 1.0,
        is_chat: bool = False,
    ) -> Expected:
        """The greedy answer of ``model.generate``; a chat's prompt has its special tokens."""
        return self._cached(prompt, max_tokens, min_tokens, repetition_penalty, is_chat)

    def rendered(self, messages: Sequence[Any], **kwargs: Any) -> str:
        """A chat as the tokenizer's own template writes it, ready for the model's turn."""
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, **{"add_generation_prompt": True, **kwargs}
        )
        return text

    @torch.inference_mode()
    def log_probabilities(self, prompt: str, token_ids: Sequence[int]) -> torch.Tensor:
        """Those of the whole vocabulary at each of the tokens: (len(token_ids), vocab)."""
        prompt_ids = self._tokenizer(prompt).input_ids
        logits = self._model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0].float()
        log_probabilities: torch.Tensor = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
        return log_probabilities

    def decoded(self, token_id: int) -> str:
        """The text of one token."""
        text: str = self._tokenizer.decode([token_id])
        return text

    def text(self, prompt: str, max_tokens: int) -> str:
        return self.answer(prompt, max_tokens).text

    def num_tokens(self, text: str, *, is_chat: bool = False) -> int:
        return len(self._tokenizer(text, add_special_tokens=not is_chat).input_ids)

    def prompt_of(self, num_tokens: int) -> str:
        """A prompt of exactly so many tokens."""
        prompt = " on" * num_tokens
        assert self.num_tokens(prompt) == num_tokens
        return prompt

    def prompt_that_ends(self, max_tokens: int) -> str:
        """A prompt whose greedy answer ends by itself, after a few tokens."""
        for prompt in _PROMPTS_THAT_MAY_END:
            answer = self.answer(prompt, max_tokens)
            if answer.finish_reason == "stop" and answer.num_output_tokens > 4:
                return prompt
        raise AssertionError("the demo model ends none of its texts")

    @torch.inference_mode()
    def _answer(
        self,
        prompt: str,
        max_tokens: int,
        min_tokens: int,
        repetition_penalty: float,
        is_chat: bool,
    ) -> Expected:
        inputs = self._tokenizer(prompt, return_tensors="pt", add_special_tokens=not is_chat)
        length = inputs.input_ids.shape[1]
        output = self._model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=min_tokens or None,
            repetition_penalty=repetition_penalty,
        )
        token_ids = output[0, length:].tolist()
        ended = token_ids[-1] in self._model.generation_config.eos_token_id
        return Expected(
            self._tokenizer.decode(token_ids, skip_special_tokens=True),
            tuple(token_ids),
            length,
            len(token_ids),
            "stop" if ended else "length",
            tuple(self._tokenizer.decode([token_id]) for token_id in token_ids),
        )
