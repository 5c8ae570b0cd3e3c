"""Refuses what a model can't take in words: at load, or as one request's own error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from triton_python_backend_utils import TritonModelException

from hf_triton.encoder.encoder_loading import longest_input, ready_runner
from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.errors import LoadError
from tests.support.served_encoder import outputs_of, refused, request, served
from tests.support.tiny_encoders import CONTEXT, tiny_encoder

CLASSIFIER = "AutoModelForSequenceClassification"


def test_a_pair_for_a_model_of_one_token_type_is_computed(tmp_path: Path) -> None:
    model = tiny_encoder("bert", CLASSIFIER, tmp_path / "model", type_vocab_size=1, num_labels=3)
    with served(tmp_path, "text-classification", model) as server:
        reply = server.infer(request(("logits",), text_input="a cat", text_pair="the dog sat"))
    own = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(model)(
        "a cat", "the dog sat", return_tensors="pt"
    )
    with torch.inference_mode():
        expected = own(input_ids=tokens["input_ids"]).logits[0].numpy()
    np.testing.assert_allclose(outputs_of(reply)["logits"], expected, atol=1e-4)


def test_a_folder_of_another_release_whose_engine_is_unknown_is_refused() -> None:
    engine, nothing = cast("Any", "torch-compile"), cast("Any", None)
    with pytest.raises(LoadError, match="engine torch-compile is unknown; run `hf-triton"):
        ready_runner(nothing, nothing, EncoderOptions(engine=engine))


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "deberta-v2"])
def test_a_text_of_exactly_the_longest_input_is_taken_and_one_more_token_refused(
    architecture: str, tmp_path: Path
) -> None:
    model = tiny_encoder(architecture, CLASSIFIER, tmp_path / "model")
    with served(tmp_path, "text-classification", model) as server:
        assert server.infer(request(text_input="cat " * (CONTEXT - 2))).ok
        refused(server, f"got {CONTEXT + 1} tokens", text_input="cat " * (CONTEXT - 1))


def test_a_model_that_holds_less_than_it_says_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a model whose positions begin at 2 in a table that the search for it misses.
    monkeypatch.setattr("hf_triton.runtime.tokenizing.lengths.first_position", lambda model: 0)
    model = tiny_encoder("roberta", CLASSIFIER, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.model_max_length = CONTEXT + 2
    tokenizer.save_pretrained(model)
    message = (
        f"max_length: the model fails at {CONTEXT + 2} tokens, its longest input: RuntimeError"
    )
    with (
        pytest.raises(TritonModelException, match=message),
        served(tmp_path, "text-classification", model),
    ):
        pass
    options = {"max_length": CONTEXT}
    with served(tmp_path, "text-classification", model, options=options) as server:
        assert server.infer(request(text_input="cat " * (CONTEXT - 2))).ok


class Unlimited:
    """A model whose positions never end, as far as ``longest_input`` looks at it."""

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        self.config = config

    def modules(self) -> list[Any]:
        return []


class Reader:
    """A tokenizer that knows this limit; by default none, as tokenizers say that."""

    def __init__(self, model_max_length: int = int(1e30)) -> None:
        self.model_max_length = model_max_length


@pytest.mark.parametrize(
    "config, tokenizer, longest",
    [
        (transformers.T5Config(), Reader(), 8192),
        (transformers.T5Config(), Reader(512), 512),
        (transformers.T5Config.from_dict({"n_positions": 1024}), Reader(), 1024),
        (transformers.XLNetConfig(), Reader(), 8192),
        (transformers.LEDConfig(max_encoder_position_embeddings=4096), Reader(), 4096),
        (transformers.BertConfig(), Reader(), 512),
        (transformers.BertConfig(), Reader(128), 128),
    ],
)
def test_the_longest_input_has_a_bound_where_the_models_positions_have_none(
    config: transformers.PretrainedConfig, tokenizer: Reader, longest: int
) -> None:
    assert longest_input(Unlimited(config), tokenizer, None) == longest


def test_max_length_goes_beyond_the_default_of_a_model_without_a_limit() -> None:
    assert longest_input(Unlimited(transformers.T5Config()), Reader(512), 20_000) == 20_000
    with pytest.raises(LoadError, match="max_length: got 20000, the model's own limit is 512"):
        longest_input(Unlimited(transformers.BertConfig()), Reader(), 20_000)


def test_positions_before_a_texts_first_are_not_counted() -> None:
    shape: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    limits: dict[str, Any] = {"max_position_embeddings": 66, "pad_token_id": 1, "vocab_size": 9}
    config = transformers.RobertaConfig(**shape, **limits)
    assert longest_input(transformers.RobertaModel(config), Reader(), None) == 64
