"""Any models.yaml gives a spec or a SpecError, never another exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.spec.model_spec import ModelKeys
from generator.yaml_file import nodes
from generator.yaml_file.keys import key_names
from tests.support.own_tasks import use_tasks
from tests.unit.generator.workspace import make_templates

QUICK = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PIECES = [
    *"-:[]{}#&*!|>'\"%@`,?\t\n \\~<=",
    *("models:", "defaults:", "\n- ", "\n  - ", "name:", "task: fake-task", "model: org/name"),
    *("options:", "dtype: auto", "instance_group:", "gpus: [0]", "<<: *a", "&a ", "!!str ", "---"),
    *("...", "null", "true", "1", "-1", "1e999", ".nan", "0x1F", "9" * 200, "\x00", "\u2028"),
    *("\ud7ff", "\ufeff", "😀", "{{ x }}", "{% x %}", "${x}", "../..", "é", '"\\ud800"', "|2-\n"),
]
KEYS = st.sampled_from([*key_names(ModelKeys), "limit", "preferred_batch_size", "count", "x"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["demo", "fake-task", "org/name", "auto", "KIND_GPU", ".", "/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@QUICK
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    parse(raw)


@QUICK
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_mix_of_yaml_is_read_or_refused(text: str) -> None:
    parse(text.encode("utf-8", "surrogatepass"))


def parse(raw: bytes) -> None:
    with contextlib.suppress(SpecError):
        nodes.parse(raw, "models.yaml")


@pytest.fixture(scope="module")
def templates_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_templates(tmp_path_factory.mktemp("fuzz") / "templates")
    with pytest.MonkeyPatch.context() as patch:
        use_tasks(folder, patch.setattr)
        yield folder


@pytest.mark.threat("yaml-bombs")
@settings(QUICK, max_examples=60)
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=8), max_size=3), VALUES)
def test_any_values_under_known_keys_are_read_or_refused(
    templates_folder: Path, models: list[object], defaults: object
) -> None:
    path = templates_folder / "models.yaml"
    text = yaml.safe_dump({"models": models, "defaults": defaults}, allow_unicode=True)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(SpecError):
        load(path)
