"""text2text-generation: a T5 that translates simple sentences between English and German."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from demo.corpus.german import translated
from demo.task_models.encoder import BatchSampler
from demo.training import Batch, save, train

STEPS = 800
TO_GERMAN, TO_ENGLISH = "translate English to German: ", "translate German to English: "
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
VOCAB_SIZE = 400
PROMPTS = (
    TO_GERMAN + "The old man loves the small dog.",
    TO_GERMAN + "Today I see a beautiful bird.",
    TO_ENGLISH + "Die Katze schläft im Garten.",
)


def sentences(num_pairs: int, seed: int) -> list[tuple[str, str]]:
    """Return prompts with their translations, one direction after the other."""
    rng = random.Random(seed)
    pairs = [translated(rng) for _ in range(num_pairs)]
    return [
        (TO_GERMAN + english, german) if number % 2 else (TO_ENGLISH + german, english)
        for number, (english, german) in enumerate(pairs)
    ]


def make(out: Path, steps: int, seed: int) -> None:
    """Train a tokenizer and a model and save them to ``out``/translate."""
    examples = sentences(20_000, seed)
    tokenizer = _train_tokenizer([text for pair in examples for text in pair])
    model = T5ForConditionalGeneration(_config(tokenizer))
    model.generation_config = _generation_config(model.config)
    draw = BatchSampler(examples, 64, seed)

    def batch() -> Batch:
        return _batch(tokenizer, draw())

    train(model, batch, steps=steps, learning_rate=1e-2, title="translate")
    save(model, tokenizer, out / "translate")


def _train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A BPE tokenizer with T5's mark for spaces, ``</s>`` after each text."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    special = [PAD, END, UNKNOWN]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, special.index(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def _config(tokenizer: Any) -> T5Config:
    """A T5 of two and two layers, 64 wide; task_specific_params names its two directions."""
    directions = {
        "translation_en_to_de": {"prefix": TO_GERMAN},
        "translation_de_to_en": {"prefix": TO_ENGLISH},
    }
    outside: Any = {  # no fields of T5Config's own
        "decoder_start_token_id": tokenizer.pad_token_id,
        "task_specific_params": directions,
    }
    return T5Config(
        vocab_size=len(tokenizer),
        d_model=64,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
        **outside,
    )


def _generation_config(config: Any) -> GenerationConfig:
    return GenerationConfig(
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        max_new_tokens=64,
    )


def _batch(tokenizer: Any, pairs: list[Any]) -> Batch:
    prompts, targets = zip(*pairs, strict=True)
    found = dict(tokenizer(list(prompts), padding=True, return_tensors="pt"))
    found.pop("token_type_ids", None)
    labels = tokenizer(list(targets), padding=True, return_tensors="pt")["input_ids"]
    return {**found, "labels": labels.masked_fill(labels == tokenizer.pad_token_id, -100)}


def translations(folder: Path, prompts: list[str]) -> list[str]:
    """Return what the saved model makes of the prompts, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)
    inputs = tokenizer(prompts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        ids = model.generate(**inputs, do_sample=False)
    texts: list[str] = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts


def show(out: Path) -> None:
    """Print some translations of the saved model."""
    for prompt, text in zip(PROMPTS, translations(out / "translate", [*PROMPTS]), strict=True):
        print(f"{prompt} -> {text}")
