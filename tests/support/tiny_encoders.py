"""Tiny encoder models with random weights, one of each architecture family, with a tokenizer.

Each is saved to a folder as a user's model would be. The words are few and the weights large, so
that answers differ from text to text.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

CONTEXT = 128
_TEXT = """
the a cat dog sat on mat and ran to house red green blue sky is was in of big small old new
Paris London Anna Peter lives works sees loves likes never always good bad very film food
. , ! ? ' - this that it he she they who where what when
"""
WORDS = _TEXT.split()
_PIECES = list("abcdefghijklmnopqrstuvwxyzäöüéß0123456789")
_SHAPE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
}
# transformers' model type -> what differs from _SHAPE, and whether its tokenizer is RoBERTa's kind.
ARCHITECTURES: dict[str, tuple[dict[str, Any], bool]] = {
    "bert": ({}, False),
    "distilbert": ({"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 64}, False),
    "roberta": ({"max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1}, True),
    "deberta-v2": (
        {
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
            "pooler_hidden_size": 32,
        },
        False,
    ),
    "mpnet": ({"max_position_embeddings": CONTEXT + 2}, True),
    "modernbert": (
        {"local_attention": 16, "global_attn_every_n_layers": 2, "reference_compile": False},
        False,
    ),
    "xlm-roberta": ({"max_position_embeddings": CONTEXT + 2, "type_vocab_size": 1}, True),
    "electra": ({"embedding_size": 16}, False),
    "albert": ({"embedding_size": 16, "inner_group_num": 1, "num_hidden_groups": 1}, False),
}


def tiny_encoder(architecture: str, auto_class: str, folder: Path, **config: Any) -> Path:
    """Saves a random model of ``auto_class`` (such as ``AutoModelForSequenceClassification``) and
    its tokenizer to ``folder``; the same one at every call. ``config`` overrides its configuration.
    """
    import transformers

    changes, is_roberta = ARCHITECTURES[architecture]
    tokenizer = tiny_tokenizer(architecture, is_roberta=is_roberta)
    values = {
        **_SHAPE,
        **changes,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        **config,
    }
    model_config = transformers.AutoConfig.for_model(architecture, **values)
    torch.manual_seed(7)
    model = getattr(transformers, auto_class).from_config(model_config).eval()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(architecture: str, *, is_roberta: bool | None = None) -> Any:
    """A WordPiece tokenizer with the special tokens, pairs and token types of the architecture."""
    from transformers import PreTrainedTokenizerFast

    roberta = ARCHITECTURES[architecture][1] if is_roberta is None else is_roberta
    cls, sep, pad, unk, mask = (
        ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
        if roberta
        else ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
    )
    # RoBERTa's kind counts positions from the padding id, which is 1 there.
    special = [cls, pad, sep, unk, mask] if roberta else [pad, cls, sep, unk, mask]
    pieces = [*_PIECES, *(f"##{piece}" for piece in _PIECES)]
    words = dict.fromkeys([*special, *(word.lower() for word in WORDS), *pieces])
    tokenizer = Tokenizer(WordPiece({w: i for i, w in enumerate(words)}, unk_token=unk))
    tokenizer.normalizer = BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {sep} $B {sep}" if roberta else f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, special.index(cls)), (sep, special.index(sep))],
    )
    takes_types = not roberta and architecture not in ("distilbert", "modernbert")
    names = ["input_ids", *(["token_type_ids"] if takes_types else []), "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=cls,
        sep_token=sep,
        bos_token=cls,
        eos_token=sep,
        pad_token=pad,
        unk_token=unk,
        mask_token=mask,
        model_max_length=CONTEXT,
        model_input_names=names,
    )


def texts(num_texts: int, *, longest: int = 60, seed: int = 1) -> list[str]:
    """Texts of 1 to ``longest`` words, the first and the last among the shortest and longest."""
    draw = random.Random(seed)
    lengths = [1, *(draw.randint(2, longest) for _ in range(num_texts - 2)), longest][:num_texts]
    return [" ".join(draw.choices(WORDS, k=length)) for length in lengths]


class Wrapping(torch.nn.Module):
    """A model with something behind it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config, self.dtype = model.config, model.dtype

    def forward(self, **inputs: torch.Tensor) -> Any:
        result = self.model(**inputs)
        result.last_hidden_state = self.changed(result.last_hidden_state)
        return result

    def changed(self, hidden: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError
