"""What a greedy request must answer, cut out of transformers' own ``generate`` on the same weights.

Each case is generated once, with its end withheld; what would have ended it is remembered, so that
every max_tokens, min_tokens and stop word is a cut of the same tokens. A token whose choice hangs
on rounding (its logit is hardly above the next one's) ends what is known of a case.
"""

from __future__ import annotations

import json
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

from perf.soak.draw import DEFAULT_MAX_TOKENS, LONGEST_GREEDY
from perf.soak.request import Row

LEAST_MARGIN = 2e-3  # in logits; two ways of computing them differ by some 1e-5
_HALF_A_CHARACTER = "\ufffd"
_CASE_OPTIONS = (
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "bad_words", "ignore_eos"),
)


@dataclass(frozen=True)
class Trace:
    """The tokens of a case whose end is withheld. ``ends`` says where it would have ended (the end
    was the likeliest), ``logprobs`` are of the raw logits, ``end_logprobs`` the end's own.
    """

    prompt: str
    num_input_tokens: int
    token_ids: tuple[int, ...]
    ends: tuple[bool, ...]
    logprobs: tuple[float, ...]
    end_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Expected:
    """An answer. ``is_whole`` is False where only its beginning is known."""

    prompt: str
    num_input_tokens: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    is_whole: bool = True


class _Record(LogitsProcessor):
    """Comes last: the penalties that transformers has not, no end, and a memory of both."""

    def __init__(self, num_prompt_tokens: int, options: dict[str, Any], eos_token_id: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._frequency = options.get("frequency_penalty", 0.0)
        self._presence = options.get("presence_penalty", 0.0)
        self._eos_token_id = eos_token_id
        self._withholds = not options.get("ignore_eos", False)
        self.ends: list[bool] = []
        self.margins: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        said = input_ids[0, self._num_prompt_tokens :]
        counts = torch.bincount(said, minlength=scores.shape[-1])
        scores = scores - self._frequency * counts - self._presence * (counts > 0)
        likeliest = scores[0].topk(3)
        values, tokens = likeliest.values.tolist(), likeliest.indices.tolist()
        is_end = self._withholds and tokens[0] == self._eos_token_id
        margin = values[0] - values[1]
        if self._eos_token_id in tokens[:2] and self._withholds:
            margin = min(margin, values[int(is_end)] - values[2], values[0] - values[2])
        self.margins.append(margin)
        self.ends.append(is_end)
        if self._withholds:
            scores[:, self._eos_token_id] = -torch.inf
        return scores


class SoakReference:
    """The demo model without any server. ``default_max_tokens`` is the served models' option."""

    def __init__(self, folder: Path, default_max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        torch.set_num_threads(1)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._eos_token_id: int = self._model.generation_config.eos_token_id
        self._default_max_tokens = default_max_tokens
        self._traces: dict[str, Trace] = {}

    def expected(self, row: Row) -> Expected:
        """The greedy answer to a row, whatever n is."""
        trace, options = self.trace(row), row.options
        max_tokens = options.get("max_tokens", self._default_max_tokens)
        min_tokens = options.get("min_tokens", 0)
        words = tuple(word for word in options.get("stop_words", ()) if word)
        token_ids: list[int] = []
        logprobs: list[float] = []
        searched = ""
        for at in range(min(max_tokens, len(trace.token_ids))):
            is_end = trace.ends[at] and at >= min_tokens
            token_ids.append(self._eos_token_id if is_end else trace.token_ids[at])
            logprobs.append(trace.end_logprobs[at] if is_end else trace.logprobs[at])
            if is_end:
                return self._expected(trace, token_ids, logprobs, "stop")
            text = self.decode(token_ids) if words else _HALF_A_CHARACTER
            if text.endswith(_HALF_A_CHARACTER):
                continue
            if at + 1 >= min_tokens and text != searched:
                cut = cut_at_stop_word(
                    text, len(searched), words, options.get("include_stop_str_in_output", False)
                )
                if cut is not None:
                    return self._expected(trace, token_ids, logprobs, "stop", cut)
            searched = text
        is_whole = len(token_ids) == max_tokens
        return self._expected(trace, token_ids, logprobs, "length" if is_whole else "")

    def decode(self, token_ids: list[int] | tuple[int, ...]) -> str:
        """The text of output tokens, as it is sent."""
        text: str = self.tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def prompt_of(self, row: Row) -> str:
        """A row's prompt as the model reads it."""
        if not row.messages:
            return row.prompt
        messages = [
            {**message, "content": _joined(message["content"])}
            for message in json.loads(row.messages)
        ]
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    def num_tokens(self, row: Row) -> int:
        """Of the prompt."""
        return len(self._prompt_ids(row))

    def trace(self, row: Row) -> Trace:
        """The case that a row is a cut of."""
        options = {name: row.options[name] for name in _CASE_OPTIONS if name in row.options}
        key = repr((row.prompt, row.messages, sorted(options.items())))
        if key not in self._traces:
            self._traces[key] = self._generate(row, options)
        return self._traces[key]

    @torch.inference_mode()
    def _generate(self, row: Row, options: dict[str, Any]) -> Trace:
        prompt_ids = self._prompt_ids(row)
        record = _Record(len(prompt_ids), options, self._eos_token_id)
        output = self._model.generate(
            torch.tensor([prompt_ids]),
            attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=LONGEST_GREEDY,
            eos_token_id=None,
            pad_token_id=self._eos_token_id,
            repetition_penalty=options.get("repetition_penalty", 1.0),
            bad_words_ids=self._spellings(options.get("bad_words", ())) or None,
            logits_processor=LogitsProcessorList([record]),
            output_logits=True,
            return_dict_in_generate=True,
        )
        unsure = (at for at, margin in enumerate(record.margins) if margin < LEAST_MARGIN)
        num_known = next(unsure, LONGEST_GREEDY)
        token_ids = output.sequences[0, len(prompt_ids) :].tolist()[:num_known]
        table = torch.stack(output.logits)[:, 0].float().log_softmax(-1)  # (tokens, vocab)
        return Trace(
            self.prompt_of(row),
            len(prompt_ids),
            tuple(token_ids),
            tuple(record.ends[:num_known]),
            tuple(float(table[at, token_id]) for at, token_id in enumerate(token_ids)),
            tuple(float(value) for value in table[:num_known, self._eos_token_id]),
        )

    def _expected(
        self,
        trace: Trace,
        token_ids: list[int],
        logprobs: list[float],
        finish_reason: str,
        text: str | None = None,
    ) -> Expected:
        if text is None:
            text = self.decode(token_ids)
        is_whole = bool(finish_reason)
        return Expected(
            trace.prompt,
            trace.num_input_tokens,
            text if is_whole else text.rstrip(_HALF_A_CHARACTER),
            tuple(token_ids),
            tuple(logprobs),
            finish_reason,
            is_whole,
        )

    def _prompt_ids(self, row: Row) -> list[int]:
        ids: list[int] = self.tokenizer(
            self.prompt_of(row), add_special_tokens=not row.messages
        ).input_ids
        return ids

    def _spellings(self, words: list[str] | tuple[str, ...]) -> list[list[int]]:
        return [
            self.tokenizer(spelt, add_special_tokens=False).input_ids
            for word in words
            for spelt in (word, f" {word}")
        ]


def cut_at_stop_word(
    text: str, num_searched: int, words: tuple[str, ...], includes: bool
) -> str | None:
    """``text`` up to the first word that ends in what is new of it; None where there is none."""
    found = [
        (start, len(word))
        for word in words
        if (start := text.find(word, max(0, num_searched - len(word) + 1))) >= 0
    ]
    if not found:
        return None
    start, length = min(found)
    return text[: start + (length if includes else 0)]


def _joined(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return "\n".join(part["text"] for part in content)
