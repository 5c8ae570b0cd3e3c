"""text-classification: a BERT that tells good reviews from bad ones."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import BertForSequenceClassification, pipeline

from demo.corpus.reviews import NEGATIVE, POSITIVE, review
from demo.task_models.encoder import BatchSampler, load_base, padded
from demo.training import Batch, save, train

STEPS = 500
LABELS = (NEGATIVE, POSITIVE)
PROMPTS = (
    "I love this film.",
    "What a terrible day!",
    "The soup was not good at all.",
    "I am very happy with my new bicycle.",
)


def reviews(num_reviews: int, seed: int) -> list[tuple[str, int]]:
    """Return reviews, each with its label's number."""
    rng = random.Random(seed)
    return [
        (text, LABELS.index(label)) for text, label in (review(rng) for _ in range(num_reviews))
    ]


def make(out: Path, steps: int, seed: int) -> None:
    """Train from the fill-mask model and save to ``out``/classifier."""
    names = dict(enumerate(LABELS))
    numbers = {label: number for number, label in names.items()}
    changes = {"id2label": names, "label2id": numbers}
    tokenizer, model = load_base(out, BertForSequenceClassification, **changes)
    draw = BatchSampler(reviews(6_000, seed), 64, seed)

    def batch() -> Batch:
        texts, labels = zip(*draw(), strict=True)
        return {**padded(tokenizer, texts), "labels": torch.tensor(labels)}

    train(model, batch, steps=steps, learning_rate=3e-3, title="classifier")
    save(model, tokenizer, out / "classifier")


def show(out: Path) -> None:
    """Print what the saved model says of some sentences."""
    classify = pipeline("text-classification", str(out / "classifier"), device="cpu")
    for prompt in PROMPTS:
        print(prompt, classify(prompt))
