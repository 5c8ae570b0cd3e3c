"""text-classification: a DistilBERT that tells good reviews from bad ones."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    pipeline,
)

from demo.corpus.reviews import NEGATIVE, POSITIVE, review
from demo.task_models.encoder import BASE, Draw, padded
from demo.task_models.wordpiece import LONGEST
from demo.training import Batch, save, train

STEPS = 400
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
    """Train with the fill-mask model's tokenizer and save to ``out``/classifier."""
    tokenizer = AutoTokenizer.from_pretrained(out / BASE)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # DistilBERT has no token types
    model = DistilBertForSequenceClassification(_config(len(tokenizer)))
    draw = Draw(reviews(6_000, seed), 64, seed)

    def batch() -> Batch:
        texts, labels = zip(*draw(), strict=True)
        return {**padded(tokenizer, texts), "labels": torch.tensor(labels)}

    train(model, batch, steps=steps, learning_rate=2e-3, title="classifier")
    save(model, tokenizer, out / "classifier")


def _config(vocab_size: int) -> DistilBertConfig:
    return DistilBertConfig(
        vocab_size=vocab_size,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=LONGEST,
        dropout=0.1,
        seq_classif_dropout=0.1,
        initializer_range=0.05,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
        dtype="float32",
    )


def show(out: Path) -> None:
    """Print what the saved model says of some sentences."""
    classify = pipeline("text-classification", str(out / "classifier"), device="cpu")
    for prompt in PROMPTS:
        print(prompt, classify(prompt))
