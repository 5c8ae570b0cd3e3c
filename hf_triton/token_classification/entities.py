"""Tokens to entities, by one of five strategies, and entities of overlapping windows to one list.

Source: transformers, pipelines/token_classification.py: ``aggregate``, ``group_entities`` and
``aggregate_overlapping_entities``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_triton.encoder.task import Array

from .tagged import TaggedToken

STRATEGIES = ("none", "simple", "first", "average", "max")
Entity = dict[str, Any]


@dataclass(frozen=True)
class _Word:
    """An element to group: a token, or a whole word. ``label`` keeps its "B-" or "I-"."""

    label: str
    score: float
    text: str
    start: int | None
    end: int | None


class EntityMaker:
    """``id2label``: the model's labels; ``spell``: tokens to the text that they stand for."""

    def __init__(self, id2label: Mapping[int, str], spell: Callable[[list[str]], str]) -> None:
        self._id2label = id2label
        self._spell = spell

    def entities(
        self, tokens: Sequence[TaggedToken], strategy: str, ignored: Collection[str]
    ) -> list[Entity]:
        """The entities of one window, in the order of the text, without ``ignored`` labels."""
        if strategy == "none":
            found = [self._token_entity(token) for token in tokens]
            return [entity for entity in found if entity["entity"] not in ignored]
        if strategy == "simple":
            words = [self._word([token], token.scores, token.word) for token in tokens]
        else:
            words = [self._whole_word(group, strategy) for group in _words(tokens)]
        found = [self._group_entity(group) for group in _groups(words)]
        return [entity for entity in found if entity["entity_group"] not in ignored]

    def _token_entity(self, token: TaggedToken) -> Entity:
        best = int(token.scores.argmax())
        return {
            "entity": self._label(best),
            "score": float(token.scores[best]),
            "index": token.index,
            "word": token.word,
            "start": token.start,
            "end": token.end,
        }

    def _whole_word(self, tokens: Sequence[TaggedToken], strategy: str) -> _Word:
        """Its label is that of its first token, of the surest one, or of the average's best."""
        if strategy == "first":
            scores = tokens[0].scores
        elif strategy == "max":
            scores = max(tokens, key=lambda token: float(token.scores.max())).scores
        else:
            scores = np.mean([token.scores for token in tokens], axis=0)
        return self._word(tokens, scores, self._spell([token.word for token in tokens]))

    def _word(self, tokens: Sequence[TaggedToken], scores: Array, text: str) -> _Word:
        best = int(scores.argmax())
        label, score = self._label(best), float(scores[best])
        return _Word(label, score, text, tokens[0].start, tokens[-1].end)

    def _group_entity(self, words: Sequence[_Word]) -> Entity:
        return {
            "entity_group": words[0].label.split("-", 1)[-1],
            "score": float(np.mean([word.score for word in words])),
            "word": self._spell([word.text for word in words]),
            "start": words[0].start,
            "end": words[-1].end,
        }

    def _label(self, index: int) -> str:
        return str(self._id2label.get(index, f"LABEL_{index}"))


def merged(windows: Sequence[list[Entity]]) -> list[Entity]:
    """The entities of overlapping windows: of two that overlap the longer one, then the surer.
    Those of one window alone stay as they are.
    """
    found = [entity for window in windows for entity in window]
    if len(windows) < 2 or not found:
        return found
    found.sort(key=lambda entity: int(entity["start"]))
    kept = [found[0]]
    for entity in found[1:]:
        if not kept[-1]["start"] <= entity["start"] < kept[-1]["end"]:
            kept.append(entity)
        elif _weight(entity) > _weight(kept[-1]):
            kept[-1] = entity
    return kept


def _weight(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]


def _words(tokens: Sequence[TaggedToken]) -> list[list[TaggedToken]]:
    words: list[list[TaggedToken]] = []
    for token in tokens:
        if words and token.is_subword:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _groups(words: Sequence[_Word]) -> list[list[_Word]]:
    """Neighbours of one label; "B-" begins a new group."""
    groups: list[list[_Word]] = []
    for word in words:
        begins, tag = _tag(word.label)
        if groups and not begins and tag == _tag(groups[-1][-1].label)[1]:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _tag(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and the entity's kind; a label without a mark continues
    one.
    """
    if label.startswith(("B-", "I-")):
        return label.startswith("B-"), label[2:]
    return False, label
