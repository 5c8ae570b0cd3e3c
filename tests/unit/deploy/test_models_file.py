"""The models.yaml that travels says what the user's own says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from generator.deploy.kubernetes import files_of
from generator.deploy.options import Options
from generator.deploy.rendering import block, quote
from generator.deploy.server import Server
from generator.models_yaml.reading import load
from generator.spec.model_spec import ModelSpec
from generator.yaml_file.editing import dumped
from generator.yaml_file.keys import plain
from generator.yaml_file.nodes import parse as parse_marks
from tests.support.triton import ROOT

OPTIONS = Options(target="kubernetes", config="models.yaml", output="out")
TEXTS = st.text(max_size=30)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, TREES, min_size=1, max_size=4))
def test_what_is_written_is_read_back_the_same(tree: dict[str, Any]) -> None:
    text = dumped(tree)
    assert text.isascii()
    assert plain(parse_marks(text.encode(), "models.yaml")) == tree


@given(st.text())
def test_a_quoted_text_is_read_back_the_same(text: str) -> None:
    assert yaml.safe_load(f"a: {quote(text)}") == {"a": text}


@given(st.text() | st.from_regex(r"([ -~]{0,9}\n){0,5}", fullmatch=True))
def test_a_block_is_read_back_the_same(text: str) -> None:
    found = yaml.safe_load(f"a:\n  b: {block(text, 4)}\n  c: 1\n")
    assert found == {"a": {"b": text, "c": 1}}


def test_requirements_travel_with_what_they_include_and_mean_the_same(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "below").mkdir(parents=True)
    there.mkdir()
    (here / "below" / "all.txt").write_text("-c limits.txt\neinops\n")
    (here / "below" / "limits.txt").write_text("einops<1\n")
    (here / "models.yaml").write_text(
        "models: [{name: own, task: text-generation, model: org/name,\n"
        "  python_env: {requirements: below/all.txt, system_site_packages: true}}]\n"
    )
    (spec,) = load(here / "models.yaml")
    server = Server((spec,), dataclasses.replace(OPTIONS, config=str(here / "models.yaml")))
    for name, content in files_of(server).items():
        (there / name).write_text(content)
    assert sorted(path.name for path in there.iterdir()) == ["all.txt", "limits.txt", "models.yaml"]
    (again,) = load(there / "models.yaml")
    assert again.python_env is not None
    assert spec.python_env is not None
    assert again.python_env.digest == spec.python_env.digest


def test_every_example_means_the_same_elsewhere(tmp_path: Path) -> None:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        specs = load(path)
        asked = dataclasses.replace(OPTIONS, config=str(path), local_models=str(path.parent))
        for name, content in files_of(Server(tuple(specs), asked)).items():
            (tmp_path / name).write_text(content)
        again = load(tmp_path / "models.yaml")
        for one, other in zip(specs, again, strict=True):
            assert one.source.folder == other.source.folder
            assert _digest(one) == _digest(other)
            same = dataclasses.replace(
                other, model=one.model, hooks=one.hooks, python_env=one.python_env
            )
            assert same == one


def _digest(spec: ModelSpec) -> str | None:
    """The digest of its Python environment, the same wherever the files lie."""
    return spec.python_env.digest if spec.python_env else None
