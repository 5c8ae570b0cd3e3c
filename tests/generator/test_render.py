"""Nothing that a value holds can leave the string it stands in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from generator import model_config, render
from generator.errors import TemplateError
from generator.models_yaml import load
from generator.spec import ModelSpec
from generator.templates import Task, find_tasks
from tests.generator.workspace import ONE_MODEL

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
]


@pytest.fixture
def spec(work: Path) -> ModelSpec:
    (work / "models.yaml").write_text(ONE_MODEL)
    return load(work / "models.yaml", find_tasks())[0]


@pytest.fixture
def task(work: Path) -> Task:
    return find_tasks()["fake-task"]


@pytest.mark.parametrize("text", EVIL)
def test_a_quoted_string_is_read_back_as_it_was(text: str) -> None:
    assert_is_read_back(text)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_quoted_string_is_read_back_as_it_was(text: str) -> None:
    assert_is_read_back(text)


def assert_is_read_back(text: str) -> None:
    config = model_config_pb2.ModelConfig()
    text_format.Parse(f"name: {render.quote(text)}", config)
    assert config.name == text


@pytest.mark.parametrize("text", ["", "kind", "KIND GPU", 'X"', "KIND_GPU\n"])
def test_a_word_is_only_a_word(text: str) -> None:
    with pytest.raises(TemplateError):
        render.word(text)


@pytest.mark.parametrize("name", EVIL)
def test_even_an_unchecked_name_stays_in_its_string(name: str, spec: ModelSpec, task: Task) -> None:
    text = render.render_config(dataclasses.replace(spec, name=name), task)
    assert model_config.parse(text).name == name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "template, message",
    [
        ("{{ model.name }}", "a template prints 'demo' without quote, word or numbers"),
        ("{{ model.nothing }}", "has no attribute 'nothing'"),
        ("{{ nothing | quote }}", "'nothing' is undefined"),
        ("{% if %}", "Expected an expression"),
        ("{{ model.trust_remote_code }}", "a template prints False without"),
    ],
)
def test_a_broken_template_is_named(
    template: str, message: str, spec: ModelSpec, task: Task
) -> None:
    (task.folder / "config.pbtxt.j2").write_text(template)
    with pytest.raises(TemplateError, match=message):
        render.render_config(spec, task)


GOOD = """\
name: "m"
backend: "python"
input [{name: "I" data_type: TYPE_INT32 dims: [1]}]
output [{name: "O" data_type: TYPE_INT32 dims: [1]}]
"""


def test_a_good_config_passes() -> None:
    model_config.check(GOOD, "m")


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD.replace('"m"', '"n"'), 'has no line name: "m", its folder\'s name'),
        (GOOD.replace('backend: "python"', ""), "backend is missing"),
        (GOOD + "max_batch_size: -1", "max_batch_size is -1, must not be negative"),
        (GOOD + "no_such_field: 1", "can't be parsed: 5:1 : "),
        (GOOD + 'input [{name: "I" data_type: TYPE_INT32 dims: [1]}]', "input I is declared twice"),
        (GOOD.replace("dims: [1]", "", 1), "input I has no dims"),
        (GOOD.replace("dims: [1]", "dims: [0]", 1), r"input I has dims \[0\]"),
        (GOOD.replace("data_type: TYPE_INT32", "", 1), "input I has no data_type"),
        (GOOD.replace('name: "O" ', ""), "an output has no name"),
        (GOOD[: GOOD.index("output")], "no output is declared"),
        (
            GOOD + "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [8] }",
            "preferred_batch_size 8 is not from 1 to max_batch_size, 4",
        ),
        (GOOD + "instance_group [{count: 0}]", "an instance_group has count 0"),
        (
            GOOD + "instance_group [{count: 1 kind: KIND_CPU gpus: [0]}]",
            "an instance_group of KIND_CPU lists gpus",
        ),
        (GOOD + "instance_group [{count: 1 gpus: [0, 0]}]", "a negative one or one twice"),
        (GOOD + "version_policy { latest { } }", "num_versions 0"),
        (GOOD + "version_policy { specific { versions: [2] } }", "leaves out version 1"),
    ],
)
def test_what_triton_refuses_at_load_is_refused_here(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        model_config.check(text, "m")
