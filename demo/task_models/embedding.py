"""feature-extraction: a sentence-transformers model, trained to bring paraphrases together."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from transformers import AutoModel, AutoTokenizer, BertModel

from demo.corpus.paraphrases import TOPICS, paraphrases
from demo.task_models.encoder import BatchSampler, load_base, padded
from demo.task_models.wordpiece import LONGEST
from demo.training import Batch, save, train

STEPS = 600
PROMPTS = {"query": "query: ", "passage": "passage: "}
_SHARPNESS = 20.0  # sentence-transformers' scale of cosines in MultipleNegativesRankingLoss
SENTENCES = (
    "A dog sleeps under a tree.",
    "In the shade of a tree lies a sleeping dog.",
    "The price of the lamp is twenty coins.",
    "You have to pay twenty coins for the lamp.",
    "It is raining hard.",
    "Heavy rain falls from the clouds.",
)


def pairs(num_pairs: int, seed: int) -> list[tuple[str, str]]:
    """Return sentences that say the same; of one in four both have the prompts before them."""
    rng = random.Random(seed)
    found = []
    for number in range(num_pairs):
        one, other = paraphrases(rng, rng.choice(TOPICS), 2)
        prompts = (PROMPTS["query"], PROMPTS["passage"]) if number % 4 == 0 else ("", "")
        found.append((prompts[0] + one, prompts[1] + other))
    return found


def make(out: Path, steps: int, seed: int) -> None:
    """Train from the fill-mask model and save to ``out``/embedding."""
    tokenizer, model = load_base(out, BertModel)
    draw = BatchSampler(pairs(8_000, seed), 48, seed)

    def batch() -> Batch:
        ones, others = zip(*draw(), strict=True)
        return padded(tokenizer, [*ones, *others])

    train(model, batch, steps=steps, learning_rate=3e-3, loss=contrastive_loss, title="embedding")
    save(model, tokenizer, out / "embedding")
    for name, content in layout().items():
        path = out / "embedding" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def contrastive_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Each sentence is to be nearest to its pair among all pairs of the batch (InfoNCE)."""
    ones, others = embed(model, batch).chunk(2)  # each (num_pairs, hidden)
    scores = _SHARPNESS * ones @ others.T
    right = torch.arange(len(ones))
    return (functional.cross_entropy(scores, right) + functional.cross_entropy(scores.T, right)) / 2


def embed(model: Any, batch: Batch) -> torch.Tensor:
    """Mean over the tokens, of length 1: (batch, hidden)."""
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def layout() -> dict[str, Any]:
    """Return what sentence-transformers reads beside the model's own files."""
    steps = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path,
         "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(steps)
    ]  # fmt: skip
    modes = ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling: dict[str, Any] = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    pooling |= {f"pooling_mode_{mode}": False for mode in modes}
    return {
        "modules.json": modules,
        "1_Pooling/config.json": {**pooling, "include_prompt": True},
        "2_Normalize/config.json": {},
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": PROMPTS,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def show(out: Path) -> None:
    """Print the cosines of some sentences."""
    folder = out / "embedding"
    model = AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        vectors = embed(model, padded(AutoTokenizer.from_pretrained(folder), SENTENCES))
    for text, row in zip(SENTENCES, (vectors @ vectors.T).tolist(), strict=True):
        print(f"{text:45}", " ".join(f"{cosine:5.2f}" for cosine in row))
