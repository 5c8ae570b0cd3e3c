"""Make the demo model: compose a text, train a tokenizer and a small Llama on it, try it out.

Run as `python -m demo.make_model`. The text comes from demo/corpus alone, nothing is downloaded.
The same settings on the same machine give the same bytes.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
from collections.abc import Iterator, Sequence
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

from demo.corpus.chats import chat
from demo.corpus.documents import document
from demo.training import Batch, adamw, be_deterministic, save_tokenizer, train

END, PAD = "<|endoftext|>", "<|pad|>"
TURN, TURN_END = "<|im_start|>", "<|im_end|>"  # before and after what each says in a chat
CALL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCAB_SIZE = 2048
FIRST_WORD = 258  # of the tokenizer's ids: before it are the marks of documents and the bytes
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTEXT = 1024  # tokens, max_position_embeddings
SHORT = 256  # tokens; most steps train on windows of this length, the last ones on CONTEXT
LONG_SHARE = 0.2
CHAT_TOKENS = 2048  # of one training step, when chats are learned
DOCUMENT_SHARE = 0.3  # beside chats
PERIODS = (8, 48)  # tokens after which what is copied repeats: at first, and the longest at last
_PARTS = re.compile(r"(\0|<\|im_start\|>assistant\n|<\|im_end\|>)")
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
WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SAID: tuple[tuple[str, list[dict[str, Any]] | None], ...] = (
    ("Hello", None),
    ("Who are you?", None),
    ("Tell me a story.", None),
    ("What is the weather in Paris?", None),
    ("What is the weather in Paris?", [{"type": "function", "function": WEATHER}]),
    ("Tom is 30 years old and lives in Paris. As JSON, please.", None),
)


@dataclass(frozen=True)
class Settings:
    """What decides the bytes of the model."""

    num_documents: int
    steps: int
    tokens_per_step: int
    learning_rate: float
    copy_steps: int
    num_chats: int
    chat_steps: int
    chat_learning_rate: float
    seed: int


def compose(settings: Settings) -> list[str]:
    """Return the training documents."""
    rng = random.Random(settings.seed)
    numbers = tqdm(range(settings.num_documents), "composing", unit=" documents")
    return [document(rng) for _ in numbers]


def compose_chats(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return chats as the template writes them, and some documents, so that none is forgotten."""
    rng = random.Random(settings.seed + 1)

    def one() -> str:
        if rng.random() < DOCUMENT_SHARE:
            return document(rng)
        said = chat(rng)
        tools = said.get("tools")
        return str(tokenizer.apply_chat_template(said["messages"], tools=tools, tokenize=False))

    return [one() for _ in tqdm(range(settings.num_chats), "composing", unit=" chats")]


def learned_parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield a text in parts, and whether each is learned: of a chat only what the assistant says.

    NUL, which is left out, turns it off and on.
    """
    learns = not text.startswith(TURN)
    for part in _PARTS.split(text):
        if part == "\0":
            learns = not learns
            continue
        is_begin = part.startswith(TURN)
        yield part, learns and not is_begin
        learns = (learns or is_begin) and part != TURN_END


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
    )


def add_marks(tokenizer: PreTrainedTokenizerFast) -> None:
    """Give the marks of chats tokens of their own, after those that documents need."""
    tokenizer.add_special_tokens({"additional_special_tokens": [TURN, TURN_END]})
    tokenizer.add_tokens(list(CALL_MARKS))


class Windows:
    """Training windows over all documents, each followed by END."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, documents: Sequence[str]) -> None:
        ids: list[int] = []
        labels: list[int] = []
        starts: list[int] = []
        for text in documents:
            starts.append(len(ids))
            parts = [*learned_parts(text), (END, True)]
            encoding = tokenizer.backend_tokenizer.encode("".join(part for part, _ in parts))
            learns = [learns for part, learns in parts for _ in part]
            ids += encoding.ids
            labels += [
                token if learns[start] else -100
                for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True)
            ]
        self.ids = torch.tensor(ids + ids[:CONTEXT])  # (num_tokens + CONTEXT,)
        self.labels = torch.tensor(labels + labels[:CONTEXT])
        self.starts = torch.tensor(starts)  # (num_documents,)

    def batch(self, num_windows: int, length: int, generator: torch.Generator) -> Batch:
        """Return (num_windows, length) token ids and labels.

        Three windows of four begin with a document, as a prompt does; the others anywhere.
        """
        chosen = torch.randint(len(self.starts), (num_windows,), generator=generator)
        begin = self.starts[chosen]
        begin[::4] = torch.randint(len(self.ids) - CONTEXT, (len(begin[::4]),), generator=generator)
        where = begin[:, None] + torch.arange(length)
        return {"input_ids": self.ids[where], "labels": self.labels[where]}


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
        return windows.batch(max(1, settings.tokens_per_step // length), length, generator)

    train(
        model,
        batch,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        loss=_bfloat16_loss,
    )


class Repeats:
    """Random tokens that repeat after a number of them, each row's its own.

    All begin at one distance, which a model learns in a hundred steps; the distances grow apart as
    the loss falls, so that only looking for the same words helps (induction heads,
    https://arxiv.org/abs/2209.11895).
    """

    def __init__(self, seed: int, spread: float = 0.0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.spread = spread  # of the distances, in tokens

    def batch(self, num_rows: int, length: int) -> Batch:
        """Return (num_rows, length) token ids and labels: the first round is not learned."""
        first = PERIODS[0]
        low, high = max(3, int(first - self.spread / 2)), int(first + self.spread)
        periods = torch.randint(low, high + 1, (num_rows, 1), generator=self.generator)
        where = torch.arange(length)[None]
        shape = (num_rows, length)
        tokens = torch.randint(FIRST_WORD, VOCAB_SIZE, shape, generator=self.generator)
        ids = tokens.gather(1, where % periods)
        return {"input_ids": ids, "labels": ids.masked_fill(where <= periods, -100)}

    def loss(self, model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
        """The mean over what is learned; below 1 the next batch is harder."""
        loss = _loss_of_learned(model, batch)
        if loss.item() < 1:
            self.spread = min(self.spread + 0.25, PERIODS[1] - PERIODS[0])
        return loss


def train_to_copy(model: LlamaForCausalLM, settings: Settings) -> None:
    """Train in place to go on as the text went before, whatever it is.

    Chats alone teach no copying: 720 steps of them left every tool's name and value to chance.
    """
    repeats = Repeats(settings.seed)
    train(
        model,
        lambda: repeats.batch(CHAT_TOKENS // 64, 64),
        steps=settings.copy_steps,
        learning_rate=settings.chat_learning_rate,
        optimizers_of=adamw,
        loss=repeats.loss,
        title="copying",
    )


def train_on_chats(model: LlamaForCausalLM, windows: Windows, settings: Settings) -> None:
    """Train in place, with a row of repeats in each step, so that copying is not forgotten."""
    generator = torch.Generator().manual_seed(settings.seed)
    repeats = Repeats(settings.seed + 1, PERIODS[1] - PERIODS[0])

    def batch() -> Batch:
        chats = windows.batch(CHAT_TOKENS // SHORT, SHORT, generator)
        copied = repeats.batch(1, SHORT)
        return {name: torch.cat((chats[name], copied[name])) for name in chats}

    train(
        model,
        batch,
        steps=settings.chat_steps,
        learning_rate=settings.chat_learning_rate,
        optimizers_of=adamw,
        loss=_loss_of_learned,
        title="chats",
    )


def _loss_of_learned(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """The mean over what is learned; logits are computed of nothing else."""
    states = model.model(batch["input_ids"][:, :-1]).last_hidden_state
    labels = batch["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(
        model.lm_head(states[labels >= 0]), labels[labels >= 0]
    )


def _bfloat16_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):  # 1.7 times as fast where the CPU has it
        loss: torch.Tensor = model(**batch).loss
    return loss


def show_samples(folder: Path, num_tokens: int) -> None:
    """Load the saved model as a user would and print what it says, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": said}],
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
        )
        for said, tools in SAID
    ]
    inputs = tokenizer([*PROMPTS, *chats], return_tensors="pt", padding=True)
    for ids in model.generate(**inputs, max_new_tokens=num_tokens, do_sample=False):
        print(repr(tokenizer.decode(ids).replace(PAD, "")))


def make(settings: Settings, folder: Path, reader: Path | None) -> None:
    """Compose, train and save to `folder`; a `reader` is a model that has learned documents."""
    torch.manual_seed(settings.seed)
    tokenizer: Any
    model: Any
    if reader is None:
        documents = compose(settings)
        tokenizer = train_tokenizer(documents)
        model = new_model(tokenizer)
        train_on_windows(model, Windows(tokenizer, documents), settings)
    else:
        tokenizer = AutoTokenizer.from_pretrained(reader)
        for added in ("is_local", "local_files_only"):  # by loading
            tokenizer.init_kwargs.pop(added, None)
        model = AutoModelForCausalLM.from_pretrained(reader)
    torch.manual_seed(settings.seed)
    learn_to_chat(model, tokenizer, settings)
    save_tokenizer(tokenizer, folder)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # a server may run as another user


def learn_to_chat(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: Settings
) -> None:
    """Train in place, after documents; the ends of a turn and of a document end an answer."""
    add_marks(tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    chats = compose_chats(settings, tokenizer)
    train_to_copy(model, settings)
    train_on_chats(model, Windows(tokenizer, chats), settings)
    ends = tokenizer.convert_tokens_to_ids([TURN_END, END])
    model.generation_config.eos_token_id = ends


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
    add("--copy-steps", type=int, default=600, help="steps of learning to copy, after documents")
    add("--chats", type=int, default=20_000, help="chats to compose")
    add("--chat-steps", type=int, default=1_200, help="training steps on chats, after the others")
    add("--chat-learning-rate", type=float, default=2e-3, help="highest learning rate of these")
    add("--reader", type=Path, help="a model that has learned documents: only chats are learned")
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
            options.copy_steps,
            options.chats,
            options.chat_steps,
            options.chat_learning_rate,
            options.seed,
        )
        make(settings, options.out, options.reader)
    if options.sample_tokens:
        show_samples(options.out, options.sample_tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
