"""A correct models.yaml becomes specs of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.models_yaml.reading import load
from generator.spec.model_spec import DynamicBatching, InstanceGroup, ModelSpec
from generator.spec.triton_models import triton_models
from tests.unit.generator.workspace import ONE_MODEL, ONE_STREAMING_MODEL

HEAD = "models:\n  - name: demo\n    task: fake-task\n"


def read(text: str, work: Path) -> list[ModelSpec]:
    (work / "models.yaml").write_text(text)
    return load(work / "models.yaml")


def read_one(text: str, work: Path) -> ModelSpec:
    return read(text, work)[0]


@pytest.mark.threat("remote-code")
def test_everything_left_out_has_its_default(work: Path) -> None:
    spec = read_one(ONE_MODEL, work)
    assert (spec.revision, spec.dtype, spec.device_map) == (None, "auto", None)
    assert (spec.trust_remote_code, spec.max_batch_size) == (False, 0)
    assert spec.dynamic_batching == DynamicBatching()
    assert spec.instance_groups == (InstanceGroup(1, "KIND_AUTO"),)
    assert (spec.version_policy, spec.streaming) == (None, False)
    assert spec.options == {
        "engine": "fast",
        "limit": None,
        "rate": 0.5,
        "flag": False,
        "label": "x",
    }


def test_a_whole_number_is_taken_for_a_number(work: Path) -> None:
    rate = read_one(ONE_MODEL + "    options: {rate: 2}\n", work).options["rate"]
    assert (rate, type(rate)) == (2.0, float)


def test_defaults_are_merged_into_every_model(work: Path) -> None:
    defaults = "defaults: {task: fake-task, dtype: float16, trust_remote_code: true}\n"
    models = "models:\n  - {name: a, model: o/n}\n  - {name: b, model: o/n, dtype: auto}\n"
    first, second = read(defaults + models, work)
    assert (first.dtype, first.trust_remote_code) == ("float16", True)
    assert (second.dtype, second.trust_remote_code) == ("auto", True)


def test_options_and_dynamic_batching_merge_key_by_key(work: Path) -> None:
    defaults = """\
defaults:
  max_batch_size: 8
  options: {limit: 3, flag: true}
  dynamic_batching: {preferred_batch_size: [2, 4], max_queue_delay_microseconds: 50}
"""
    own = "    options: {limit: null}\n    dynamic_batching: {preferred_batch_size: [8]}\n"
    spec = read_one(defaults + ONE_MODEL + own, work)
    assert (spec.options["limit"], spec.options["flag"]) == (None, True)
    assert spec.dynamic_batching == DynamicBatching((8,), 50)


@pytest.mark.parametrize("value", ["./weights", "weights", "../work/weights", "a/b/weights", "."])
def test_a_folder_is_found_from_the_yaml(value: str, work: Path) -> None:
    (work / "weights").mkdir()
    (work / "a/b/weights").mkdir(parents=True)
    source = read_one(f"{HEAD}    model: {value}\n", work).source
    assert (source.text, source.folder) == (value, (work / value).resolve())


@pytest.mark.parametrize("value", ["gpt2", "org/name", "Org-1/na_me.v2-x", "_org/name"])
def test_anything_else_is_a_hub_id(value: str, work: Path) -> None:
    source = read_one(f"{HEAD}    model: {value}\n", work).source
    assert (source.text, source.is_local) == (value, False)


@pytest.mark.parametrize(
    "text, streaming",
    [
        (ONE_MODEL, False),
        (ONE_MODEL + "    streaming: false\n", False),
        (ONE_STREAMING_MODEL, True),
        (ONE_STREAMING_MODEL + "    streaming: true\n", True),
        (ONE_STREAMING_MODEL + "    streaming: false\n", False),
        ("defaults: {streaming: false}\n" + ONE_STREAMING_MODEL, False),
        ("defaults: {streaming: false}\n" + ONE_STREAMING_MODEL + "    streaming: true\n", True),
    ],
)
def test_a_model_streams_as_it_says_or_else_as_its_task_can(
    text: str, streaming: bool, work: Path
) -> None:
    assert read_one(text, work).streaming is streaming


def test_the_longest_name_of_a_model_that_streams_leaves_room_for_its_engine(work: Path) -> None:
    spec = read_one(ONE_STREAMING_MODEL.replace("demo", "n" * 121), work)
    front, engine = triton_models(spec)
    assert (front.name, engine.name, len(engine.name)) == (spec.name, f"{spec.name}_stream", 128)


def test_words_of_older_yaml_are_text(work: Path) -> None:
    specs = read(
        "models:\n" + "".join(f"- {{name: {n}, task: fake-task, model: m}}\n" for n in W), work
    )
    assert [spec.name for spec in specs] == W


W = ["no", "on", "y", "2024-01-01", "1_000", "0b1"]


def test_a_null_overrides_a_default(work: Path) -> None:
    spec = read_one("defaults: {revision: main}\n" + ONE_MODEL + "    revision: null\n", work)
    assert spec.revision is None


def test_the_home_folder_is_expanded(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(work))
    source = read_one(f"{HEAD}    model: ~\n".replace("~", "'~'"), work).source
    assert (source.text, source.folder) == (str(work), work)


def test_a_file_beside_the_yaml_is_no_local_model(work: Path) -> None:
    (work / "gpt2").write_text("a file")
    assert not read_one(f"{HEAD}    model: gpt2\n", work).source.is_local
