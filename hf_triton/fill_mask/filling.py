"""Fill-mask as a task of the encoder engine: the best tokens for each mask of a text, selected on
the model's device, since logits of the whole vocabulary are large.

Source: transformers, pipelines/fill_mask.py, ``postprocess``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.encoder.rows import JsonRow, count_rows, integer_in, json_request, required_texts
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row
from hf_triton.runtime.tokenizing.lengths import check_characters

INPUTS = ("text_input", "top_k", "targets", "truncate")


class FillMask(EncoderTask):
    auto_class = "AutoModelForMaskedLM"
    output = "tokens"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self._tokenizer = setup.tokenization.tokenizer
        if self._tokenizer.mask_token_id is None:
            raise LoadError("fill-mask needs a tokenizer with a mask token; this one has none")
        self._vocabulary: Mapping[str, int] = self._tokenizer.get_vocab()
        self._vocab_size = int(setup.config.get_text_config().vocab_size)
        self._top_k = integer_in(1, min(setup.options.max_top_k, self._vocab_size))
        self._default_top_k = min(setup.options.top_k, self._vocab_size)

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        count_rows(fields, INPUTS)
        top_ks = fields.values("top_k", self._top_k, self._default_top_k)
        columns = zip(
            required_texts(fields, "text_input"),
            map(Choice, top_ks, self._targets(fields)),
            fields.values("truncate", boolean, None),
            strict=True,
        )
        rows = each_row(lambda values: self._row(*values), columns)
        return json_request(rows, batched=self.setup.batched)

    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> Sequence[torch.Tensor]:
        return best_tokens(outputs, encodings)

    def _row(self, text: str, choice: Choice, truncate: bool | None) -> JsonRow:
        tokenization = self.setup.tokenization
        whole = tokenization.encode("text_input", text, truncate=truncate)
        mask_id = self._tokenizer.mask_token_id
        masks = tuple(i for i, token_id in enumerate(whole.input_ids) if token_id == mask_id)
        self._check_masks(text, len(masks))
        encoding = MaskedEncoding(whole.input_ids, whole.token_type_ids, masks, choice)
        return JsonRow([encoding], partial(self._answer, encoding))

    def _check_masks(self, text: str, num_masks: int) -> None:
        mask, most = self._tokenizer.mask_token, self.setup.options.max_num_masks
        if not num_masks and mask in text:
            raise RequestError(
                f"text_input: its {mask} lies beyond the {self.setup.tokenization.max_length} "
                "tokens that are kept"
            )
        if not num_masks:
            raise RequestError(
                f"text_input: got a text without a mask token, allowed: {mask} wherever a word is "
                "to be filled in"
            )
        if num_masks > most:
            raise RequestError(
                f"text_input: got {num_masks} mask tokens, allowed: at most {most} (max_num_masks)"
            )

    def _targets(self, fields: RequestFields) -> list[tuple[int, ...]]:
        """The tokens to score in each row; () where the request names none: all are scored."""
        rows = fields.text_lists("targets")
        is_given = fields.has_tensor("targets") or "targets" in fields.parameters
        if is_given and not any(rows):
            raise RequestError("targets: got empty texts, allowed: words, at least one")
        return each_row(lambda row: tuple(sorted({self._target(word) for word in row})), rows)

    def _target(self, word: str) -> int:
        """A word's token; the first of several, as transformers takes it."""
        token_id = self._vocabulary.get(word)
        if token_id is None:
            check_characters("targets", len(word), self.setup.tokenization.max_length)
            ids = self._tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
            token_id = ids[0] if ids else None
        if token_id is None or token_id >= self._vocab_size:
            raise RequestError("targets: got a text that is no token of this model, allowed: words")
        return int(token_id)

    def _answer(self, encoding: MaskedEncoding, results: Sequence[Array]) -> object:
        """``results``: (masks, 2, top_k), scores and token ids. A list for each mask where there
        are several, as transformers answers.
        """
        masks = encoding.positions or ()
        # Of several masks the others must stay in the text, and with them every special token.
        is_single = len(masks) == 1
        lists: list[list[dict[str, Any]]] = [[] for _ in masks]
        for found, place, (scores, tokens) in zip(lists, masks, results[0], strict=True):
            for score, token in zip(scores.tolist(), map(int, tokens), strict=True):
                ids = [*encoding.input_ids[:place], token, *encoding.input_ids[place + 1 :]]
                ids = [token_id for token_id in ids if token_id != self._tokenizer.pad_token_id]
                text = self._tokenizer.decode(ids, skip_special_tokens=is_single)
                word = self._tokenizer.decode([token])
                found.append({"score": score, "token": token, "token_str": word, "sequence": text})
        return lists[0] if is_single else lists


@dataclass(frozen=True)
class Choice:
    """How many tokens to return for each mask, out of ``targets``, or of all where it is ()."""

    top_k: int
    targets: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class MaskedEncoding(Encoding):
    choice: Choice = Choice(1)


def best_tokens(
    outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
) -> list[torch.Tensor]:
    """(masks, vocab) logits of each encoding -> (masks, 2, top_k) float32: scores, best first, and
    token ids. Encodings of one choice are computed together.
    """
    members: dict[Choice, list[int]] = {}
    for index, encoding in enumerate(encodings):
        # The engine warms up with encodings of its own.
        choice = encoding.choice if isinstance(encoding, MaskedEncoding) else Choice(1)
        members.setdefault(choice, []).append(index)
    found: dict[int, torch.Tensor] = {}
    for choice, indices in members.items():
        rows = [outputs[index] for index in indices]
        best = _best(rows[0] if len(rows) == 1 else torch.cat(rows), choice)
        parts = best.split([len(row) for row in rows])
        found.update(zip(indices, parts, strict=True))
    return [found[index] for index in range(len(encodings))]


def _best(logits: torch.Tensor, choice: Choice) -> torch.Tensor:
    """(rows, vocab) -> (rows, 2, top_k). Scores are probabilities over all tokens, also where only
    targets are scored.
    """
    logits = logits.float()
    total = logits.logsumexp(dim=-1, keepdim=True)
    if not choice.targets:
        best, tokens = logits.topk(choice.top_k)
    else:
        targets = torch.tensor(choice.targets, device=logits.device)
        best, places = logits[:, targets].topk(min(choice.top_k, len(choice.targets)))
        tokens = targets[places]
    return torch.stack(((best - total).exp(), tokens.float()), dim=1)
