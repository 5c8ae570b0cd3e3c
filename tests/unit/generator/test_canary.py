"""Arms of models.yaml as folders and routing.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.render.manifest import digest_in
from generator.spec.model_spec import ModelSpec
from tests.unit.generator.conftest import Run

_MODELS = """\
defaults: {task: fake-task, dtype: float16}
models:
  - name: m
    model: org/name
    revision: v1
    options: {limit: 3, label: one}
    canary:
      arms:
        - {name: stable, weight: %s}
        - {name: new, weight: %s, revision: v2, options: {label: two}}
        - {name: other, weight: 0.5, to: other}
        - {name: next, weight: 0, model: org/next}
      sticky: request_id
  - name: other
    model: org/other
"""


@pytest.fixture
def models(work: Path) -> Callable[[str], None]:
    def write(text: str) -> None:
        (work / "models.yaml").write_text(text, encoding="utf-8")

    return write


def _specs(work: Path) -> dict[str, ModelSpec]:
    return {spec.name: spec for spec in load(work / "models.yaml")}


def _routing(work: Path, model: str) -> Any:
    return json.loads((work / "model_repository" / model / "routing.json").read_text())


def test_an_arm_has_its_models_keys_but_for_its_own(
    models: Callable[[str], None], work: Path
) -> None:
    models(_MODELS % (90, 9.5))
    specs = _specs(work)
    assert list(specs) == ["m", "m_new", "m_next", "other"]
    new, of_another = specs["m_new"], specs["m_next"]
    assert (new.source.text, new.revision, new.dtype) == ("org/name", "v2", "float16")
    assert (new.options["limit"], new.options["label"]) == (3, "two")
    assert (new.canary, new.arm_of) == (None, "m")
    # A revision is of one repository.
    assert (of_another.source.text, of_another.revision) == ("org/next", None)
    assert specs["other"].arm_of is None


def test_routing_json_has_every_arm_under_its_name_in_triton(
    models: Callable[[str], None], work: Path, run: Run
) -> None:
    models(_MODELS % (90, 9.5))
    assert run("generate")[0] == 0
    assert _routing(work, "m") == {
        "arms": [
            {"name": "stable", "engine": "m", "weight": 90},
            {"name": "new", "engine": "m_new", "weight": 9.5},
            {"name": "other", "engine": "other", "weight": 0.5},
            {"name": "next", "engine": "m_next", "weight": 0},
        ],
        "sticky": "request_id",
    }
    for folder in ("m_new", "m_next", "other"):
        assert not (work / "model_repository" / folder / "routing.json").exists()
    config = (work / "model_repository" / "m_new" / "config.pbtxt").read_text()
    assert 'key: "hf_triton_arm_of" value { string_value: "m" }' in config


def test_weights_change_nothing_but_routing_json(
    models: Callable[[str], None], work: Path, run: Run
) -> None:
    models(_MODELS % (90, 9.5))
    run("generate")
    config = work / "model_repository" / "m" / "config.pbtxt"
    before = digest_in(config.read_bytes())
    models(_MODELS % (50, 49.5))
    code, out, _ = run("generate")
    assert code == 0
    assert "update     m: routing.json\n" in out
    assert "1 written" in out
    assert digest_in(config.read_bytes()) == before != ""


def test_without_a_canary_its_files_go_and_its_arms_are_orphans(
    models: Callable[[str], None], work: Path, run: Run
) -> None:
    models(_MODELS % (90, 9.5))
    run("generate")
    plain = (_MODELS % (90, 9.5)).split("    canary:")[0]
    models(plain)
    code, out, err = run("generate")
    assert code == 0
    assert "update     m: -routing.json" in out
    assert "m_new: is no longer in models.yaml" in err
    assert run("prune")[0] == 0
    assert sorted(path.name for path in (work / "model_repository").iterdir()) == ["m"]


def test_a_mistake_of_the_model_is_not_told_again_for_its_arms(
    models: Callable[[str], None], run: Run
) -> None:
    models((_MODELS % (90, 9.5)).replace("limit: 3", "limit: 0"))
    code, _, err = run("validate")
    assert code == 1
    assert err.splitlines()[0] == "hf-triton: 1 mistake in models.yaml"


def test_an_arm_has_all_adapters_that_its_models_requests_may_name(
    models: Callable[[str], None], work: Path
) -> None:
    polite, sql = "{name: polite, model: org/polite}", "{name: sql, model: org/sql}"
    arms = "{name: own, weight: 99}, {name: other, weight: 1, to: other}"
    text = f"""\
defaults: {{task: fake-stream, model: org/name}}
models:
  - {{name: m, adapters: [{polite}], canary: {{arms: [{arms}]}}}}
  - {{name: other, adapters: [%s]}}
"""
    models(text % sql)
    with pytest.raises(SpecError, match="'other' lacks the adapters polite, which requests may"):
        load(work / "models.yaml")
    models(text % f"{sql}, {polite}")
    assert set(_specs(work)) == {"m", "other"}


def test_a_streaming_models_engine_routes_to_engines(
    models: Callable[[str], None], work: Path, run: Run
) -> None:
    models((_MODELS % (90, 9.5)).replace("fake-task", "fake-stream").replace(", label: one", ""))
    text = (work / "models.yaml").read_text().replace("options: {label: two}", "dtype: float32")
    models(text)
    assert run("generate")[0] == 0
    engines = [arm["engine"] for arm in _routing(work, "m_stream")["arms"]]
    assert engines == ["m_stream", "m_new_stream", "other_stream", "m_next_stream"]
    assert not (work / "model_repository" / "m" / "routing.json").exists()
