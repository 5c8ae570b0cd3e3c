"""Which models can be tuned, and with what they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from generator.errors import ModelError, UsageError
from generator.models_yaml.reading import load
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task, find_tasks
from perf.sweep.requests.bodies import Requests, counter, requests_of
from perf.tune.goal import Goal
from perf.tune.private_repository import PrivateRepository
from perf.tune.question import (
    INFER,
    STREAM,
    counted_by,
    endpoint_of,
    files_of,
    find_model,
    inputs_of,
)
from perf.tune.served import Room, target_in
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
SCENARIO = """\
scenarios:
  - name: chat
    models: [demo]
    endpoints: [grpc-stream]
    concurrency: [4]
    input: {prompt_tokens: 8-16, output_tokens: 32}
"""


@pytest.fixture(scope="module")
def tasks() -> Mapping[str, Task]:
    return find_tasks()


@pytest.fixture
def specs(tmp_path: Path, tasks: Mapping[str, Task]) -> list[ModelSpec]:
    path = tmp_path / "models.yaml"
    path.write_text(YAML)
    return load(path, dict(tasks))


@pytest.mark.parametrize(
    "name, message",
    [
        ("dmo", "has no model 'dmo'; there are: demo, emb, .*did you mean 'demo'"),
        ("steps", "is an ensemble"),
        ("shared", "shares its requests with others \\(a canary\\)"),
    ],
)
def test_what_can_not_be_tuned_is_refused(name: str, message: str, specs: list[ModelSpec]) -> None:
    with pytest.raises(ModelError, match=message):
        find_model(specs, name, Path("models.yaml"))


def test_models_that_stream_are_asked_for_streams(specs: list[ModelSpec]) -> None:
    demo, emb = specs[0], specs[1]
    assert endpoint_of(demo, None, Goal("latency")) == STREAM
    assert endpoint_of(demo, "infer", Goal("latency")) == INFER
    assert endpoint_of(emb, None, Goal("latency")) == INFER


@pytest.mark.parametrize(
    "place, endpoint, message",
    [
        (1, None, "'emb' does not stream: it has no first token"),
        (0, "infer", "'demo' is asked by /infer"),
        (1, "generate-stream", "'emb' does not stream"),
    ],
)
def test_a_first_token_needs_a_stream(
    place: int, endpoint: str | None, message: str, specs: list[ModelSpec]
) -> None:
    with pytest.raises(UsageError, match=message):
        endpoint_of(specs[place], endpoint, Goal("throughput", max_ttft_ms=5))


@pytest.mark.parametrize(
    "load, message",
    [
        ("prompt=0", "prompt: got 0, expected lengths from 1"),
        ("prompt=9-8", "an empty range"),
        ("words=5", "expected such as prompt=64,output=128"),
        ("prompt", "expected such as prompt=64,output=128"),
        ("output=8,output=9", "expected such as prompt=64,output=128"),
    ],
)
def test_a_load_that_says_nothing_is_refused(
    load: str, message: str, specs: list[ModelSpec]
) -> None:
    with pytest.raises(UsageError, match=message):
        inputs_of(specs[0], load)


def test_a_sweeps_scenario_says_what_is_sent(tmp_path: Path, specs: list[ModelSpec]) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    found = inputs_of(specs[0], str(path))
    assert (found.prompt[0].label, found.output[0].label) == ("8-16", "32")


@pytest.mark.parametrize(
    "text, message",
    [
        (SCENARIO.replace("demo", "other"), "0 scenarios name model 'demo', expected one"),
        (SCENARIO.replace("8-16", "[8, 16]"), "prompt is 2 loads, expected one"),
        (SCENARIO.replace("prompt_tokens", "prompt_words"), "lengths of prompt and output alone"),
    ],
)
def test_a_scenario_that_is_not_one_load_is_refused(
    text: str, message: str, tmp_path: Path, specs: list[ModelSpec]
) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        inputs_of(specs[0], str(path))


def test_a_model_that_generates_nothing_has_no_output_length(specs: list[ModelSpec]) -> None:
    with pytest.raises(UsageError, match="generates no text"):
        inputs_of(specs[1], "prompt=8,output=8")


def test_a_kept_answer_is_not_what_is_measured(tmp_path: Path, tasks: Mapping[str, Task]) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(YAML.replace("max_batch_size: 4", "response_cache: true"))
    private = PrivateRepository(
        tmp_path, load(path, dict(tasks))[1], tasks, path, tmp_path / "model_repository"
    )
    assert private.spec({}).response_cache is None


def test_a_trial_has_the_models_environment_and_adapters(
    tmp_path: Path, tasks: Mapping[str, Task]
) -> None:
    path, ours = tmp_path / "models.yaml", tmp_path / "trial"
    for folder in (ours, tmp_path / "polite"):
        folder.mkdir()
    (tmp_path / "needs.txt").write_text("einops\n")
    keys = "python_env: needs.txt, adapters: [{name: a, model: ./polite}, {name: b, model: org/b}]"
    path.write_text(YAML.replace("options: {max_num_seqs: 8}", keys))
    spec = load(path, dict(tasks))[0]
    trial = PrivateRepository(ours, spec, tasks, path, tmp_path / "model_repository").spec({})
    assert spec.python_env is not None
    assert trial.python_env is not None
    assert trial.python_env.digest == spec.python_env.digest
    assert [each.source.folder for each in trial.adapters] == [tmp_path / "polite", None]


def test_weights_that_were_not_fetched_are_asked_for(
    tmp_path: Path, specs: list[ModelSpec]
) -> None:
    with pytest.raises(ModelError, match="hf-triton fetch hub"):
        files_of(specs[3], tmp_path)


def test_a_trial_is_generated_beside_the_users_repository_and_reads_its_weights(
    tmp_path: Path, specs: list[ModelSpec], tasks: Mapping[str, Task]
) -> None:
    theirs, ours = tmp_path / "model_repository", tmp_path / "trial"
    cache = theirs / "demo" / "hf_cache"
    (cache / "models--org--name").mkdir(parents=True)
    (cache / "record.json").write_text("{}")
    ours.mkdir()
    private = PrivateRepository(ours, specs[0], tasks, tmp_path / "models.yaml", theirs)
    private.generate({"options.max_num_seqs": 2, "instance_group.count": 3})
    shared = private.path / "demo" / "hf_cache"
    assert (shared / "models--org--name").resolve() == cache / "models--org--name"
    (shared / "record.json").write_text("changed")
    assert (cache / "record.json").read_text() == "{}"
    assert "count: 3" in (private.path / "demo_stream" / "config.pbtxt").read_text()
    assert sorted(each.name for each in theirs.iterdir()) == ["demo"]


def requests(private: PrivateRepository, spec: ModelSpec, load: str | None) -> Requests:
    inputs = counted_by(inputs_of(spec, load), spec.source.folder)
    (found,) = requests_of(target_in(private, INFER), inputs, private.path, 0)
    return found


def test_requests_ask_for_exactly_so_many_tokens_and_fit_the_model(
    tmp_path: Path, specs: list[ModelSpec], tasks: Mapping[str, Task]
) -> None:
    private = PrivateRepository(tmp_path, specs[0], tasks, tmp_path / "models.yaml", tmp_path)
    private.generate({})
    found = requests(private, specs[0], "prompt=8-16,output=32")
    assert {each["min_tokens"][0] for each in found.entries} == {32}
    assert {each["max_tokens"][0] for each in found.entries} == {32}
    count = counter(DEMO_MODEL / "tokenizer.json")
    assert {count(each["text_input"][0]) for each in found.entries} == set(range(8, 17))
    assert found == requests(private, specs[0], "prompt=8-16,output=32")


def test_a_batch_dimension_is_in_the_requests_of_models_that_have_one(
    tmp_path: Path, specs: list[ModelSpec], tasks: Mapping[str, Task]
) -> None:
    private = PrivateRepository(tmp_path, specs[1], tasks, tmp_path / "models.yaml", tmp_path)
    private.generate({})
    found = requests(private, specs[1], None)
    assert '"shape": [1, 1]' in found.bodies(target_in(private, INFER))[0]


def test_more_instances_than_memory_holds_are_refused_with_the_numbers(
    specs: list[ModelSpec],
) -> None:
    room = Room(free_gib=2.0, weights_gib=0.5, cache_bytes=0, longest=0)
    assert room.refusal({"instance_group.count": 2}) is None
    refused = room.refusal({"instance_group.count": 4})
    assert refused == "needs at least 3.2 GiB, and 2.0 GiB are free"


def test_what_sequences_keep_counts_as_memory(specs: list[ModelSpec]) -> None:
    room = Room.of(specs[0], DEMO_MODEL)
    assert room.cache_bytes == 2 * 4 * 2 * 32 * 4  # both, layers, heads, width, float32
    assert room.longest == 1024
    room = Room(free_gib=1.0, weights_gib=0.0, cache_bytes=2**20, longest=1024)
    assert room.refusal({"options.max_num_seqs": 4}) == (
        "needs at least 4.3 GiB, and 1.0 GiB are free"
    )
