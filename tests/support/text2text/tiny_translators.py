"""Tiny encoder-decoders with random weights, one of each family, with a tokenizer of its own kind.

Each is saved to a folder as a user's model would be, with the settings for generation that its
family's checkpoints have: starts, forced tokens, bad words, lengths, beams.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import torch

from tests.support.other_tokenizers import of_bytes
from tests.support.tiny_models import BART_SHAPE, T5_SHAPE, with_large_weights

_SENTENCE = """
the cat sat on a mat and dogs run in park while birds sing of hello world summer rain fell slowly
over green hills where old friends met again
"""
WORDS = _SENTENCE.split()
CONTEXT = 64
# As facebook/bart-large-cnn has them, but for the numbers.
SUMMARY: dict[str, Any] = {
    "num_beams": 4,
    "min_length": 8,
    "max_length": 24,
    "no_repeat_ngram_size": 3,
    "length_penalty": 2.0,
    "early_stopping": True,
}
_UNTIED = {"tie_word_embeddings": False}  # tied, such models mostly repeat the last token
_BART = {**BART_SHAPE, **_UNTIED, "max_position_embeddings": CONTEXT}
_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def texts() -> list[str]:
    """Inputs of 1 to 20 words."""
    lengths = (3, 12, 1, 20)
    return [
        " ".join(WORDS[(7 * n + k) % len(WORDS)] for k in range(length))
        for n, length in enumerate(lengths)
    ]


def make(name: str, folder: Path, **settings: Any) -> Path:
    """Saves the model ``name`` of FAMILIES; ``settings`` go over its settings for generation."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, model_type, config, own = FAMILIES[name](folder)
    tokenizer.save_pretrained(folder)
    config = {"vocab_size": len(tokenizer), **config}
    codes = getattr(tokenizer, "lang_code_to_id", {})
    num_words = min(codes.values(), default=config["vocab_size"])
    _save_model(folder, model_type, config, {**own, **settings}, num_words)
    return folder


def _save_model(
    folder: Path, model_type: str, config: dict[str, Any], own: dict[str, Any], num_words: int
) -> None:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig

    made = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(model_type, **config))
    model = with_large_weights(made)
    with torch.no_grad():
        # Most of a tiny vocabulary are languages: let outputs be words all the same.
        model.get_output_embeddings().weight[num_words:] *= 0.01
    special = {key: config[key] for key in config if key.endswith("_token_id")}
    model.generation_config = GenerationConfig(**{**special, **own})
    model.save_pretrained(folder)


def _pieces(folder: Path) -> tuple[Path, list[tuple[str, float]]]:
    """A trained sentencepiece model, and its pieces with their scores, without special ones."""
    corpus = folder / "corpus.txt"
    lines = [" ".join(WORDS[n : n + 7]) for n in range(len(WORDS))]
    corpus.write_text("\n".join(lines * 20))
    prefix = folder / "pieces"
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(prefix),
        vocab_size=80,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    corpus.unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    ids = range(3, model.GetPieceSize())
    return prefix.with_suffix(".model"), [(model.IdToPiece(i), model.GetScore(i)) for i in ids]


def _vocabulary(folder: Path, tokens: list[str]) -> str:
    path = folder / "vocabulary.json"
    path.write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    return str(path)


_Family = tuple[Any, str, dict[str, Any], dict[str, Any]]


def _t5(folder: Path) -> _Family:
    from transformers import T5Tokenizer

    _, pieces = _pieces(folder)
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = T5Tokenizer(vocab=[*special, *pieces], extra_ids=0)
    config = {
        **T5_SHAPE,
        **_UNTIED,
        "n_positions": CONTEXT,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "task_specific_params": {
            "summarization": {"prefix": "summarize: ", **SUMMARY},
            "translation_en_to_de": {"prefix": "translate English to German: "},
        },
    }
    return tokenizer, "t5", config, {}


def _bart(folder: Path) -> _Family:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    backend = of_bytes([" ".join(WORDS)] * 9, 320, ["<s>", "<pad>", "</s>", "<unk>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=CONTEXT,
    )
    own = {"forced_bos_token_id": 0, "forced_eos_token_id": 2, **SUMMARY}
    return tokenizer, "bart", {**_BART, **_IDS}, own


def _marian(folder: Path) -> _Family:
    from transformers import MarianTokenizer

    model, pieces = _pieces(folder)
    marks = [">>fra<<", ">>deu<<"]
    tokens = ["</s>", "<unk>", *(piece for piece, _ in pieces), *marks, "<pad>"]
    tokenizer = MarianTokenizer(
        str(model),
        str(model),
        _vocabulary(folder, tokens),
        source_lang="en",
        target_lang="roa",
        model_max_length=CONTEXT,
    )
    pad = len(tokens) - 1
    config = {
        **_BART,
        "eos_token_id": 0,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": None,
        "scale_embedding": True,
    }
    own = {
        "bad_words_ids": [[pad]],
        "forced_eos_token_id": 0,
        "num_beams": 6,
        "max_length": CONTEXT,
    }
    return tokenizer, "marian", config, own


def _m2m100(folder: Path) -> _Family:
    from transformers import M2M100Tokenizer
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    model, pieces = _pieces(folder)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, _ in pieces)]
    tokenizer = M2M100Tokenizer(
        _vocabulary(folder, tokens),
        str(model),
        additional_special_tokens=[f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]],
    )
    size = 1 + max(tokenizer.lang_code_to_id.values())
    own = {"max_length": 30, "num_beams": 5, "early_stopping": True}
    return tokenizer, "m2m_100", {**_BART, **_IDS, "vocab_size": size}, own


def _mbart(folder: Path) -> _Family:
    """As facebook/mbart-large-en-ro: the decoder starts with its language."""
    from transformers import MBartTokenizer

    tokenizer = MBartTokenizer(vocab=_unigram(folder))
    start = tokenizer.lang_code_to_id["ro_RO"]
    config = {**_BART, **_IDS, "decoder_start_token_id": start}
    return tokenizer, "mbart", config, {"max_length": 30, "num_beams": 5}


def _mbart50(folder: Path) -> _Family:
    from transformers import MBart50Tokenizer

    tokenizer = MBart50Tokenizer(vocab=_unigram(folder))
    return tokenizer, "mbart", {**_BART, **_IDS}, {"max_length": 30, "num_beams": 5}


def _nllb(folder: Path) -> _Family:
    from transformers import NllbTokenizer

    letters = ["▁", *sorted(set("".join(WORDS)))]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(f"▁{letter}" for letter in letters[1:])]
    merges: Any = [("▁", letter) for letter in letters[1:]]
    tokenizer = NllbTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,
    )
    config = {**_BART, **_IDS, "max_position_embeddings": 128}
    return tokenizer, "m2m_100", config, {"max_length": 30}


def _unigram(folder: Path) -> list[tuple[str, float]]:
    _, pieces = _pieces(folder)
    return [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces]


FAMILIES: dict[str, Callable[[Path], _Family]] = {
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "m2m100": _m2m100,
    "mbart": _mbart,
    "mbart50": _mbart50,
    "nllb": _nllb,
}
