"""A model whose only tokenizer is sentencepiece's file is tokenized as that file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from hf_triton.runtime.weights.weight_loading import load_tokenizer
from tests.support.served_models import served_model

TEXT = "the cat sat on green hills where old friends met again"
# model type -> the file's name, and what the files beside it say
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}),
    "mt5": ("spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}),
    "pegasus": ("spiece.model", {"tokenizer_class": "PegasusTokenizer"}),
    "albert": ("spiece.model", {"tokenizer_class": "AlbertTokenizer"}),
    "xlm-roberta": ("sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}),
    "llama": ("tokenizer.model", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
}


def pieces_file(folder: Path, kind: str, path: Path) -> sentencepiece.SentencePieceProcessor:
    """Trains a model of sentencepiece: a family's kind of pieces, of a few words."""
    corpus = folder / "corpus.txt"
    corpus.write_text(f"{TEXT}\nhello world, summer rain fell slowly over the park\n" * 20)
    train: Any = sentencepiece.SentencePieceTrainer.train
    train(
        input=str(corpus),
        model_prefix=str(folder / "trained"),
        model_type="bpe" if kind == "llama" else "unigram",
        vocab_size=80 if kind != "llama" else 60,
        hard_vocab_limit=False,
        minloglevel=2,
        **({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if kind == "pegasus" else {}),
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]", "<pad>"] if kind == "albert" else [],
    )
    (folder / "trained.model").rename(path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_with_nothing_but_sentencepieces_file_is_tokenized(
    kind: str, tmp_path: Path
) -> None:
    name, config = FAMILIES[kind]
    folder = tmp_path / "model"
    folder.mkdir()
    pieces = pieces_file(tmp_path, kind, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(served_model(tmp_path, model="model", local=True), folder)
    tokens = tokenizer.tokenize(TEXT)
    assert tokens == pieces.encode(TEXT, out_type=str)
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.unk_token_id not in ids
