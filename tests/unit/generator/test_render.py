"""Nothing that a value holds can leave the string it stands in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from generator.errors import TemplateError
from generator.models_yaml.reading import load
from generator.render import model_config, model_folder
from generator.spec.task_folders import Task, find_tasks
from generator.spec.triton_models import TritonModel, triton_models
from tests.unit.generator.workspace import ONE_MODEL

EVIL = [
    '"',
    "\\",
    "\n",
    '"} backend: "x',
    "{{ 7 * 7 }}",
    "{% raw %}",
    "}}",
    "\x00",
    "é😀",
    "'",
    "\\n",
    "<<name>>",
    "<<hf_triton_role>>",
]


@pytest.fixture
def model(work: Path) -> TritonModel:
    (work / "models.yaml").write_text(ONE_MODEL)
    return triton_models(load(work / "models.yaml")[0])[0]


@pytest.fixture
def task(work: Path) -> Task:
    return find_tasks()["fake-task"]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_quoted_string_is_read_back_as_it_was(text: str) -> None:
    config = model_config_pb2.ModelConfig()
    text_format.Parse(f"name: {model_folder.quote(text)}", config)
    assert config.name == text


@pytest.mark.parametrize("text", ["", "kind", "KIND GPU", 'X"', "KIND_GPU\n"])
def test_a_word_is_only_a_word(text: str) -> None:
    with pytest.raises(TemplateError):
        model_folder.word(text)


@pytest.mark.threat("model-name-in-yaml")
@pytest.mark.parametrize("name", EVIL)
def test_even_an_unchecked_name_stays_in_its_string(
    name: str, model: TritonModel, task: Task
) -> None:
    spec = dataclasses.replace(model.spec, name=name, task=name, streaming=True)
    for part in triton_models(spec):
        files = model_folder.render(part, task, Path("model_repository"))
        config: Any = model_config.parse(files["config.pbtxt"].decode())
        assert config.name == part.name
        assert part.parameters.items() <= model_config.parameters(config).items()
        assert part.parameters["hf_triton_task"] == name


@pytest.mark.parametrize(
    "template, message",
    [
        ("{{ model.backend }}", "a template prints 'python' without quote, word or numbers"),
        ("{{ model.nothing }}", "has no attribute 'nothing'"),
        ("{{ nothing | quote }}", "'nothing' is undefined"),
        ("{% if %}", "Expected an expression"),
        ("{{ model.is_decoupled }}", "a template prints False without"),
        ("{{ model.spec.trust_remote_code }}", "has no attribute 'trust_remote_code'"),
    ],
)
def test_a_broken_template_is_named(
    template: str, message: str, model: TritonModel, task: Task
) -> None:
    (task.folder / "config.pbtxt.j2").write_text(template)
    with pytest.raises(TemplateError, match=message):
        model_folder.render_config(model, task)


GOOD = """\
name: "m"
backend: "python"
input [{name: "I" data_type: TYPE_INT32 dims: [1]}]
output [{name: "O" data_type: TYPE_INT32 dims: [1]}]
parameters {key: "hf_triton_task" value {string_value: "fake-task"}}
parameters {key: "hf_triton_role" value {string_value: "whole"}}
"""


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD.replace('"m"', '"n"'), 'has no line name: "m", its folder\'s name'),
        (GOOD + "no_such_field: 1", "can't be parsed: 7:1 : "),
    ],
)
def test_a_config_that_is_none_is_refused(text: str, message: str) -> None:
    model_config.check(GOOD, "m")
    with pytest.raises(TemplateError, match=message):
        model_config.check(text, "m")
