"""Embeddings agree with transformers' hidden states pooled as sentence-transformers says: what
options and requests change of what a model's files say (test_saved_models.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stub_server import StubServer
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer
from triton_python_backend_utils import TritonModelException
from wire import Array, Request, strings

from tests.support.saved_models import Case, save
from tests.support.served_encoder import outputs_of, refused, request, served
from tests.support.tiny_encoders import texts

TASK = "feature-extraction"
HIDDEN = 32
TEXTS = texts(12)
PROMPTS = {"query": "who is ", "passage": "this is ", "document": ""}
PROMPTED = Case(whole={"prompts": PROMPTS}, pooling={"pooling_mode": "mean"}, later=("Normalize",))


class Reference:
    """A model and its tokenizer, called for one text alone: there is no padding to get wrong."""

    def __init__(self, model: Path) -> None:
        self.model: Any = AutoModel.from_pretrained(model).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)

    @torch.inference_mode()
    def embedding(self, text: str, mode: str = "mean") -> torch.Tensor:
        """(hidden,), by sentence-transformers' documentation of its modes."""
        found = self.tokenizer(text, return_tensors="pt", truncation=True)
        states: torch.Tensor = self.model(**found).last_hidden_state[0]  # (tokens, hidden)
        weights = torch.arange(1, len(states) + 1).float()
        embedding: torch.Tensor = {
            "cls": states[0],
            "last": states[-1],
            "max": states.max(dim=0).values,
            "mean": states.mean(dim=0),
            "weightedmean": weights @ states / weights.sum(),
        }[mode]
        return embedding

    def unit(self, text: str, dimensions: int = HIDDEN) -> torch.Tensor:
        """The embedding, scaled to length 1."""
        return normalize(self.embedding(text)[:dimensions], dim=-1)


def embeddings(server: StubServer, asked: list[str], **tensors: Any) -> list[Array]:
    """One request for each text, in one batch of Triton's."""
    pending = server.send_together([request(text_input=text, **tensors) for text in asked])
    return [outputs_of(one.reply())["embedding"] for one in pending]


def assert_close(got: Any, expected: Any) -> None:
    one, other = (torch.as_tensor(np.stack([np.asarray(v) for v in x])) for x in (got, expected))
    assert one.dtype == torch.float32
    torch.testing.assert_close(one, other.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind, mode", [("bert", "mean"), ("qwen3", "last")])
def test_without_its_files_an_encoders_mean_and_a_decoders_last_token_are_taken(
    kind: str, mode: str, tmp_path: Path
) -> None:
    head = "AutoModelForCausalLM" if kind == "qwen3" else "AutoModel"
    model = save(Case(kind, head), tmp_path / "model")
    (model / "modules.json").unlink()
    with served(tmp_path, TASK, model) as server:
        got = embeddings(server, TEXTS)
    reference = Reference(model)
    assert_close(got, [reference.embedding(text, mode) for text in TEXTS])


@pytest.mark.parametrize("mode", ["cls", "last", "max", "weightedmean"])
@pytest.mark.parametrize("is_unit", [True, False])
def test_options_win_over_the_models_file(mode: str, is_unit: bool, tmp_path: Path) -> None:
    later = () if is_unit else ("Normalize",)
    model = save(Case(pooling={"pooling_mode": "mean"}, later=later), tmp_path / "model")
    options = {"pooling": mode, "normalize": is_unit}
    with served(tmp_path, TASK, model, options=options) as server:
        got = embeddings(server, TEXTS[:3])
    reference = Reference(model)
    expected = [reference.embedding(text, mode) for text in TEXTS[:3]]
    assert_close(got, [normalize(one, dim=-1) for one in expected] if is_unit else expected)


def test_the_option_max_length_wins_over_the_files(tmp_path: Path) -> None:
    model = save(Case(transformer={"max_seq_length": 10}), tmp_path / "model")
    with served(tmp_path, TASK, model) as server:
        refused(server, "at most 10", text_input="a cat " * 5)
    with served(tmp_path, TASK, model, options={"max_length": 20}) as server:
        assert server.infer(request(text_input="a cat " * 5)).ok


def test_dense_layers_may_be_pickles(tmp_path: Path) -> None:
    model = save(Case(later=("Dense",)), tmp_path / "model")
    with served(tmp_path, TASK, model) as server:
        expected = embeddings(server, TEXTS[:3])
    pickled(model / "2_Dense")
    with served(tmp_path, TASK, model, allow_pickle=True) as server:
        assert_close(embeddings(server, TEXTS[:3]), expected)


def pickled(folder: Path, **others: Any) -> None:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, **others}, folder / "pytorch_model.bin")


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exit, (3,))


@pytest.mark.threat("pickles")
def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    model = save(Case(later=("Dense",)), tmp_path / "model")
    pickled(model / "2_Dense", **{"linear.weight": _Harmful()})
    with (
        pytest.raises(TritonModelException, match="2_Dense"),
        served(tmp_path, TASK, model, allow_pickle=True),
    ):
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(PROMPTED, tmp_path_factory.mktemp("sentences"))


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubServer]:
    with served(tmp_path_factory.mktemp("served"), TASK, model) as server:
        yield server


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


def test_a_named_prompt_goes_before_the_text(server: StubServer, reference: Reference) -> None:
    for name, prompt in {**PROMPTS, "": ""}.items():
        (got,) = embeddings(server, TEXTS[:1], prompt_name=name)
        assert_close([got], [reference.unit(prompt + TEXTS[0])])
    refused(server, "query, passage, document", text_input="a", prompt_name="queries")


@pytest.mark.parametrize("option", ["where is ", "", "who is\nit :\t"])
def test_the_option_prompt_is_for_requests_that_name_none(option: str, tmp_path: Path) -> None:
    case = replace(PROMPTED, whole={"prompts": PROMPTS, "default_prompt_name": "query"})
    model = save(case, tmp_path / "model")
    reference, text = Reference(model), TEXTS[0]
    uses = {"search_query": PROMPTS["query"], "search_document": "", "clustering": option}
    with served(tmp_path, TASK, model, options={"prompt": option}) as server:
        assert_close(embeddings(server, [text]), [reference.unit(option + text)])
        named = embeddings(server, [text], prompt_name="passage")
        assert_close(named, [reference.unit(PROMPTS["passage"] + text)])
        for use, prompt in uses.items():
            asked = replace(request(text_input=text), parameters={"input_type": use})
            got = outputs_of(server.infer(asked))["embedding"]
            assert_close([got], [reference.unit(prompt + text)])


def test_dimensions_are_the_first_and_of_length_1_again(
    server: StubServer, reference: Reference
) -> None:
    got = embeddings(server, TEXTS[:3], dimensions=8)
    assert_close(got, [reference.unit(text, 8) for text in TEXTS[:3]])
    (whole,) = embeddings(server, TEXTS[:1], dimensions=HIDDEN)
    assert whole.shape == (HIDDEN,)


def test_what_the_option_dimensions_cuts_is_of_length_1_again(
    model: Path, reference: Reference, tmp_path: Path
) -> None:
    with served(tmp_path, TASK, model, options={"dimensions": 6}) as server:
        assert_close(embeddings(server, TEXTS[:1]), [reference.unit(TEXTS[0], 6)])
        assert_close(embeddings(server, TEXTS[:1], dimensions=9), [reference.unit(TEXTS[0], 9)])


def test_a_list_of_texts_is_answered_two_dimensional_as_litellm_wants_it(
    server: StubServer, reference: Reference
) -> None:
    """Empty texts are embedded by the tokens that the tokenizer adds."""
    for asked in ([*TEXTS[:3], "", " \n"], TEXTS[:1]):
        outputs = outputs_of(server.infer(Request({"input_text": strings(*asked)})))
        assert set(outputs) == {"embedding"}
        assert outputs["embedding"].shape == (len(asked), HIDDEN)
        assert_close(outputs["embedding"], [reference.unit(text) for text in asked])


def test_token_counts_come_only_where_they_are_asked_for(
    server: StubServer, reference: Reference
) -> None:
    lengths = [len(reference.tokenizer(text)["input_ids"]) for text in TEXTS[:2]]
    plain = outputs_of(server.infer(request(text_input=TEXTS[0])))
    listed = outputs_of(server.infer(request(("num_input_tokens",), text_input=TEXTS[0])))
    asked = request(input_text=TEXTS[:2], return_num_input_tokens=True)
    many = outputs_of(server.infer(asked))
    assert set(plain) == {"embedding"}
    assert listed["num_input_tokens"].tolist() == lengths[:1]
    assert set(listed) == {"num_input_tokens"}
    assert many["num_input_tokens"].flatten().tolist() == lengths
    assert set(many) == {"embedding", "num_input_tokens", "truncated", "similarity"}


def test_a_text_that_was_cut_is_told(server: StubServer) -> None:
    asked = [TEXTS[0], "the cat sat " * 50, "the cat " * 50_000]
    outputs = server.infer(request(("embedding", "truncated"), input_text=asked, truncate=True))
    assert outputs_of(outputs)["truncated"].flatten().tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["dot", None])
def test_how_embeddings_are_compared_is_told_where_it_is_asked_for(
    name: str | None, tmp_path: Path
) -> None:
    model = save(Case(whole={"similarity_fn_name": name} if name else {}), tmp_path / "model")
    with served(tmp_path, TASK, model) as server:
        outputs = outputs_of(server.infer(request(("similarity",), input_text=TEXTS[:2])))
    assert outputs["similarity"].tolist() == [[(name or "cosine").encode()]] * 2
