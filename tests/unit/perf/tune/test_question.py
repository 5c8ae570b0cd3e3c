"""Models that can be tuned, the requests that they get, and what is tried, by --search or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import ModelError, UsageError
from generator.models_yaml.reading import load
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import find_tasks
from perf.report.schema import Value
from perf.sweep.scenario import Inputs
from perf.tune import bench as bench_module
from perf.tune.bench import Bench, TrialError
from perf.tune.question import (
    STREAM,
    Goal,
    Request,
    endpoint_of,
    find_model,
    inputs_of,
    require_files,
)
from perf.tune.space import Space, make_space, short, worth_trying
from tests.support.triton import DEMO_MODEL, ROOT

EMBEDDING = ROOT / "demo" / "embedding"
YAML = f"""\
models:
  - {{name: demo, task: text-generation, model: {DEMO_MODEL}, options: {{max_num_seqs: 8}}}}
  - {{name: emb, task: feature-extraction, model: {EMBEDDING}, max_batch_size: 4}}
  - {{name: steps, task: feature-extraction, model: {EMBEDDING}, layout: ensemble}}
  - {{name: hub, task: text-generation, model: org/name}}
  - name: shared
    task: text-generation
    model: {DEMO_MODEL}
    canary: {{arms: [{{name: a, weight: 90}}, {{name: b, weight: 10, dtype: bfloat16}}]}}
"""


@pytest.fixture
def specs(tmp_path: Path) -> list[ModelSpec]:
    path = tmp_path / "models.yaml"
    path.write_text(YAML)
    return load(path)


@pytest.mark.parametrize(
    "name, message",
    [
        ("dmo", "has no model 'dmo'; did you mean 'demo'"),
        ("steps", "is an ensemble"),
        ("shared", "shares its requests with others \\(a canary\\)"),
    ],
)
def test_what_can_not_be_tuned_is_refused(name: str, message: str, specs: list[ModelSpec]) -> None:
    with pytest.raises(ModelError, match=message):
        find_model(specs, name, Path("models.yaml"))


def test_a_first_token_needs_a_stream(specs: list[ModelSpec]) -> None:
    with pytest.raises(UsageError, match="'emb' does not stream: it has no first token"):
        endpoint_of(specs[1], Goal("throughput", max_ttft_ms=5))
    assert endpoint_of(specs[0], Goal("throughput", max_ttft_ms=5)) == STREAM


@pytest.mark.parametrize(
    "load, message",
    [
        ("prompt=0", "prompt: expected lengths from 1"),
        ("prompt=9-8", "an empty range"),
        ("words=5", "expected such as prompt=64,output=128"),
        ("prompt", "expected such as prompt=64,output=128"),
        ("sweep.yaml", "expected such as prompt=64,output=128"),
        ("output=8,output=9", "expected such as prompt=64,output=128"),
    ],
)
def test_a_load_that_says_nothing_is_refused(
    load: str, message: str, specs: list[ModelSpec]
) -> None:
    with pytest.raises(UsageError, match=message):
        inputs_of(specs[0], load)


def bench(folder: Path, text: str, place: int) -> Bench:
    """The question for an entry of a models.yaml in ``folder``."""
    path, scratch = folder / "models.yaml", folder / "trial"
    path.write_text(text)
    scratch.mkdir(exist_ok=True)
    spec = load(path)[place]
    request = Request("demo", path, folder / "model_repository", Goal("throughput"), 1, 3, 9, 1.0)
    return Bench(request, spec, scratch, Inputs(), STREAM if spec.streaming else "http-infer")


def test_a_kept_answer_is_not_what_is_measured(tmp_path: Path) -> None:
    text = YAML.replace("max_batch_size: 4", "response_cache: true")
    assert bench(tmp_path, text, 1).read({}).response_cache is None


def test_a_trial_has_the_models_environment_and_adapters(tmp_path: Path) -> None:
    (tmp_path / "polite").mkdir()
    (tmp_path / "needs.txt").write_text("einops\n")
    keys = "python_env: needs.txt, adapters: [{name: a, model: ./polite}, {name: b, model: org/b}]"
    text = YAML.replace("options: {max_num_seqs: 8}", keys)
    found = bench(tmp_path, text, 0)
    spec, trial = found.spec, found.read({})
    assert spec.python_env is not None
    assert trial.python_env is not None
    assert trial.python_env.digest == spec.python_env.digest
    assert [each.model.folder for each in trial.adapters or ()] == [tmp_path / "polite", None]


def test_weights_that_were_not_fetched_are_asked_for(
    tmp_path: Path, specs: list[ModelSpec]
) -> None:
    with pytest.raises(ModelError, match="hf-triton fetch hub"):
        require_files(specs[3], tmp_path)
    require_files(specs[0], tmp_path)


def test_settings_that_can_not_be_are_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "free_cpu_bytes", lambda: 2**30)
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = bench(tmp_path, YAML, 0)
    for settings, told in (
        ({"instance_group.count": 5}, "needs at least 1.3 GiB, and 1.0 GiB are free"),
        ({"options.kv_cache_gib": 8}, "needs at least 8.3 GiB, and 1.0 GiB are free"),
        ({"options.max_num_seqs": 0}, "max_num_seqs: got 0"),
    ):
        with pytest.raises(TrialError, match=told), found.serving(settings):
            raise AssertionError("served")


def spec_of(folder: Path, more: str = "", task: str = "text-generation") -> ModelSpec:
    path = folder / "models.yaml"
    path.write_text(f"models:\n- {{name: demo, task: {task}, model: {DEMO_MODEL}{more}}}\n")
    return load(path)[0]


def space_of(spec: ModelSpec, *search: str) -> Space:
    usual = worth_trying(spec, find_tasks()[spec.task], callers=16, cores=4)
    return make_space(spec, find_tasks()[spec.task], search, usual)


def values(space: Space) -> dict[str, tuple[Value, ...]]:
    return {short(key): found for key, found in space.dimensions.items()}


@pytest.mark.parametrize(
    "written, expected",
    [
        ("max_num_seqs=8,4,32", (None, 4, 8, 32)),
        ("options.max_num_seqs=4", (None, 4)),
        ("max_num_seqs=1:20", (None, 1, 2, 4, 8, 16, 20)),
        ("max_num_seqs=1:27:x3", (None, 1, 3, 9, 27)),
        ("max_num_seqs=8:24:8", (None, 8, 16, 24)),
        ("kv_cache_gib=0.5:2", (None, 0.5, 1.0, 2.0)),
        ("kv_cache_gib=null,1", (None, 1)),
        ("engine=auto,generate", ("auto", "generate")),
        ("max_queue_delay_microseconds=0:200:100", (0, 100, 200)),
    ],
)
def test_values_are_those_that_were_written_and_the_current_one(
    written: str, expected: tuple[Value, ...], tmp_path: Path
) -> None:
    space = space_of(spec_of(tmp_path), written)
    assert tuple(values(space).values()) == (expected,)


@pytest.mark.parametrize(
    "written, message",
    [
        ("max_num_seq=4", "unknown key 'max_num_seq'.*did you mean 'max_num_seqs'"),
        ("max_num_seqs=0,4", "max_num_seqs: got 0, expected a whole number from 1 to 1024"),
        ("max_num_seqs=four", "max_num_seqs: got 'four', expected a whole number"),
        ("max_num_seqs=1.5", "max_num_seqs: got 1.5, expected a whole number"),
        ("max_num_seqs=64:1", "an empty range"),
        ("max_num_seqs=1:64:0", "a range that never ends"),
        ("max_num_seqs=1:64:x1", "a range that never ends"),
        ("max_num_seqs=1:1000:1", "more than 256 points"),
        ("max_num_seqs=a:b", "got 'a:b', expected a whole number"),
        ("max_num_seqs=", "expected KEY=VALUE"),
        ("max_num_seqs=,", "expected KEY=VALUE"),
        ("max_num_seqs=[1", "got '\\[1'|expected"),
        ("max_num_seqs", "expected KEY=VALUE"),
        ("kv_cache_gib=-1", "kv_cache_gib: got -1, expected a number above 0"),
        ("engine=fast", "engine: got 'fast', expected one of auto, in_flight, generate, vllm"),
        ("instance_group.count=0", "got 0, expected a whole number from 1 to 128"),
        ("max_batch_size=-1", "max_batch_size: got -1"),
    ],
)
def test_what_models_yaml_does_not_allow_is_refused_by_its_key(
    written: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        space_of(spec_of(tmp_path), written)


def test_instances_that_are_not_one_number_are_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ", device_map: auto")
    with pytest.raises(UsageError, match="has a device_map or several groups"):
        space_of(spec, "instance_group.count=1,2")


def test_a_text_model_is_tried_with_what_its_engine_looks_at(tmp_path: Path) -> None:
    found = values(space_of(spec_of(tmp_path)))
    assert found["max_num_seqs"] == (None, 4, 8, 16)  # more than all 16 callers is the same
    assert set(found) == {"max_num_seqs", "max_num_batched_tokens", "instance_group.count"}


def test_batches_and_delays_are_tried_where_requests_have_a_batch_dimension(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ", max_batch_size: 8", task="feature-extraction")
    found = values(space_of(spec))
    assert found["max_batch_size"] == (1, 2, 4, 8, 16)
    assert found["max_queue_delay_microseconds"] == (0, 100, 500, 1000, 5000)
    assert "max_num_seqs" not in found
