"""Fill-mask as a task of the encoder engine: the best tokens for each mask of a text, selected on
the model's device, since logits of the whole vocabulary are large.

Source: transformers, pipelines/fill_mask.py, ``postprocess``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hf_triton.encoder.rows import TEXT, Values, integer_in, option, required_texts
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import written
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row
from hf_triton.runtime.tokenizing.lengths import check_characters


class FillMask(EncoderTask):
    auto_class = "AutoModelForMaskedLM"

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self._tokenizer = setup.tokenization.tokenizer
        if self._tokenizer.mask_token_id is None:
            raise LoadError("fill-mask needs a tokenizer with a mask token; this one has none")
        self._vocabulary: Mapping[str, int] = self._tokenizer.get_vocab()
        self._vocab_size = int(setup.config.get_text_config().vocab_size)
        self._most = min(setup.options.max_top_k, self._vocab_size)
        self._default = min(setup.options.top_k, self._vocab_size)
        self.columns = {
            TEXT: required_texts,
            "top_k": option(integer_in(1, self._most), self._default),
            "targets": self._targets,
            "truncate": option(boolean, None),
        }

    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> list[torch.Tensor]:
        """(masks, vocab) logits of each encoding -> (masks, 2, top_k) float32: scores, best first,
        and token ids. Encodings that want the same are computed together.
        """
        members: dict[tuple[Any, ...], list[int]] = {}
        for index, one in enumerate(encodings):
            members.setdefault(one.wants, []).append(index)
        found: dict[int, torch.Tensor] = {}
        for wants, indices in members.items():
            rows = [outputs[index] for index in indices]
            best = _best(rows[0] if len(rows) == 1 else torch.cat(rows), *wants)
            found.update(zip(indices, best.split([len(row) for row in rows]), strict=True))
        return [found[index] for index in range(len(encodings))]

    def row(self, row: Values) -> Prepared:
        whole = self.setup.tokenization.encode(TEXT, row[TEXT], truncate=row["truncate"])
        mask_id = self._tokenizer.mask_token_id
        masks = tuple(i for i, token_id in enumerate(whole.input_ids) if token_id == mask_id)
        self._check_masks(row[TEXT], len(masks))
        encoding = replace(whole, positions=masks, wants=(row["top_k"], row["targets"]))
        return Prepared([encoding], partial(self._answer, encoding))

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

    def _targets(self, fields: RequestFields, name: str) -> list[tuple[int, ...]]:
        """The tokens to score in each row; () where the request names none: all are scored."""
        rows = fields.text_lists(name)
        if fields.is_given(name) and not any(rows):
            raise RequestError(f"{name}: got empty texts, allowed: words, at least one")
        return each_row(lambda row: tuple(sorted({self._target(word) for word in row})), rows)

    def _target(self, word: str) -> int:
        """A word's token; the first of several, as transformers takes it."""
        token_id = self._vocabulary.get(word)
        if token_id is None:
            check_characters("targets", len(word), self.setup.tokenization.max_length)
            ids = self._tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
            token_id = ids[0] if ids else None
        if token_id is None or token_id >= self._vocab_size:
            raise RequestError("targets: got a text that is not one token, allowed: words")
        return int(token_id)

    def _answer(self, encoding: Encoding, results: Sequence[Array]) -> Mapping[str, Array]:
        """``results``: (masks, 2, top_k), scores and token ids. A list for each mask where there
        are several, as transformers answers.
        """
        masks = encoding.positions or ()
        # With several masks the others must stay in the text, and so must every special token.
        is_single = len(masks) == 1
        lists: list[list[dict[str, Any]]] = [[] for _ in masks]
        for found, place, (scores, tokens) in zip(lists, masks, results[0], strict=True):
            for score, token in zip(scores.tolist(), map(int, tokens), strict=True):
                ids = [*encoding.input_ids[:place], token, *encoding.input_ids[place + 1 :]]
                ids = [token_id for token_id in ids if token_id != self._tokenizer.pad_token_id]
                text = self._tokenizer.decode(ids, skip_special_tokens=is_single)
                word = self._tokenizer.decode([token])
                found.append({"score": score, "token": token, "token_str": word, "sequence": text})
        return {"output": strings([written(lists[0] if is_single else lists)])}


def _best(logits: torch.Tensor, top_k: int, targets: tuple[int, ...]) -> torch.Tensor:
    """(rows, vocab) -> (rows, 2, top_k): of ``targets``, or of all tokens where it is empty. Scores
    are probabilities over all tokens, also where only targets are scored.
    """
    logits = logits.float()
    total = logits.logsumexp(dim=-1, keepdim=True)
    if not targets:
        best, tokens = logits.topk(top_k)
    else:
        known = torch.tensor(targets, device=logits.device)
        best, places = logits[:, known].topk(min(top_k, len(targets)))
        tokens = known[places]
    return torch.stack(((best - total).exp(), tokens.float()), dim=1)
