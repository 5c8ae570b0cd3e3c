"""Hooks can be tested without a server, and behave there as in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from generator.errors import ModelError, SpecError
from generator.testing_hooks import HooksUnderTest, load_hooks
from hf_triton.runtime.errors import HookError, LoadError, RequestError
from tests.unit.generator.workspace import ONE_MODEL

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "hooks.yaml"

YAML = f"""\
{ONE_MODEL}    hooks: my_hooks.py
    metrics:
      length: {{type: gauge}}
      seen_total: {{type: counter, labels: [limit]}}
"""
HOOKS = """\
from hf_triton.hooks import observe

def preprocess(request):
    text = request.text("IN")
    observe("length", len(text))
    observe("seen_total", limit=request.parameters.get("LIMIT", 0))
    request["IN"] = text.upper()

def postprocess(response):
    response["OUT"] = [*response.texts("OUT"), response.request.text("IN", "nothing")]
    1 / len(response["OUT"][0])
"""


def loaded(work: Path, yaml: str = YAML, hooks: str = HOOKS) -> HooksUnderTest:
    (work / "models.yaml").write_text(yaml)
    (work / "my_hooks.py").write_text(hooks)
    return load_hooks(work / "models.yaml", "demo")


def test_both_functions_run_as_in_the_server(work: Path) -> None:
    hooks = loaded(work)
    request = hooks.preprocess({"IN": "abc"}, {"LIMIT": 7})
    assert request["IN"].tolist() == [b"ABC"]
    response = hooks.postprocess({"OUT": "x"}, request)
    assert response.texts("OUT") == ["x", "ABC"]
    assert hooks.postprocess({"OUT": ["x"]}, is_final=False).texts("OUT") == ["x", "nothing"]


def test_the_first_example_of_the_docs_works_as_copied(tmp_path: Path) -> None:
    text = (ROOT / "docs/hooks.md").read_text(encoding="utf-8")
    yaml, python = (re.search(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("yaml", "python"))
    assert yaml is not None
    assert python is not None
    yaml_text = yaml[1].replace("./demo", str(ROOT / "demo"))
    (tmp_path / "models.yaml").write_text(yaml_text)
    (tmp_path / "my_hooks.py").write_text(python[1])
    hooks = load_hooks(tmp_path / "models.yaml", "sentiment")
    request = hooks.preprocess({"text_input": " fine "})
    assert request.text("text_input") == "fine"
    hooks.postprocess({"label": "POSITIVE"}, request)
    assert hooks.observed("input_characters") == [4]
    assert hooks.observed("labels_total", label="POSITIVE") == [1]


def test_what_was_observed_can_be_asked_for(work: Path) -> None:
    hooks = loaded(work)
    for text, limit in (("a", 1), ("bb", 2), ("ccc", 1)):
        hooks.preprocess({"IN": text}, {"LIMIT": limit})
    assert hooks.observed("length") == [1, 2, 3]
    assert hooks.observed("seen_total", limit=1) == [1, 1]
    assert hooks.observed("seen_total", limit=3) == []


def test_errors_are_the_servers_own(work: Path) -> None:
    hooks = loaded(work)
    with pytest.raises(RequestError, match="IN: missing"):
        hooks.preprocess({})
    with pytest.raises(HookError, match=r"my_hooks.py:11: postprocess raised ZeroDiv") as caught:
        hooks.postprocess({"OUT": ""})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(HookError, match="input 'OTHER' is not declared"):
        hooks.preprocess({"OTHER": "x"})


@pytest.mark.parametrize(
    "yaml, hooks, error, message",
    [
        (
            YAML.replace("demo", "other"),
            HOOKS,
            ModelError,
            "has no model 'demo'; known models: other",
        ),
        (ONE_MODEL, HOOKS, ModelError, "model 'demo' has no hooks"),
        (YAML.replace("gauge", "gage"), HOOKS, SpecError, "got 'gage', expected one of"),
        (YAML, "def preprocess(:\n", SpecError, "my_hooks.py:1: invalid syntax"),
        (YAML, f"import no_such_module\n{HOOKS}", LoadError, "hooks: my_hooks.py:1: ModuleNot"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    yaml: str, hooks: str, error: type[Exception], message: str, work: Path
) -> None:
    with pytest.raises(error, match=message):
        loaded(work, yaml, hooks)


@pytest.mark.parametrize("inputs", [{"text_input": " \n "}, {}])
def test_the_example_refuses_a_blank_text(inputs: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="text_input: missing or blank, a text is required"):
        load_hooks(EXAMPLE, "sentiment").preprocess(inputs)


def test_a_batch_has_the_rows_that_it_is_given(work: Path) -> None:
    hooks = loaded(
        work, f"{YAML}    max_batch_size: 4\n", HOOKS.replace('text("IN")', 'text("IN")')
    )
    assert hooks.preprocess({"IN": ["a"]})["IN"].shape == (1, 1)
    with pytest.raises(HookError, match="got 1 value, allowed: shape"):
        hooks.preprocess({"IN": ["a", "b"]}, num_rows=2)  # it sets one text for both
