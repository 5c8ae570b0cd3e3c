"""Selects the best tokens for each mask on the model's device: logits of the whole vocabulary are
never copied from it.

Source: transformers, pipelines/fill_mask.py, ``postprocess``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hf_triton.encoder.texts.encoding import Encoding


@dataclass(frozen=True)
class Choice:
    """How many tokens are chosen for each mask; of ``targets`` alone, or of all where it is ()."""

    top_k: int
    targets: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class MaskedEncoding(Encoding):
    """A text whose ``positions`` are its masks."""

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
