"""Makes the measured encoder: MiniLM's shape with random weights, and its WordPiece tokenizer.

A word of the load is one token, so that lengths are exact. Knows nothing of servers.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel
from transformers.utils.logging import disable_progress_bar

from perf.encoders.check import MAX_MODEL_LEN, SIZE
from perf.load.requests import word

VOCABULARY_SIZE = 30_522
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NUM_WORDS = VOCABULARY_SIZE - len(SPECIAL_TOKENS)
SPECIAL_IDS = {token: NUM_WORDS + i for i, token in enumerate(SPECIAL_TOKENS)}
"""Behind the words, whose ids are the load's numbers."""


def bert_config() -> BertConfig:
    """6 layers of 384, 12 heads, 1,536 between: 22.7 M parameters, 10.6 M in linears."""
    return BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=SIZE,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=4 * SIZE,
        max_position_embeddings=MAX_MODEL_LEN,
        pad_token_id=SPECIAL_IDS["[PAD]"],
    )


def write_tokenizer(folder: Path) -> None:
    """WordPiece whose vocabulary holds every word of the load whole."""
    vocabulary = {word(i): i for i in range(NUM_WORDS)} | SPECIAL_IDS
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [(token, SPECIAL_IDS[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_MODEL_LEN,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def make_encoder(folder: Path, seed: int) -> int:
    """Write the checkpoint in float32 into ``folder``; return its number of parameters."""
    disable_progress_bar()
    torch.manual_seed(seed)
    model = BertModel(bert_config())
    with torch.no_grad():
        # Or embeddings would be made of places and types, and of all texts alike.
        model.embeddings.word_embeddings.weight *= 10
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return sum(p.numel() for p in model.parameters())
