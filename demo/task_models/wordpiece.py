"""The tokenizer that all demo encoders share: a lower-casing WordPiece one, as BERT's.

Its vocabulary is a file that `python -m demo.task_models.wordpiece` wrote. The trainer chooses
differently among equally frequent pieces each time, so the file is kept and not made again.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from demo.corpus.encoder_texts import NUM_TEXTS, texts

VOCABULARY = Path(__file__).parents[1] / "corpus" / "wordpieces.txt"
VOCAB_SIZE = 1000
LONGEST = 128  # tokens
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of VOCABULARY: ``[CLS] text [SEP]``, with token types."""
    pieces = VOCABULARY.read_text(encoding="utf-8").split()
    tokenizer = _split_into_words({piece: number for number, piece in enumerate(pieces)})
    tokenizer.decoder = decoders.WordPiece()
    marks = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LONGEST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **SPECIAL,
    )


def _split_into_words(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def choose_vocabulary(texts: Iterable[str]) -> list[str]:
    """Return the pieces that a WordPiece trainer chooses, special tokens first."""
    tokenizer = _split_into_words({})
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789.,:;!?'\"-()"),
        limit_alphabet=80,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=lambda piece: numbers[piece])


if __name__ == "__main__":
    chosen = choose_vocabulary(texts(NUM_TEXTS, seed=1))
    lines = textwrap.wrap(" ".join(chosen), 100, break_long_words=False, break_on_hyphens=False)
    VOCABULARY.write_text("\n".join(lines) + "\n", encoding="utf-8")
