"""Embeddings agree with transformers' hidden states pooled as sentence-transformers says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stub_server import StubServer
from triton_python_backend_utils import TritonModelException
from wire import Array, Request, strings

from hf_triton.encoder.sentence_transformers.reading import read_sentence_files
from hf_triton.runtime.errors import LoadError
from tests.model.encoders.sentence_model import (
    HIDDEN,
    Reference,
    sentence_model,
    unit,
    write_dense,
    write_json,
)
from tests.support.served_encoder import outputs_of, refused, request, rows, served
from tests.support.tiny_encoders import texts, tiny_encoder

TASK = "feature-extraction"
TEXTS = texts(12)


def embeddings(server: StubServer, asked: list[str], **tensors: Any) -> list[Array]:
    """One request for each text, in one batch of Triton's."""
    pending = server.send_together([request(text_input=text, **tensors) for text in asked])
    return [outputs_of(one.reply())["embedding"] for one in pending]


def assert_close(got: Any, expected: Any) -> None:
    one, other = (torch.as_tensor(np.stack([np.asarray(v) for v in x])) for x in (got, expected))
    assert one.dtype == torch.float32
    torch.testing.assert_close(one, other.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_texts_of_one_batch_are_the_means_of_their_own_tokens(
    architecture: str, tmp_path: Path
) -> None:
    model = tiny_encoder(architecture, "AutoModel", tmp_path / "model")
    reference = Reference(model)
    with served(tmp_path, TASK, model) as server:
        got = embeddings(server, TEXTS)
    assert_close(got, [reference.embedding(text, "mean") for text in TEXTS])


def test_a_causal_models_embedding_is_its_last_token(tmp_path: Path) -> None:
    model = causal_model(tmp_path)
    reference = Reference(model)
    with served(tmp_path, TASK, model) as server:
        got = embeddings(server, TEXTS)
    assert_close(got, [reference.embedding(text, "lasttoken") for text in TEXTS])


def causal_model(folder: Path) -> Path:
    """A Qwen3 saved as its embedding models are: a causal model's body."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    model = tiny_encoder("bert", "AutoModel", folder / "model")  # for its tokenizer
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=AutoConfig.from_pretrained(model).vocab_size,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=2,
        intermediate_size=64,
        max_position_embeddings=256,
    )
    torch.manual_seed(4)
    causal = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in causal.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    causal.save_pretrained(model)
    assert AutoModel.from_pretrained(model).config.architectures == ["Qwen3ForCausalLM"]
    return model


@pytest.mark.parametrize(
    "option, mode",
    [("cls", "cls"), ("last", "lasttoken"), ("max", "max"), ("weightedmean", "weightedmean")],
)
def test_the_option_wins_over_the_models_file(option: str, mode: str, tmp_path: Path) -> None:
    model = sentence_model(tmp_path, {"pooling_mode": "mean"})
    reference = Reference(model)
    with served(tmp_path, TASK, model, options={"pooling": option}) as server:
        got = embeddings(server, TEXTS[:4])
    assert_close(got, [reference.embedding(text, mode) for text in TEXTS[:4]])


@pytest.mark.parametrize("option", [None, True, False])
@pytest.mark.parametrize("file", [True, False], ids=["normalize", "plain"])
def test_lengths_are_1_where_a_file_or_the_option_says_so(
    option: bool | None, file: bool, tmp_path: Path
) -> None:
    later = ["Normalize"] if file else []
    model = sentence_model(tmp_path, {"pooling_mode": "mean"}, *later)
    reference = Reference(model)
    with served(tmp_path, TASK, model, options={"normalize": option}) as server:
        got = embeddings(server, TEXTS[:3])
    expected = [reference.embedding(text, "mean") for text in TEXTS[:3]]
    is_unit = file if option is None else option
    assert_close(got, [unit(vector) for vector in expected] if is_unit else expected)


def test_dense_layers_may_be_pickles(tmp_path: Path) -> None:
    model = sentence_model(tmp_path, {"pooling_mode": "mean"}, "Dense")
    linear = write_dense(model / "2_Dense", HIDDEN, 12, pickled=True)
    reference = Reference(model)
    with served(tmp_path, TASK, model, allow_pickle=True) as server:
        got = embeddings(server, TEXTS[:3])
    with torch.inference_mode():
        pooled = [reference.embedding(text, "mean") for text in TEXTS[:3]]
        assert_close(got, [torch.tanh(linear(vector)) for vector in pooled])


PROMPTS = {"prompts": {"query": "who is ", "passage": "this is ", "document": None}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    return sentence_model(folder, {"pooling_mode": "mean"}, "Normalize", prompts=PROMPTS)


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.mark.parametrize(
    "name, prompt",
    [("query", "who is "), ("passage", "this is "), ("document", ""), ("", ""), (None, "")],
)
def test_a_named_prompt_goes_before_the_text(
    name: str | None, prompt: str, server: StubServer, reference: Reference
) -> None:
    tensors = {} if name is None else {"prompt_name": name}
    got = embeddings(server, TEXTS[:2], **tensors)
    prompted = [prompt + text for text in TEXTS[:2]]
    assert_close(got, [unit(reference.embedding(text, "mean")) for text in prompted])


@pytest.mark.parametrize(
    "use, prompt",
    [("search_query", "who is "), ("search_document", ""), ("clustering", "where is ")],
)
def test_a_prompt_for_the_texts_use_goes_before_it(
    use: str, prompt: str, model: Path, reference: Reference, tmp_path: Path
) -> None:
    asked = replace(request(text_input=TEXTS[0]), parameters={"input_type": use})
    with served(tmp_path, TASK, model, options={"prompt": "where is "}) as server:
        got = outputs_of(server.infer(asked))["embedding"]
    assert_close([got], [unit(reference.embedding(prompt + TEXTS[0], "mean"))])


def test_the_option_prompt_is_for_requests_that_name_none(
    model: Path, reference: Reference, tmp_path: Path
) -> None:
    with served(tmp_path, TASK, model, options={"prompt": "where is "}) as server:
        (unnamed,) = embeddings(server, TEXTS[:1])
        (named,) = embeddings(server, TEXTS[:1], prompt_name="query")
    prompted = [f"{prompt} is {TEXTS[0]}" for prompt in ("where", "who")]
    assert_close([unnamed, named], [unit(reference.embedding(text, "mean")) for text in prompted])


@pytest.mark.parametrize("prompt", ["", "who is\nit :\t"])
def test_the_option_prompt_may_be_empty_or_have_lines(prompt: str, tmp_path: Path) -> None:
    prompts = {**PROMPTS, "default_prompt_name": "query"}
    model = sentence_model(tmp_path, {"pooling_mode": "mean"}, prompts=prompts)
    with served(tmp_path, TASK, model, options={"prompt": prompt}) as server:
        got = embeddings(server, TEXTS[:1])
    assert_close(got, [Reference(model).embedding(prompt + TEXTS[0], "mean")])


def test_dimensions_are_the_first_and_of_length_1_again(
    server: StubServer, reference: Reference
) -> None:
    got = embeddings(server, TEXTS[:3], dimensions=8)
    assert_close(got, [unit(reference.embedding(text, "mean")[:8]) for text in TEXTS[:3]])
    (whole,) = embeddings(server, TEXTS[:1], dimensions=HIDDEN)
    assert whole.shape == (HIDDEN,)


def test_the_option_dimensions_is_for_requests_that_say_none(model: Path, tmp_path: Path) -> None:
    with served(tmp_path, TASK, model, options={"dimensions": 6, "normalize": False}) as server:
        (six,) = embeddings(server, TEXTS[:1])
        (nine,) = embeddings(server, TEXTS[:1], dimensions=9)
    assert (six.shape, nine.shape) == ((6,), (9,))
    np.testing.assert_array_equal(six, nine[:6])


def test_a_list_of_texts_is_answered_two_dimensional_as_litellm_wants_it(
    server: StubServer, reference: Reference
) -> None:
    outputs = outputs_of(server.infer(Request({"input_text": strings(*TEXTS[:4])})))
    assert set(outputs) == {"embedding"}
    assert outputs["embedding"].shape == (4, HIDDEN)
    expected = [unit(reference.embedding(text, "mean")) for text in TEXTS[:4]]
    assert_close(outputs["embedding"], expected)
    one = outputs_of(server.infer(Request({"input_text": strings(TEXTS[0])})))
    assert one["embedding"].shape == (1, HIDDEN)


def test_an_empty_text_is_embedded_by_the_tokens_that_the_tokenizer_adds(
    server: StubServer, reference: Reference
) -> None:
    texts = [TEXTS[0], "", " \n"]
    got = outputs_of(server.infer(Request({"input_text": strings(*texts)})))["embedding"]
    assert_close(got, [unit(reference.embedding(text, "mean")) for text in texts])


def test_token_counts_come_only_where_they_are_asked_for(
    server: StubServer, reference: Reference
) -> None:
    lengths = [len(reference.tokenizer(text)["input_ids"]) for text in TEXTS[:2]]
    plain = outputs_of(server.infer(request(text_input=TEXTS[0])))
    flagged = outputs_of(server.infer(request(text_input=TEXTS[0], return_num_input_tokens=True)))
    listed = outputs_of(server.infer(request(("num_input_tokens",), text_input=TEXTS[0])))
    asked = request(input_text=TEXTS[:2], return_num_input_tokens=True)
    many = outputs_of(server.infer(asked))
    assert set(plain) == {"embedding"}
    assert flagged["num_input_tokens"].tolist() == lengths[:1]
    assert set(listed) == {"num_input_tokens"}
    assert many["num_input_tokens"].flatten().tolist() == lengths
    assert set(flagged) == {"embedding", "num_input_tokens", "truncated", "similarity"}


@pytest.mark.parametrize("name", ["dot", None])
def test_how_embeddings_are_compared_is_told_where_it_is_asked_for(
    name: str | None, tmp_path: Path
) -> None:
    files = {} if name is None else {"similarity_fn_name": name}
    model = sentence_model(tmp_path, {}, prompts=files)
    with served(tmp_path, TASK, model) as server:
        outputs = outputs_of(server.infer(request(("similarity",), input_text=TEXTS[:2])))
    assert outputs["similarity"].tolist() == [[(name or "cosine").encode()]] * 2


def test_a_text_that_was_cut_is_told(server: StubServer) -> None:
    texts = [TEXTS[0], "the cat sat " * 50, "the cat " * 50_000]
    asked = request(("embedding", "truncated"), input_text=texts, truncate=True)
    assert outputs_of(server.infer(asked))["truncated"].flatten().tolist() == [False, True, True]


def test_flat_json_is_answered_flat(server: StubServer) -> None:
    status, body = server.generate({"text_input": "the cat sat", "prompt_name": "query"})
    assert status == 200
    assert len(body["embedding"]) == HIDDEN


@pytest.mark.parametrize(
    "tensors, parts",
    [
        ({}, ["text_input: missing"]),
        ({"dimensions": 3}, ["text_input: missing"]),
        ({"input_text": []}, ["input_text: got an empty list"]),
        ({"input_text": ["a"], "text_input": "a"}, ["text_input and input_text"]),
        ({"text_input": b"a \xe4"}, ["text_input: not valid UTF-8 at byte 2"]),
        ({"text_input": "a", "prompt_name": "queries"}, ["query, passage, document"]),
        ({"text_input": "a", "dimensions": 0}, ["dimensions: got 0"]),
        ({"text_input": "a", "dimensions": 33}, ["dimensions: got 33", "32"]),
        ({"text_input": "a cat " * 80}, ["text_input: got 162 tokens", "at most 128"]),
        ({"input_text": ["a", "a cat " * 80]}, ["input_text: got 162 tokens", "(row 1 of"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(
    tensors: dict[str, Any], parts: list[str], server: StubServer
) -> None:
    refused(server, *parts, **tensors)


def test_a_model_without_prompts_says_so(tmp_path: Path) -> None:
    model = tiny_encoder("bert", "AutoModel", tmp_path / "model")
    with served(tmp_path, TASK, model) as server:
        refused(server, "prompt_name", "no prompts", text_input="a", prompt_name="query")


def test_a_long_text_is_cut_where_the_request_says_so(
    server: StubServer, reference: Reference
) -> None:
    long = "the big red cat sat on a mat . " * 40
    got = embeddings(server, [long], truncate=True)
    assert_close(got, [unit(reference.embedding(long, "mean"))])


def test_a_clients_batch_has_a_row_for_each_text(
    model: Path, reference: Reference, tmp_path: Path
) -> None:
    with served(tmp_path, TASK, model, max_batch_size=8) as server:
        outputs = outputs_of(server.infer(rows(text_input=TEXTS[:5], dimensions=[8] * 5)))
        differing = server.infer(rows(text_input=TEXTS[:2], dimensions=[8, 9]))
        counted = outputs_of(
            server.infer(rows(text_input=TEXTS[:2], return_num_input_tokens=[True] * 2))
        )
    expected = [unit(reference.embedding(text, "mean")[:8]) for text in TEXTS[:5]]
    assert_close(outputs["embedding"], expected)
    assert counted["num_input_tokens"].shape == (2, 1)
    assert differing.status == 400
    assert "dimensions: got 8 and 9" in differing.error


def test_the_option_max_length_wins_over_the_files(tmp_path: Path) -> None:
    transformer = {"max_seq_length": 10}
    model = sentence_model(tmp_path, {"pooling_mode": "mean"}, transformer=transformer)
    with served(tmp_path, TASK, model) as server:
        refused(server, "at most 10", text_input="a cat " * 5)
    with served(tmp_path, TASK, model, options={"max_length": 20}) as server:
        assert server.infer(request(text_input="a cat " * 5)).ok


def broken_module(path: Path, kind: str) -> None:
    write_json(path / "modules.json", [{"idx": 0, "path": "", "type": kind}])


@pytest.mark.parametrize(
    "kind, message",
    [
        ("sentence_transformers.models.CLIPModel", "CLIPModel is not served here"),
        ("custom_st.Transformer", "custom_st.Transformer is not served here"),
        ("sentence_transformers.models.Transformer", "a Transformer and a Pooling"),
    ],
)
def test_modules_that_are_not_known_are_refused_at_load(
    kind: str, message: str, tmp_path: Path
) -> None:
    model = sentence_model(tmp_path, {"pooling_mode": "mean"})
    broken_module(model, kind)
    with pytest.raises(TritonModelException, match=message), served(tmp_path, TASK, model):
        pass


@pytest.mark.parametrize(
    "file, key, value, expected",
    [
        ("sentence_bert_config.json", "max_seq_length", "x", "got 'x', expected a whole number"),
        ("sentence_bert_config.json", "max_seq_length", 0, "got 0, expected a whole number from 1"),
        ("config_sentence_transformers.json", "truncate_dim", True, "got True, expected a whole"),
        ("config_sentence_transformers.json", "prompts", ["a"], "an object of texts was expected"),
        ("config_sentence_transformers.json", "prompts", {"a": 1}, "an object of texts was"),
    ],
)
def test_a_files_value_that_is_none_is_named(
    file: str, key: str, value: object, expected: str, tmp_path: Path
) -> None:
    folder = sentence_model(tmp_path, {})
    write_json(folder / file, {key: value})
    with pytest.raises(LoadError, match=f"^{file}: {key}: {expected}"):
        read_sentence_files(folder, "SentenceTransformer")


@pytest.mark.parametrize(
    "pooling, dense, message",
    [
        ({"pooling_mode": "median"}, {}, "1_Pooling/config.json: pooling_mode median, known: cls"),
        ({}, {"module_input_name": "token_embeddings"}, "2_Dense/config.json: module_input_name"),
        ({}, {"in_features": 31}, "in_features is 31, but vectors of 32"),
        ({}, {"activation_function": "os.system"}, "os.system is none of torch.nn's"),
        ({}, {"out_features": 5}, "2_Dense: RuntimeError: .* size mismatch"),
    ],
    ids=["pooling", "tokens", "size", "activation", "weights"],
)
def test_a_broken_file_is_named_at_load(
    pooling: dict[str, Any], dense: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = sentence_model(tmp_path, {"pooling_mode": "mean", **pooling}, "Dense")
    write_dense(model / "2_Dense", HIDDEN, 4, **dense)
    with pytest.raises(TritonModelException, match=message), served(tmp_path, TASK, model):
        pass


@pytest.mark.threat("pickles")
def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    model = sentence_model(tmp_path, {"pooling_mode": "mean"}, "Dense")
    write_dense(model / "2_Dense", HIDDEN, 4, pickled=True)
    torch.save({"linear.weight": _Harmful()}, model / "2_Dense/pytorch_model.bin")
    with (
        pytest.raises(TritonModelException, match="2_Dense"),
        served(tmp_path, TASK, model, allow_pickle=True),
    ):
        pass


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exit, (3,))


def test_more_dimensions_than_there_are_are_refused_at_load(model: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(TritonModelException, match=r"dimensions: got 64, .* have 32"),
        served(tmp_path, TASK, model, options={"dimensions": 64}),
    ):
        pass
