"""token-classification: a BERT that finds people, places and firms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertForTokenClassification, pipeline

from demo.corpus.entities import named_sentence
from demo.corpus.marked import Span
from demo.task_models.encoder import BatchSampler, load_base, padded
from demo.training import Batch, save, train

STEPS = 600
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
PROMPTS = (
    "My name is Anna Brown and I live in New York.",
    "Peter works for Wilson Motors in Berlin.",
    "Mr Zorblax flew from Kelburg to Lisbon.",
)


def make(out: Path, steps: int, seed: int) -> None:
    """Train from the fill-mask model and save to ``out``/entities."""
    names = dict(enumerate(LABELS))
    numbers = {label: number for number, label in names.items()}
    changes = {"id2label": names, "label2id": numbers}
    tokenizer, model = load_base(out, BertForTokenClassification, **changes)
    rng = random.Random(seed)
    draw = BatchSampler([named_sentence(rng) for _ in range(8_000)], 64, seed)

    def batch() -> Batch:
        return labelled(tokenizer, draw())

    train(model, batch, steps=steps, learning_rate=3e-3, title="entities")
    save(model, tokenizer, out / "entities")


def labelled(tokenizer: Any, examples: Sequence[tuple[str, list[Span]]]) -> Batch:
    """Return the texts with ``labels`` (batch, seq): -100 for special tokens."""
    texts = [text for text, _ in examples]
    batch = padded(tokenizer, texts, return_offsets_mapping=True)
    labels = torch.full_like(batch["input_ids"], -100)
    for row, (_, spans) in enumerate(examples):
        for column, (start, end) in enumerate(batch["offset_mapping"][row].tolist()):
            if end > start:
                labels[row, column] = LABELS.index(_label(spans, start, end))
    del batch["offset_mapping"]
    return {**batch, "labels": labels}


def _label(spans: list[Span], start: int, end: int) -> str:
    for span in spans:
        if span.start <= start and end <= span.end:
            return f"{'B' if start == span.start else 'I'}-{span.label}"
    return "O"


def show(out: Path) -> None:
    """Print what the saved model finds in some sentences."""
    find = pipeline("token-classification", str(out / "entities"), aggregation_strategy="simple")
    for prompt in PROMPTS:
        print(prompt, [(each["word"], each["entity_group"]) for each in find(prompt)])
