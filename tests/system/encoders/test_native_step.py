"""The config of a native model step fits the file that is exported for it: names, types, answers.

ONNX Runtime stands in for Triton's backend of that name, which the embedded server lacks; it checks
a model's inputs and outputs against the config in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import StubServer
from wire import Reply, Request

from generator.render import model_config
from tests.model.encoders.ensemble_stub import StubEnsemble, close, generated
from tests.model.encoders.tasks import model_of
from tests.support.served_encoder import request

onnxruntime = pytest.importorskip("onnxruntime")

_TYPES = {"TYPE_INT64": "tensor(int64)", "TYPE_FP32": "tensor(float)"}


class NativeStep:
    """A model step on ONNX Runtime, with the checks that Triton's backend makes when it loads."""

    def __init__(self, folder: Path) -> None:
        config: Any = model_config.parse((folder / "config.pbtxt").read_text())
        file = folder / "1" / config.default_model_filename
        self._session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        batch = [-1] if config.max_batch_size else []
        check(config.input, self._session.get_inputs(), batch)
        check(config.output, self._session.get_outputs(), batch)

    def infer(self, asked: Request) -> Reply:
        (output,) = self._session.run(["output"], dict(asked.tensors))
        assert output.dtype == np.float32
        return Reply(200, outputs={"output": output})


def check(declared: Any, found: Any, batch: list[int]) -> None:
    """Names, types and dims, ``batch`` before them, are those of the file."""
    by_name = {tensor.name: tensor for tensor in found}
    assert {tensor.name for tensor in declared} == set(by_name)
    for tensor in declared:
        in_file = by_name[tensor.name]
        assert in_file.type == _TYPES[model_config.type_word(tensor)]
        pairs = zip(in_file.shape, [*batch, *tensor.dims], strict=True)
        assert all(dim == -1 for _, dim in pairs)


@contextlib.contextmanager
def native(folder: Path, task: str, model: Path, **keys: Any) -> Iterator[tuple[Any, Any]]:
    """A model as a single one, and as an ensemble whose model step is its exported file."""
    options = {"engine": "onnxruntime"}
    ensemble = {"backend": "onnxruntime", "pad_to_multiple_of": 8, **keys}
    repository = generated(folder, task, model, options=options)
    with StubServer(repository / "parts_model"):
        pass  # has exported it into the ensemble's cache
    generated(folder, task, model, options=options, ensemble=ensemble)
    outer = model_config.parse((repository / "parts" / "config.pbtxt").read_text())
    with contextlib.ExitStack() as stack:
        names = ("single", "parts_tokenizer", "parts_postprocessing")
        servers = {name: stack.enter_context(StubServer(repository / name)) for name in names}
        steps: dict[str, Any] = {**servers, "parts_model": NativeStep(repository / "parts_model")}
        yield steps.pop("single"), StubEnsemble(outer, steps)


def test_an_exported_model_answers_as_the_single_one_does(tmp_path: Path) -> None:
    task = "question-answering"
    model = model_of(task, tmp_path / "model", "roberta", num_hidden_layers=1)
    asked = request(question="who sat", context="the cat sat on the mat")
    with native(tmp_path, task, model, token_type_ids=False) as (single, ensemble):
        expected, got = single.infer(asked), ensemble.infer(asked)
    assert got.ok, got.error
    for name, array in expected.outputs.items():
        assert close(array, got.outputs[name]), (name, array, got.outputs[name])
