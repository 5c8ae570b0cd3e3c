"""fill-mask: a BERT that was trained to guess masked words; the other encoders begin with it."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from transformers import BertForMaskedLM, pipeline

from demo.corpus.documents import document
from demo.corpus.entities import named_sentence
from demo.corpus.paraphrases import TOPICS, paraphrases
from demo.corpus.passages import asked
from demo.corpus.reviews import review
from demo.task_models.encoder import Draw, bert_config, padded, set_sinusoids
from demo.task_models.wordpiece import wordpiece_tokenizer
from demo.training import Batch, save, train

STEPS = 1200
NUM_TEXTS = 12_000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
PROMPTS = (
    "I am going to the [MASK].",
    "The [MASK] sleeps under a tree.",
    "She drinks a cup of [MASK].",
)


def texts(num_texts: int, seed: int) -> list[str]:
    """Return texts of everything that the demo encoders are to read, a few sentences each."""
    rng = random.Random(seed)
    return [_text(rng) for _ in range(num_texts)]


def _text(rng: random.Random) -> str:
    kind = rng.randrange(10)
    if kind < 4:
        return document(rng)[:300]
    if kind < 7:
        return " ".join(paraphrases(rng, rng.choice(TOPICS), rng.randint(1, 3)))
    if kind == 7:
        return review(rng)[0]
    if kind == 8:
        return named_sentence(rng)[0]
    passage = asked(rng)
    return f"{passage.question} {passage.context}"


def make(out: Path, steps: int, seed: int) -> None:
    """Train and save to ``out``/mask."""
    corpus = texts(NUM_TEXTS, seed)
    tokenizer = wordpiece_tokenizer()
    model = BertForMaskedLM(bert_config(tokenizer))
    set_sinusoids(model)
    sentences = [each for text in corpus for each in _SENTENCE_END.split(text) if len(each) > 12]
    short, long = Draw(sentences, 96, seed), Draw(corpus, 16, seed)
    noise = torch.Generator().manual_seed(seed)
    numbers = itertools.count(1)

    def batch() -> Batch:
        """Mostly sentences, of which attention learns fastest; a longer text now and then."""
        chosen = long() if next(numbers) % 8 == 0 else short()
        return hide(tokenizer, padded(tokenizer, chosen), noise)

    train(model, batch, steps=steps, learning_rate=1e-2, loss=guessing_loss, title="mask")
    save(model, tokenizer, out / "mask")


def hide(tokenizer: Any, batch: Batch, noise: torch.Generator) -> Batch:
    """Hide one token of five: ``labels`` has it there and -100 elsewhere (arXiv 1810.04805)."""
    ids = batch["input_ids"]  # (batch, seq)
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    hidden = (torch.rand(ids.shape, generator=noise) < 0.2) & ~special
    hidden[0, 1] = True  # at least one
    labels = ids.masked_fill(~hidden, -100)
    return {
        **batch,
        "input_ids": ids.masked_fill(hidden, tokenizer.mask_token_id),
        "labels": labels,
    }


def guessing_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Cross-entropy over what is hidden; only there are the vocabulary's logits computed."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    hidden = batch["labels"] >= 0
    states = model.bert(**inputs).last_hidden_state[hidden]  # (num_hidden, hidden_size)
    return functional.cross_entropy(model.cls(states), batch["labels"][hidden])


def show(out: Path) -> None:
    """Print what the saved model puts in the gaps of some sentences."""
    fill = pipeline("fill-mask", str(out / "mask"), device="cpu")
    for prompt in PROMPTS:
        found = fill(prompt, top_k=3)
        print(prompt, [f"{each['token_str']} {each['score']:.2f}" for each in found])
