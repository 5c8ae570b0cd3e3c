"""Everything that a request can say is a tensor too: some hosts of models pass no parameters on."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from generator.models_yaml.reading import load
from generator.render import model_config
from generator.render.model_folder import render_config
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models
from hf_triton.automatic_speech_recognition import request as speech
from hf_triton.encoder.rows import LIST, TEXT
from hf_triton.encoder.task import EncoderTask
from hf_triton.feature_extraction.embedding import FeatureExtraction
from hf_triton.fill_mask.filling import FillMask
from hf_triton.question_answering.answering import QuestionAnswering
from hf_triton.text2text_generation import source
from hf_triton.text_classification.classification import TextClassification
from hf_triton.text_generation.request import sampling_json
from hf_triton.text_generation.request.row_options import CHAT_FIELDS, RowFields, read_rows
from hf_triton.token_classification.tagging import TokenClassification
from hf_triton.zero_shot_classification.zero_shot import ZeroShotClassification

TASKS = find_tasks()


class KnownNames:
    """Fields of a request that tell what parameters it may have."""

    names: frozenset[str] = frozenset()
    inputs: tuple[str, ...] = ()

    def optional_texts(self, name: str) -> list[str | None]:
        return []

    def check_parameters(self, known: Any) -> None:
        self.names = frozenset(known)
        raise StopIteration


def generation_parameters(fields: RowFields) -> frozenset[str]:
    asked = KnownNames()
    with pytest.raises(StopIteration):
        read_rows(asked, fields)  # type: ignore[arg-type]
    return asked.names


def encoder_parameters(task: type[EncoderTask]) -> set[str]:
    """The keys of ``columns``, as the task's code has them: a task needs a model."""
    code = ast.walk(ast.parse(inspect.getsource(sys.modules[task.__module__])))
    assigned = (node for node in code if isinstance(node, ast.Assign))
    (columns,) = (one.value for one in assigned if ast.unparse(one.targets[0]) == "self.columns")
    assert isinstance(columns, ast.Dict)
    names = {key.value if isinstance(key, ast.Constant) else TEXT for key in columns.keys}
    return {*map(str, names), *([LIST] if task.takes_list else [])}


PARAMETERS = {
    "text-generation": generation_parameters(CHAT_FIELDS),
    "text2text-generation": generation_parameters(source.FIELDS),
    "automatic-speech-recognition": {*speech.OPTIONS, *speech.SOUNDS},
    "feature-extraction": encoder_parameters(FeatureExtraction)
    - {"input_type"},  # prompt_name says the same
    "text-classification": encoder_parameters(TextClassification),
    "token-classification": encoder_parameters(TokenClassification),
    "zero-shot-classification": encoder_parameters(ZeroShotClassification),
    "question-answering": encoder_parameters(QuestionAnswering),
    "fill-mask": encoder_parameters(FillMask),
}


@pytest.mark.parametrize("tag", PARAMETERS)
def test_every_parameter_is_a_tensor_or_in_one(tag: str) -> None:
    (spec,) = load(TASKS[tag].folder / "example.yaml")
    for model in triton_models(spec):
        config: Any = model_config.parse(render_config(model, TASKS[tag]))
        tensors = {tensor.name for tensor in config.input}
        inside = sampling_json.JSON_OPTIONS if sampling_json.FIELD in tensors else {}
        assert PARAMETERS[tag] - tensors - inside.keys() == set()


@pytest.mark.parametrize(
    "tag, name, kind, dims",
    [
        ("automatic-speech-recognition", "duration", "FP32", [-1]),
        ("image-text-to-text", "num_images", "INT32", [1]),
        ("image-text-to-text", "num_sounds", "INT32", [1]),
        ("audio-text-to-text", "num_sounds", "INT32", [1]),
        ("audio-text-to-text", "num_images", "INT32", [1]),
    ],
)
def test_a_tensor_that_no_answer_on_the_stub_shows_is_as_clients_send_it(
    tag: str, name: str, kind: str, dims: list[int]
) -> None:
    (spec,) = load(TASKS[tag].folder / "example.yaml")
    for model in triton_models(spec):
        config: Any = model_config.parse(render_config(model, TASKS[tag]))
        (found,) = (each for each in (*config.input, *config.output) if each.name == name)
        assert model_config_pb2.DataType.Name(found.data_type) == f"TYPE_{kind}"
        assert list(found.dims) == dims
