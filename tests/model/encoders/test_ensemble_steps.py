"""An ensemble's three steps answer together what the single model does, for every encoder task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import StubServer
from wire import Array, Request

from generator.spec.task_folders import find_tasks
from hf_triton.runtime.errors import NO_NUMBERS
from tests.model.encoders.ensemble_stub import StubEnsemble, both_layouts, close, generated
from tests.model.encoders.tasks import COLUMNS, MODELS, REQUESTS, SHORT, model_of
from tests.support.served_encoder import request, rows


def test_every_task_that_can_be_an_ensemble_is_here() -> None:
    assert set(MODELS) == {tag for tag, task in find_tasks().items() if task.output}


def assert_same_answers(single: StubServer, ensemble: StubEnsemble, asked: Request) -> None:
    expected, got = single.infer(asked), ensemble.infer(asked)
    assert expected.ok, expected.error
    assert got.ok, got.error
    assert got.outputs.keys() == expected.outputs.keys()
    for name, array in expected.outputs.items():
        assert close(array, got.outputs[name]), (name, array, got.outputs[name])


@pytest.mark.parametrize("task", MODELS)
def test_steps_answer_what_the_single_model_does(task: str, tmp_path: Path) -> None:
    # One of its models has no token types.
    architecture = "distilbert" if task == "token-classification" else "bert"
    model = model_of(task, tmp_path / "model", architecture)
    with both_layouts(tmp_path, task, model) as (single, ensemble):
        for tensors in REQUESTS[task]:
            assert_same_answers(single, ensemble, request(**tensors))


@pytest.mark.parametrize("task", ["text-classification", "zero-shot-classification"])
def test_rows_of_a_clients_batch_keep_their_order(task: str, tmp_path: Path) -> None:
    model = model_of(task, tmp_path / "model")
    with both_layouts(tmp_path, task, model, max_batch_size=8) as (single, ensemble):
        assert_same_answers(single, ensemble, rows(**COLUMNS[task]))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("classifier")
    task = "text-classification"
    with both_layouts(folder, task, model_of(task, folder / "model")) as both:
        yield both


def test_parameters_mean_what_tensors_do(classifier: Any) -> None:
    asked = Request(request(text_input=SHORT).tensors, {"top_k": 3})
    single, ensemble = classifier
    assert_same_answers(single, ensemble, asked)
    unknown = Request(asked.tensors, {"topk": 3})
    expected, got = single.infer(unknown), ensemble.infer(unknown)
    assert (got.status, got.error) == (400, f"in ensemble 'parts', {expected.error}")


def tokens(ids: list[list[int]], mask: list[list[int]] | None = None) -> dict[str, Array]:
    given = np.array(ids, dtype=np.int64)
    found = np.ones_like(given) if mask is None else np.array(mask, dtype=np.int64)
    return {"input_ids": given, "attention_mask": found, "token_type_ids": np.zeros_like(given)}


@pytest.mark.parametrize(
    "tensors, message",
    [
        (tokens([[1, 5, 10**6]]), "input_ids: got 1000000, allowed: 0 to"),
        (tokens([[1, -5, 2]]), "input_ids: got -5, allowed: 0 to"),
        (tokens([[1, 5, 2]], [[1, 0, 1]]), "attention_mask: a row has gaps"),
        (tokens([[1, 5, 2], [1, 2, 0]], [[1, 1, 1], [0, 0, 0]]), "attention_mask: a row has gaps"),
        (tokens([[1, 5]], [[2, 0]]), "attention_mask: a row has gaps"),
        (tokens([[]]), "attention_mask: a row has gaps, no token"),
        (tokens([[5] * 129]), "input_ids: got 129 tokens, this model takes at most 128"),
        (
            {**tokens([[1, 2]]), "token_type_ids": np.array([[0, 2]])},
            "token_type_ids: got 2, allowed: 0 to 1",
        ),
        (
            {**tokens([[1, 2]]), "token_type_ids": np.array([[0]])},
            "token_type_ids: got shape (1, 1), input_ids has (1, 2)",
        ),
    ],
)
def test_the_model_step_refuses_rows_that_would_fail_their_neighbours(
    tensors: dict[str, Array], message: str, classifier: Any
) -> None:
    step = classifier[1].steps["parts_model"]
    good = Request(tokens([[1, 5, 2]]))
    bad, neighbour = step.send_together([Request(tensors), good])
    assert message in bad.reply().error
    assert bad.reply().status == 400
    assert neighbour.reply().outputs["output"].shape == (1, 3)


def test_the_model_step_takes_padded_rows_as_an_exported_model_does(classifier: Any) -> None:
    step = classifier[1].steps["parts_model"]
    mask = [[1, 1, 1, 0], [1, 1, 1, 1]]
    together = step.infer(Request(tokens([[1, 5, 2, 0], [1, 6, 7, 2]], mask))).outputs["output"]
    alone = step.infer(Request(tokens([[1, 5, 2]]))).outputs["output"]
    np.testing.assert_allclose(together[:1], alone, atol=1e-5)


def test_the_postprocessing_step_refuses_what_another_request_made(classifier: Any) -> None:
    step = classifier[1].steps["parts_postprocessing"]
    asked = {**request(text_input=SHORT).tensors, "model_output": np.zeros((2, 3), np.float32)}
    reply = step.infer(Request(asked))
    assert (reply.status, reply.error) == (400, "model_output: got (2, 3), expected 1 rows")


@pytest.mark.threat("no-numbers")
def test_the_postprocessing_step_answers_no_nan(classifier: Any) -> None:
    """A model on a Triton backend of its own may compute it."""
    step = classifier[1].steps["parts_postprocessing"]
    output = np.array([[1.0, np.nan, 2.0]], np.float32)
    reply = step.infer(Request({**request(text_input=SHORT).tensors, "model_output": output}))
    assert (reply.status, reply.error) == (500, NO_NUMBERS)


def test_rows_are_padded_to_a_multiple_where_a_native_model_wants_it(tmp_path: Path) -> None:
    keys = {"backend": "onnxruntime", "pad_to_multiple_of": 16, "token_type_ids": False}
    task = "text-classification"
    generated(tmp_path, task, model_of(task, tmp_path / "model"), ensemble=keys)
    with StubServer(tmp_path / "repository" / "parts_tokenizer") as step:
        reply = step.infer(request(text_input=SHORT))
        assert set(reply.outputs) == {"input_ids", "attention_mask"}
        assert reply.outputs["input_ids"].shape == (1, 16)
        assert reply.outputs["attention_mask"].sum() == 5
        longest = step.infer(request(text_input=" ".join(["cat"] * 126)))
        assert longest.outputs["input_ids"].shape == (1, 128)
