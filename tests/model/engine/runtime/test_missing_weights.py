"""A model whose files lack weights is not served with random numbers in their place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.weight_loading import load_config, load_model
from tests.support.served_models import served_model
from tests.support.tiny_models import BART, T5, tiny_model

CPU = Placement("cpu", {"": "cpu"})
BERT = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
VIT = {**BERT, "intermediate_size": 64, "image_size": 8, "patch_size": 4}
WAV2VEC2 = {**VIT, "num_feat_extract_layers": 2, "conv_dim": (8, 8), "conv_kernel": (4, 4)}
WAV2VEC2 |= {
    "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def saved(folder: Path, kind: str, auto_class: str, *left_out: str, **config: Any) -> Path:
    """A model whose file lacks the tensors that the patterns match."""
    torch.manual_seed(3)
    shape = transformers.AutoConfig.for_model(kind, vocab_size=97, **config)
    getattr(transformers, auto_class).from_config(shape).save_pretrained(folder)
    change(folder, lambda tensors: without(tensors, *left_out))
    return folder


def without(tensors: dict[str, Any], *patterns: str) -> dict[str, Any]:
    kept = {n: t for n, t in tensors.items() if not any(re.search(p, n) for p in patterns)}
    assert len(kept) < len(tensors) or not patterns
    return kept


def change(folder: Path, made: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "model.safetensors"
    save_file(made(load_file(file)), file, metadata={"format": "pt"})


def load(folder: Path, auto_class: str, task: str = "text-generation", **keys: Any) -> Any:
    served = served_model(folder, model=".", local=True, task=task, **keys)
    config = load_config(served, folder)
    return load_model(served, folder, getattr(transformers, auto_class), config, CPU)


def refused(folder: Path, auto_class: str, task: str = "text-generation") -> str:
    with pytest.raises(LoadError) as raised:
        load(folder, auto_class, task)
    return str(raised.value).removeprefix(f"{folder} ")


CAUSAL, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
IMAGES, SOUNDS = "AutoModelForImageClassification", "AutoModelForCTC"


def test_a_language_model_without_its_head_or_a_layer_is_refused(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    change(tmp_path, lambda tensors: without(tensors, r"^lm_head"))
    assert refused(tmp_path, CAUSAL) == (
        "has no weights for lm_head.weight: it is not a model for text-generation, or its files "
        "are incomplete; allow_missing_weights: true uses random numbers instead"
    )
    change(tmp_path, lambda tensors: without(tensors, r"layers\.1\."))
    layer = "model.layers.1.self_attn"
    expected = f"{layer}.q_proj.weight, {layer}.k_proj.weight, {layer}.v_proj.weight and 7 more"
    assert refused(tmp_path, CAUSAL).startswith(f"has no weights for {expected}: ")


@pytest.mark.parametrize(
    "kind, auto_class, task, left_out, config, named",
    [
        ("t5", SEQ2SEQ, "text2text-generation", r"^decoder\.block\.1", T5, "decoder.block.1."),
        ("vit", IMAGES, "pipeline", "^classifier", VIT, "classifier.weight, classifier.bias: "),
        ("wav2vec2", SOUNDS, "pipeline", "^lm_head", WAV2VEC2, "lm_head.weight, lm_head.bias: "),
    ],
)
def test_weights_that_answers_depend_on_are_missed(
    kind: str,
    auto_class: str,
    task: str,
    left_out: str,
    config: dict[str, Any],
    named: str,
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path, kind, auto_class, left_out, **config)
    message = refused(folder, auto_class, task)
    assert message.startswith(f"has no weights for {named}")
    assert f"not a model for {task}" in message


@pytest.mark.parametrize(
    "kind, auto_class, task, left_out, config",
    [
        ("bert", "AutoModel", "feature-extraction", "^pooler", BERT),
        ("wav2vec2", SOUNDS, "pipeline", "masked_spec_embed", WAV2VEC2),
        ("gpt2", CAUSAL, "text-generation", None, {"n_embd": 32, "n_head": 4, "n_layer": 1}),
        ("bart", SEQ2SEQ, "text2text-generation", "final_logits_bias", BART),
        ("t5", SEQ2SEQ, "text2text-generation", None, {**T5, "tie_word_embeddings": True}),
    ],
)
def test_what_is_tied_made_or_not_read_is_not_missed(
    kind: str, auto_class: str, task: str, left_out: str | None, config: Any, tmp_path: Path
) -> None:
    patterns = () if left_out is None else (left_out,)
    folder = saved(tmp_path, kind, auto_class, *patterns, **config)
    assert load(folder, auto_class, task) is not None


def test_a_pipeline_answers_nothing_of_a_pooler_that_is_missing(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit", "AutoModel", "^pooler", **VIT)
    assert load(folder, "AutoModel", "pipeline").pooler is None
    assert load(folder, "AutoModel", "pipeline", allow_missing_weights=True).pooler is not None


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    folder = saved(tmp_path, "vit", IMAGES, **VIT)
    change(folder, lambda tensors: {**tensors, "classifier.bias": torch.zeros(5)})
    expected = "has weights of another shape: classifier.bias [5] for [2]: it is not a model for"
    assert refused(folder, IMAGES, "pipeline").startswith(expected)


def test_missing_weights_are_random_where_that_is_allowed(
    tmp_path: Path, log_lines: list[str]
) -> None:
    folder = saved(tmp_path, "vit", IMAGES, "^classifier", **VIT)
    load(folder, IMAGES, "pipeline", allow_missing_weights=True)
    told = "has no weights for classifier.weight, classifier.bias: they are random numbers"
    assert log_lines == [f"W tiny: {folder} {told}"]


def test_weights_that_no_layer_takes_are_told(tmp_path: Path, log_lines: list[str]) -> None:
    folder = saved(tmp_path, "vit", IMAGES, **VIT)
    more = {f"extra.{number}": torch.zeros(1) for number in range(5)}
    change(folder, lambda tensors: {**tensors, **more})
    load(folder, IMAGES, "pipeline")
    assert log_lines == [
        "I tiny: unused tensors of the files: extra.0, extra.1, extra.2 and 2 more"
    ]
