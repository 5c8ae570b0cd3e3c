"""Tokenizers that spell otherwise than WordPiece, for the tiny encoders: bytes, or pieces with the
space before them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors, trainers

from tests.support.tiny_encoders import CONTEXT, WORDS, texts, tiny_encoder

VOCABULARY = 420
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def of_bytes(learned: list[str], size: int, special: list[str]) -> tokenizers.Tokenizer:
    """BPE over bytes; a character may be several tokens."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(learned, trainer)
    return made


def byte_level() -> tokenizers.Tokenizer:
    """RoBERTa's kind."""
    learned = [*texts(200), *(f"{word} {word.title()}" for word in WORDS)]
    made = of_bytes(learned, VOCABULARY, SPECIAL)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return made


def metaspace() -> tokenizers.Tokenizer:
    """XLM-R's kind: unigram pieces, "▁" where a word begins."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        texts(300),
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


KINDS = {"byte-level": byte_level, "metaspace": metaspace}


def other_tokenizer(kind: str) -> Any:
    """A tokenizer of one of ``KINDS`` as transformers has it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](),
        cls_token="<s>",
        sep_token="</s>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
    )


def spelt_otherwise(kind: str, auto_class: str, folder: Path, **config: Any) -> Path:
    """A tiny RoBERTa or XLM-R with a tokenizer of one of ``KINDS``."""
    architecture = {"byte-level": "roberta", "metaspace": "xlm-roberta"}[kind]
    tiny_encoder(architecture, auto_class, folder, vocab_size=VOCABULARY, **config)
    other_tokenizer(kind).save_pretrained(folder)
    return folder
