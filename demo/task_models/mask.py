"""fill-mask: a BERT that was trained to guess masked words; the other encoders begin with it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from transformers import BertForMaskedLM, pipeline

from demo.corpus.encoder_texts import NUM_TEXTS, texts
from demo.task_models.encoder import BatchSampler, bert_config, padded, set_sinusoids
from demo.task_models.wordpiece import wordpiece_tokenizer
from demo.training import Batch, save, train

STEPS = 1200
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
PROMPTS = (
    "I am going to the [MASK].",
    "The [MASK] sleeps under a tree.",
    "She drinks a cup of [MASK].",
)


def make(out: Path, steps: int, seed: int) -> None:
    """Train and save to ``out``/mask."""
    corpus = texts(NUM_TEXTS, seed)
    tokenizer = wordpiece_tokenizer()
    model = BertForMaskedLM(bert_config(tokenizer))
    set_sinusoids(model)
    sentences = [each for text in corpus for each in _SENTENCE_END.split(text) if len(each) > 12]
    short, long = BatchSampler(sentences, 96, seed), BatchSampler(corpus, 16, seed)
    noise = torch.Generator().manual_seed(seed)
    numbers = itertools.count(1)

    def batch() -> Batch:
        """Mostly sentences, of which attention learns fastest; a longer text now and then."""
        chosen = long() if next(numbers) % 8 == 0 else short()
        return mask_tokens(tokenizer, padded(tokenizer, chosen), noise)

    train(model, batch, steps=steps, learning_rate=1e-2, loss=masked_lm_loss, title="mask")
    save(model, tokenizer, out / "mask")


def mask_tokens(tokenizer: Any, batch: Batch, noise: torch.Generator) -> Batch:
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


def masked_lm_loss(model: Any, batch: Batch) -> torch.Tensor:
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
