"""What a greedy request must answer, cut out of transformers' own ``generate`` on the same weights.

Each case is generated once, with its end withheld; what would have ended it is remembered, so that
every max_tokens, min_tokens and stop word is a cut of the same tokens. A token whose choice hangs
on rounding (its logit is hardly above the next one's) ends what is known of a case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
)

from tests.server.soak.requests import LONGEST_GREEDY

LEAST_MARGIN = 2e-3  # in logits; two ways of computing them differ by some 1e-5
HALF_A_CHARACTER = "\ufffd"
_CASE_OPTIONS = ("repetition_penalty", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True)
class Trace:
    """The tokens of a case whose end is withheld. ``ends`` has the token by which it would have
    ended (the likeliest of all), None where it went on; ``logprobs`` are of the raw logits,
    ``end_logprobs`` those of ``ends``.
    """

    num_input_tokens: int
    token_ids: tuple[int, ...]
    ends: tuple[int | None, ...]
    logprobs: tuple[float, ...]
    end_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Expected:
    """An answer; where its ``finish_reason`` is empty, only its beginning is known."""

    num_input_tokens: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float
    finish_reason: str


class _Record(LogitsProcessor):
    """Comes last: the penalties that transformers has not, no end, and a memory of both."""

    def __init__(
        self, num_prompt_tokens: int, options: Mapping[str, Any], ends: tuple[int, ...]
    ) -> None:
        self._num_prompt_tokens, self._ends = num_prompt_tokens, list(ends)
        self._frequency = options.get("frequency_penalty", 0.0)
        self._presence = options.get("presence_penalty", 0.0)
        self.ends: list[int | None] = []
        self.margins: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        said = input_ids[0, self._num_prompt_tokens :]
        counts = torch.bincount(said, minlength=scores.shape[-1])
        scores = scores - self._frequency * counts - self._presence * (counts > 0)
        ends = scores[0, self._ends].topk(2)
        scores[:, self._ends] = -torch.inf
        end, other_end, first, second = [*ends.values.tolist(), *scores[0].topk(2).values.tolist()]
        is_end = end > first
        margins = [abs(end - first), first - second, end - other_end if is_end else torch.inf]
        self.margins.append(min(margins))
        self.ends.append(self._ends[int(ends.indices[0])] if is_end else None)
        return scores


class SoakReference:
    """The demo model without any server."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._ends = tuple(self._model.generation_config.eos_token_id)
        self._traces: dict[str, Trace] = {}

    def expected(self, prompt: str, options: Mapping[str, Any]) -> Expected:
        """The greedy answer to a prompt, whatever n is."""
        trace = self._trace(prompt, options)
        max_tokens, min_tokens = options["max_tokens"], options.get("min_tokens", 0)
        words = tuple(options.get("stop_words", ()))
        token_ids, total, searched = list[int](), 0.0, ""
        for at in range(min(max_tokens, len(trace.token_ids))):
            end = trace.ends[at] if at >= min_tokens else None
            token_ids.append(trace.token_ids[at] if end is None else end)
            total += trace.logprobs[at] if end is None else trace.end_logprobs[at]
            text = self.decode(token_ids)
            if end is not None:
                return self._made(trace, token_ids, total, "stop", text)
            if text.endswith(HALF_A_CHARACTER):
                continue
            if at + 1 >= min_tokens and text != searched:
                cut = cut_at_stop_word(text, len(searched), words)
                if cut is not None:
                    return self._made(trace, token_ids, total, "stop", cut)
            searched = text
        reason = "length" if len(token_ids) == max_tokens else ""
        return self._made(trace, token_ids, total, reason, self.decode(token_ids))

    def decode(self, token_ids: list[int] | tuple[int, ...]) -> str:
        """The text of output tokens, as it is sent."""
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _made(
        self, trace: Trace, token_ids: list[int], total: float, reason: str, text: str
    ) -> Expected:
        text = text if reason else text.rstrip(HALF_A_CHARACTER)
        return Expected(trace.num_input_tokens, text, tuple(token_ids), total, reason)

    def _trace(self, prompt: str, options: Mapping[str, Any]) -> Trace:
        penalties = {name: options[name] for name in _CASE_OPTIONS if name in options}
        key = repr((prompt, sorted(penalties.items())))
        if key not in self._traces:
            self._traces[key] = self._generate(prompt, penalties)
        return self._traces[key]

    @torch.inference_mode()
    def _generate(self, prompt: str, options: Mapping[str, Any]) -> Trace:
        prompt_ids = self._tokenizer(prompt).input_ids
        record = _Record(len(prompt_ids), options, self._ends)
        output = self._model.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=LONGEST_GREEDY,
            eos_token_id=None,
            pad_token_id=self._ends[0],
            repetition_penalty=options.get("repetition_penalty", 1.0),
            logits_processor=LogitsProcessorList([record]),
            output_logits=True,
            return_dict_in_generate=True,
        )
        unsure = (at for at, margin in enumerate(record.margins) if margin < LEAST_MARGIN)
        num_known = next(unsure, LONGEST_GREEDY)
        token_ids = output.sequences[0, len(prompt_ids) :].tolist()[:num_known]
        table = torch.stack(output.logits)[:, 0].float().log_softmax(-1)  # (tokens, vocab)
        return Trace(
            len(prompt_ids),
            tuple(token_ids),
            tuple(record.ends[:num_known]),
            tuple(float(table[at, token_id]) for at, token_id in enumerate(token_ids)),
            tuple(float(table[at, end or 0]) for at, end in enumerate(record.ends[:num_known])),
        )


def cut_at_stop_word(text: str, num_searched: int, words: tuple[str, ...]) -> str | None:
    """``text`` up to the first word that ends in what is new of it; None where there is none."""
    found = [
        start
        for word in words
        if (start := text.find(word, max(0, num_searched - len(word) + 1))) >= 0
    ]
    return text[: min(found)] if found else None
