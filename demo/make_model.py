"""Make the demo model: compose a text, train a tokenizer and a small Llama on it, try it out.

Run as `python -m demo.make_model`. The text comes from demo/corpus alone, nothing is downloaded.
The same settings on the same machine give the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from demo.corpus.documents import document
from demo.training import Batch, be_deterministic, save_tokenizer, train

END, PAD = "<|endoftext|>", "<|pad|>"
VOCAB_SIZE = 2048
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTEXT = 1024  # tokens, max_position_embeddings
SHORT = 256  # tokens; most steps train on windows of this length, the last ones on CONTEXT
LONG_SHARE = 0.2
PROMPTS = (
    "I am going",
    "How can you be",
    "Once upon a time",
    "The old man",
    "What is",
    "Hello",
    "My name is",
    "In the morning",
    "She said that the computer",
    "Kubernetes 42 und Grüße 世界",
)


@dataclass(frozen=True)
class Settings:
    """What decides the bytes of the model."""

    num_documents: int
    steps: int
    tokens_per_step: int
    learning_rate: float
    seed: int


def compose(settings: Settings) -> list[str]:
    """Return the training documents."""
    rng = random.Random(settings.seed)
    numbers = tqdm(range(settings.num_documents), "composing", unit=" documents")
    return [document(rng) for _ in numbers]


def train_tokenizer(documents: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: any text goes through it and comes back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    )


class Windows:
    """Training windows over all documents, each followed by END."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]) -> None:
        end = tokenizer.eos_token_id
        ids: list[int] = []
        starts: list[int] = []
        for encoding in tokenizer.backend_tokenizer.encode_batch(list(documents)):
            starts.append(len(ids))
            ids += [*encoding.ids, end]
        self.ids = torch.tensor(ids + ids[:CONTEXT])  # (num_tokens + CONTEXT,)
        self.starts = torch.tensor(starts)  # (num_documents,)

    def batch(self, num_windows: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """Return (num_windows, length) token ids.

        Three windows of four begin with a document, as a prompt does; the others anywhere.
        """
        chosen = torch.randint(len(self.starts), (num_windows,), generator=generator)
        begin = self.starts[chosen]
        begin[::4] = torch.randint(len(self.ids) - CONTEXT, (len(begin[::4]),), generator=generator)
        return self.ids[begin[:, None] + torch.arange(length)]


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained Llama of about 1.6 million parameters with grouped-query attention."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    return model


def train_on_windows(model: LlamaForCausalLM, windows: Windows, settings: Settings) -> None:
    """Train in place; short windows first, then windows as long as the context."""
    generator = torch.Generator().manual_seed(settings.seed)
    numbers = itertools.count()

    def batch() -> Batch:
        is_long = next(numbers) >= settings.steps * (1 - LONG_SHARE)
        length = CONTEXT if is_long else SHORT
        ids = windows.batch(max(1, settings.tokens_per_step // length), length, generator)
        return {"input_ids": ids, "labels": ids}

    train(
        model,
        batch,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        loss=_bfloat16_loss,
    )


def _bfloat16_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):  # 1.7 times as fast where the CPU has it
        loss: torch.Tensor = model(**batch).loss
    return loss


def show_samples(folder: Path, num_tokens: int) -> None:
    """Load the saved model as a user would and print what it says, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    for ids in model.generate(**inputs, max_new_tokens=num_tokens, do_sample=False):
        print(repr(tokenizer.decode(ids).replace(PAD, "")))


def make(settings: Settings, folder: Path) -> None:
    """Compose, train and save to `folder`."""
    torch.manual_seed(settings.seed)
    documents = compose(settings)
    tokenizer = train_tokenizer(documents)
    model = new_model(tokenizer)
    train_on_windows(model, Windows(tokenizer, documents), settings)
    save_tokenizer(tokenizer, folder)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # a server may run as another user


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.make_model", description=__doc__)
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = parser.add_argument
    add("--out", type=Path, default=Path(__file__).parent / "model", help="folder to write to")
    add("--check", action="store_true", help="train nothing, only print samples of --out")
    add("--sample-tokens", type=int, default=60, help="length of the samples; 0 prints none")
    add("--documents", type=int, default=40_000, help="documents to compose")
    add("--steps", type=int, default=2_200, help="training steps")
    add("--tokens-per-step", type=int, default=1_536, help="tokens of one training step")
    add("--learning-rate", type=float, default=3e-3, help="highest learning rate")
    add("--seed", type=int, default=1, help="seed of the text, the weights and the order")
    add("--threads", type=int, default=1, help="CPU threads; another number, other bytes")
    options = parser.parse_args(arguments)
    be_deterministic(options.threads)
    if not options.check:
        settings = Settings(
            options.documents,
            options.steps,
            options.tokens_per_step,
            options.learning_rate,
            options.seed,
        )
        make(settings, options.out)
    if options.sample_tokens:
        show_samples(options.out, options.sample_tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
