"""Every encoder task: a tiny model for it, requests, and a client's batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny_encoders import WORDS, texts, tiny_encoder

CLASSIFIER = "AutoModelForSequenceClassification"


def labelled(*labels: str) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(labels)}
    return {"id2label": dict(enumerate(labels)), "label2id": numbers}


# task -> transformers' class, and what its configuration has
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "feature-extraction": ("AutoModel", {}),
    "text-classification": (CLASSIFIER, labelled("bad", "fair", "good")),
    "zero-shot-classification": (CLASSIFIER, labelled("contradiction", "neutral", "entailment")),
    "token-classification": (
        "AutoModelForTokenClassification",
        labelled("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    ),
    "question-answering": ("AutoModelForQuestionAnswering", {}),
    "fill-mask": ("AutoModelForMaskedLM", {}),
}
SHORT, LONG = "the cat sat", " ".join(WORDS[:20])
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "feature-extraction": [
        {"text_input": SHORT},
        {"text_input": LONG, "dimensions": 8, "return_num_input_tokens": True},
        {"input_text": texts(5)},
    ],
    "text-classification": [
        {"text_input": SHORT},
        {"text_input": SHORT, "text_pair": LONG, "top_k": -1},
        {"text_input": LONG, "function_to_apply": "sigmoid", "top_k": 2},
    ],
    "zero-shot-classification": [
        {"text_input": SHORT, "candidate_labels": ["food", "film", "house"]},
        {"text_input": LONG, "candidate_labels": ["red", "blue"], "multi_label": True},
    ],
    "token-classification": [
        {"text_input": SHORT},
        {"text_input": LONG, "aggregation_strategy": "none"},
    ],
    "question-answering": [
        {"question": "where is the cat", "context": LONG},
        {"question": "who", "context": " ".join(WORDS * 6), "top_k": 3},
    ],
    "fill-mask": [
        {"text_input": "the [MASK] sat", "top_k": 3},
        {"text_input": "the [MASK] sat on [MASK]", "targets": ["cat", "dog"]},
    ],
}
_ROWS = [SHORT, LONG, *texts(1, seed=3)]
COLUMNS: dict[str, dict[str, Any]] = {
    "feature-extraction": {"text_input": _ROWS, "dimensions": [8] * 3},
    "text-classification": {"text_input": _ROWS, "text_pair": _ROWS[::-1], "top_k": [-1, 1, 2]},
    "zero-shot-classification": {
        "text_input": _ROWS,
        "candidate_labels": [["food", "Paris"], ["a cat", ""], ["red", "blue"]],
    },
    "token-classification": {
        "text_input": _ROWS,
        "aggregation_strategy": ["none", "first", "simple"],
    },
    "question-answering": {
        "question": ["who", "where is it", "a"],
        "context": _ROWS,
        "top_k": [1, 2, 3],
    },
    "fill-mask": {
        "text_input": [f"{row} [MASK]" for row in _ROWS],
        "top_k": [1, 3, 2],
        "targets": [["cat", "dog"], ["red", ""], ["", ""]],
    },
}


def model_of(task: str, folder: Path, architecture: str = "bert", **config: Any) -> Path:
    auto_class, own = MODELS[task]
    return tiny_encoder(architecture, auto_class, folder, **{**own, **config})
