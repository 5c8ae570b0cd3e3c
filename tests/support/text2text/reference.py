"""The expected answers: transformers' tokenizer and ``generate``, one text at a time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

_GREEDY: dict[str, Any] = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}


class Reference:
    """A saved model without any server."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Marian's: sacremoses is recommended
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def greedy(self, text: str, source_lang: str | None = None, **changes: Any) -> str:
        """The likeliest token after token."""
        return self._answer(text, source_lang, {**_GREEDY, **changes})

    def beams(self, text: str, num_beams: int, **changes: Any) -> str:
        """Beam search by the model's own settings but for the number of beams."""
        return self._answer(text, None, {"num_beams": num_beams, **changes})

    @torch.inference_mode()
    def _answer(self, text: str, source_lang: str | None, changes: dict[str, Any]) -> str:
        truncation = changes.pop("truncation", {})
        if source_lang is not None:
            self.tokenizer.src_lang = source_lang
        inputs = self.tokenizer(text, return_tensors="pt", **truncation)
        output = self.model.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            **changes,
        )
        decoded = self.tokenizer.decode(
            output[0], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(decoded)

    def lang_id(self, code: str) -> int:
        """The token of a target language."""
        codes = getattr(self.tokenizer, "lang_code_to_id", None)
        return int(codes[code] if codes else self.tokenizer.convert_tokens_to_ids(code))
