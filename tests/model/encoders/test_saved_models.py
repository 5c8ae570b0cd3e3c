"""Models that sentence-transformers has saved answer as its release 6.2 does (saved_models.py), and
what changes answers and is not served is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wire import Array

from hf_triton.encoder.encoder_loading import EncoderFiles
from hf_triton.encoder.options import EncoderOptions
from hf_triton.encoder.runners.encoder_runner import reference_forward
from hf_triton.encoder.sentence_transformers import keys
from hf_triton.encoder.task import EncoderTask
from hf_triton.feature_extraction.embedding import OUTPUTS, FeatureExtraction
from hf_triton.feature_extraction.options import Options as EmbeddingOptions
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.text_classification.classification import TextClassification
from hf_triton.text_classification.options import Options as ClassifierOptions
from tests.support.encoder_setups import served_model
from tests.support.saved_models import (
    ANSWERS,
    CASES,
    Case,
    kept,
    save,
    write_json,
)
from tests.support.served_encoder import fields

EXPECTED = json.loads(ANSWERS.read_text(encoding="utf-8"))
CPU = Placement("cpu", {"": "cpu"})


class Loaded:
    """A saved model without a runner, which another test holds to the model's own forward."""

    def __init__(self, case: Case, folder: Path, saved: Path | None = None) -> None:
        kind: type[EncoderTask] = FeatureExtraction
        options: EncoderOptions = EmbeddingOptions(truncation=True)
        task = "feature-extraction"
        if case.is_cross_encoder:
            kind, options = TextClassification, ClassifierOptions(truncation=True)
            task = "text-classification"
        files = saved or save(case, folder / "model")
        served = served_model(files, folder, task=task, dtype="float32")
        self.setup, self.task = EncoderFiles(served, options, kind).setup(CPU)
        self.kind = case.kind

    @torch.inference_mode()
    def answers(self, given: dict[str, Any]) -> Mapping[str, Array]:
        listed = {"score"} if self.kind == "CrossEncoder" else OUTPUTS
        prepared = self.task.prepare(fields(**given), frozenset(listed))
        outputs = [reference_forward(self.setup, one) for one in prepared.encodings]
        reduced = self.task.reduce(outputs, prepared.encodings)
        return prepared.answer([one.float().numpy() for one in reduced])

    def answer(self, text: Any, prompt_name: str | None = None) -> Array:
        pair = text if isinstance(text, tuple) else (text,)
        given = dict(zip(("text_input", "text_pair"), pair, strict=False))
        given |= {"prompt_name": prompt_name} if prompt_name else {}
        found = self.answers(given)
        if self.kind != "SparseEncoder":
            (only,) = found.values()
            return only
        whole = np.zeros(self.setup.model.config.vocab_size, np.float32)
        whole[found["token_ids"]] = found["weights"]
        return whole


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    loaded = Loaded(case, tmp_path)
    names = [case.prompt_name] * len(case.texts)
    if case.kind == "MultiVectorEncoder":
        names[0] = "query"
    got = [loaded.answer(*one) for one in zip(case.texts, names, strict=True)]
    found = [kept(case.kind, one) for one in got]
    np.testing.assert_allclose(found, EXPECTED[name], atol=1e-4 if len(found[0]) != 6 else 2e-5)


_BERT, _RERANKER = CASES["release 6"], CASES["cross-encoder, Identity"]
_IN = "sentence_bert_config.json"
_VECTORS = "is not served here: it belongs to models of many vectors"


@pytest.mark.parametrize(
    "case, changes, message",
    [
        (_BERT, {"tokenizer_name_or_path": "x"}, f"{_IN}: tokenizer_name_or_path is not served"),
        (_BERT, {"query_length": 32}, f"{_IN}: query_length {_VECTORS}"),
        (_BERT, {"query_expansion": {"length": 32}}, f"{_IN}: query_expansion {_VECTORS}"),
        (_BERT, {"later_key": 1}, f"{_IN}: later_key is not known here, known: backend"),
        (_BERT, {"model_kwargs": {"x": 1}}, f"{_IN}: model_kwargs: x is not known here"),
        (_BERT, {"config_args": {"subfolder": "x"}}, f"{_IN}: config_args: subfolder is not"),
        (_BERT, {"tokenizer_args": {"vocab_file": "/x"}}, "tokenizer_args: vocab_file is not"),
        (_BERT, {"transformer_task": "fill-mask"}, "transformer_task: got fill-mask, expected f"),
        (_BERT, {"module_output_name": "x"}, "module_output_name: got 'x', expected token_emb"),
        (
            _BERT,
            {"modality_config": {"text": {"method": "get_text_features"}}},
            "text: method: got 'get_text_features', expected forward",
        ),
        (
            _BERT,
            {"processing_kwargs": {"text": {"stride": 3}}},
            f"{_IN}: processing_kwargs: text: stride is not known here",
        ),
        (
            _BERT,
            {"processing_kwargs": {"text": {"truncation": "x"}}},
            f"{_IN}: processing_kwargs: truncation: got 'x', known: longest_first",
        ),
        (
            _BERT,
            {"modality_config": {"text": {}, "message": {}}},
            f"{_IN}: modality_config: message is not served here: its texts are messages",
        ),
        (_RERANKER, {"transformer_task": "text-generation"}, "a decoder that reranks by the score"),
    ],
)
def test_what_changes_answers_and_is_not_followed_is_refused(
    case: Case, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    changed = replace(case, transformer={**case.transformer, **changes})
    with pytest.raises(LoadError, match=message):
        Loaded(changed, tmp_path)


_SENTENCES = "config_sentence_transformers.json"


@pytest.mark.parametrize(
    "file, value, message",
    [
        ("modules.json", ["WeightedLayerPooling"], "not served here: it computes on the tokens'"),
        ("modules.json", ["CLIPModel"], "CLIPModel is not served here"),
        ("modules.json", ["LogitScore"], "a decoder that reranks by the score of a word"),
        (
            "modules.json",
            ["Transformer", "Normalize", "Pooling"],
            "begins with Transformer, Pooling",
        ),
        ("modules.json", ["Transformer", "Pooling", "Pooling"], "begins with Transformer, Pooling"),
        (_IN, {"max_seq_length": "x"}, "max_seq_length: got 'x', expected a whole number"),
        (_IN, {"max_seq_length": 0}, "max_seq_length: got 0, expected a whole number from 1"),
        (_SENTENCES, {"truncate_dim": True}, "truncate_dim: got True, expected a whole"),
        (_SENTENCES, {"prompts": {"a": 1}}, "prompts: an object of texts was expected"),
        (_SENTENCES, {"model_type": "CrossEncoder"}, "serves SentenceTr"),
        (
            _SENTENCES,
            {"requirements": {"transformers": ">99"}},
            "requirements: transformers >99 is asked for, got transformers",
        ),
        ("1_Pooling/config.json", {"pooling": "mean"}, "1_Pooling/config.json: pooling is not"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode median, known: cls"),
        ("2_Dense/config.json", {"module_input_name": "x"}, "2_Dense/config.json: module_input_n"),
        ("2_Dense/config.json", {"in_features": 31}, "in_features is 31, but vectors of 32"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "is not a module of torch"),
        ("2_Dense/config.json", {"out_features": 5}, "2_Dense: RuntimeError: .* size mismatch"),
    ],
)
def test_files_of_something_else_are_refused(
    file: str, value: Any, message: str, tmp_path: Path
) -> None:
    case = replace(_BERT, later=("Dense",))
    model = save(case, tmp_path / "model")
    if isinstance(value, list):
        kinds = ("sentence_transformers.models." + kind for kind in value)
        value = [{"path": "1_Pooling", "type": kind} for kind in kinds]
    else:
        value = {**json.loads((model / file).read_text()), **value}
    write_json(model / file, value)
    with pytest.raises(LoadError, match=message):
        Loaded(case, tmp_path, model)


@pytest.mark.parametrize("function", ["my.Own", "torch.nn.Linear", "torch.load"])
def test_an_activation_that_is_no_function_of_torch_is_refused(
    function: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=f"activation_fn {function} is no"):
        Loaded(replace(_RERANKER, whole={**_RERANKER.whole, "activation_fn": function}), tmp_path)


# The files and objects, as docs/encoders.md lists them.
TABLES: dict[str, keys.Keys] = {
    keys.WHOLE_FILE: keys.WHOLE,
    f"{keys.MODULES_FILE}: each module": keys.Keys(followed=("path", "type"), others="harmless"),
    keys.TRANSFORMER_FILES[0]: keys.TRANSFORMER,
    "… `model_kwargs`, `model_args`": keys.MODEL_KWARGS,
    "… `processor_kwargs`, `tokenizer_args`": keys.PROCESSOR_KWARGS,
    "… `config_kwargs`, `config_args`": keys.CONFIG_KWARGS,
    "… `modality_config`": keys.MODALITIES,
    "… `modality_config`: each modality": keys.MODALITY,
    "… `processing_kwargs`": keys.PROCESSING,
    "… `processing_kwargs`: `text`, `common`": keys.TEXT,
    "N_Pooling/config.json": keys.POOLING,
    "N_SpladePooling/config.json": keys.SPLADE,
    "N_MultiVectorMask/config.json": keys.MASK,
    "N_Dense/config.json": keys.DENSE,
    "N_LayerNorm/config.json": keys.LAYER_NORM,
    "N_Normalize/config.json": keys.NORMALIZE,
    "N_Dropout/config.json": keys.DROPOUT,
    # transformers' own; these are what makes scores of a cross-encoder's logits.
    "config.json": keys.Keys(
        followed=("sentence_transformers", "sbert_ce_default_activation_function", "problem_type"),
        others="followed",
    ),
}


def table() -> str:
    """The keys of keys.py that are followed or refused, as docs/encoders.md shows them."""
    lines = ["| | followed | refused |", "|---|---|---|"]
    for name, found in TABLES.items():
        given = {"followed": found.followed, "refused": found.refused}
        words = {column: [f"`{key}`" for key in row] for column, row in given.items()}
        if found.others in words:
            words[found.others].append("others")
        if any(words.values()):
            cells = "".join(f"| {', '.join(row)} " for row in ([name], *words.values()))
            lines.append(f"{cells}|")
    refused = ", ".join(f"`{name}`" for name in keys.REFUSED_MODULES)
    served = ", ".join(f"`{name}`" for name in keys.SERVED_MODULES)
    return "\n".join([*lines, f"| modules | {served} | {refused}, others |"])


def test_the_page_lists_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs/encoders.md").read_text(encoding="utf-8")
    assert table() in page, f"docs/encoders.md should have:\n{table()}"
