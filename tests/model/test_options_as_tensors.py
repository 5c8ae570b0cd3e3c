"""Everything that a request can say is a tensor too: some hosts of models pass no parameters on."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from generator.models_yaml.reading import load
from generator.render import model_config
from generator.render.model_folder import render_config
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models
from hf_triton.automatic_speech_recognition import request as speech
from hf_triton.feature_extraction import embedding
from hf_triton.fill_mask import filling
from hf_triton.text2text_generation import source
from hf_triton.text_classification import classification
from hf_triton.text_generation.request import sampling_json
from hf_triton.text_generation.request.row_options import CHAT_FIELDS, RowFields, read_rows
from hf_triton.token_classification import tagging
from hf_triton.zero_shot_classification import zero_shot

TASKS = find_tasks()


class KnownNames:
    """Fields of a request that tell what parameters it may have."""

    names: frozenset[str] = frozenset()

    def has_tensor(self, name: str) -> bool:
        return False

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


PARAMETERS = {
    "text-generation": generation_parameters(CHAT_FIELDS),
    "text2text-generation": generation_parameters(source.FIELDS),
    "automatic-speech-recognition": {*speech.OPTIONS, *speech.SOUNDS},
    "feature-extraction": {*embedding.INPUTS} - {"input_type"},  # prompt_name says the same
    "text-classification": {*classification.INPUTS},
    "token-classification": {*tagging.INPUTS},
    "zero-shot-classification": {*zero_shot.INPUTS},
    "fill-mask": {*filling.INPUTS},
}


@pytest.mark.parametrize("tag", PARAMETERS)
def test_every_parameter_is_a_tensor_or_in_one(tag: str) -> None:
    (spec,) = load(TASKS[tag].folder / "example.yaml", TASKS)
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
    (spec,) = load(TASKS[tag].folder / "example.yaml", TASKS)
    for model in triton_models(spec):
        config: Any = model_config.parse(render_config(model, TASKS[tag]))
        (found,) = (each for each in (*config.input, *config.output) if each.name == name)
        assert model_config_pb2.DataType.Name(found.data_type) == f"TYPE_{kind}"
        assert list(found.dims) == dims
