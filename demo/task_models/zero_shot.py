"""zero-shot-classification: a BERT that says whether a text entails "This example is ..."."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import BertForSequenceClassification, pipeline

from demo.corpus.paraphrases import TOPICS, sentence
from demo.task_models.encoder import BatchSampler, load_base, padded
from demo.training import Batch, save, train

STEPS = 900
LABELS = ("contradiction", "entailment")
HYPOTHESES = ("This example is {}.", "This text is about {}.", "This example is about {}.")
PROMPTS = (
    "I booked a flight to Rome.",
    "Our team won the match.",
    "The bank gives us money for the house.",
    "Heavy rain falls from the clouds.",
)


def premises(num_premises: int, seed: int) -> list[tuple[str, str, int]]:
    """Return a text, a hypothesis on its topic, and whether it holds: 1 or 0."""
    rng = random.Random(seed)
    return [_premise(rng) for _ in range(num_premises)]


def _premise(rng: random.Random) -> tuple[str, str, int]:
    topic, other = rng.sample(TOPICS, 2)
    holds = rng.random() < 0.5
    label = rng.choice((topic if holds else other).names)
    return sentence(rng, topic), rng.choice(HYPOTHESES).format(label), int(holds)


def make(out: Path, steps: int, seed: int) -> None:
    """Train from the fill-mask model and save to ``out``/zero-shot."""
    names = dict(enumerate(LABELS))
    numbers = {label: number for number, label in names.items()}
    changes = {"id2label": names, "label2id": numbers}
    tokenizer, model = load_base(out, BertForSequenceClassification, **changes)
    draw = BatchSampler(premises(12_000, seed), 64, seed)

    def batch() -> Batch:
        chosen = draw()
        pairs = [(text, hypothesis) for text, hypothesis, _ in chosen]
        labels = torch.tensor([holds for _, _, holds in chosen])
        return {**padded(tokenizer, pairs), "labels": labels}

    train(model, batch, steps=steps, learning_rate=3e-3, title="zero-shot")
    save(model, tokenizer, out / "zero-shot")


def show(out: Path) -> None:
    """Print which topic the saved model finds in some sentences."""
    classify = pipeline("zero-shot-classification", str(out / "zero-shot"), device="cpu")
    labels = [topic.name for topic in TOPICS]
    for prompt in PROMPTS:
        found = classify(prompt, candidate_labels=labels)
        print(prompt, found["labels"][:2], [round(score, 2) for score in found["scores"][:2]])
