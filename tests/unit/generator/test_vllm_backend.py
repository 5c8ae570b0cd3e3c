"""``layout: vllm-backend``: one folder for NVIDIA's vLLM backend, by the real task's options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.render.model_data import is_used_in
from generator.render.sample_requests import curl_lines
from hf_triton.cli.verbs.generate import generate
from hf_triton.tritonserver.process import TritonServer
from tests.unit.generator.conftest import Run

MODEL = """\
models:
  - name: llm
    task: text-generation
    model: org/name
    layout: vllm-backend
"""
COMMIT = "0123456789" * 4
FILES = {"model.safetensors": {"size": 5, "sha256": "ab" * 32}}
LOCK = {"version": 1, "models": {"org/name": {"main": {"commit": COMMIT, "files": FILES}}}}
URL = "http://127.0.0.1:8000/v2/models"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where the real tasks are known."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(text: str) -> dict[str, Any]:
    """What the backend is told of the model that ``text`` makes."""
    Path("models.yaml").write_text(text)
    generate(Path("models.yaml"), Path("model_repository"))
    found: dict[str, Any] = json.loads(Path("model_repository/llm/1/model.json").read_text())
    return found


def refusals(text: str) -> list[str]:
    Path("models.yaml").write_text(text)
    with pytest.raises(SpecError) as refused:
        load(Path("models.yaml"))
    return [
        f"{one.line}:{one.column}: {one.where}: {one.message}" for one in refused.value.problems
    ]


def test_options_become_arguments_of_vllm(home: Path) -> None:
    options = "{max_model_len: 4096, max_num_seqs: 100, kv_cache_gib: 1.5}"
    assert arguments(f"{MODEL}    dtype: bfloat16\n    options: {options}\n") == {
        "model": "org/name",
        "dtype": "bfloat16",
        "load_format": "safetensors",
        "max_model_len": 4096,
        "max_num_seqs": 100,
        "kv_cache_memory_bytes": 1536 * 2**20,
    }


def test_a_locked_model_is_taken_from_where_fetch_puts_it(home: Path, run: Run) -> None:
    (home / "models.lock").write_text(json.dumps(LOCK))
    found = arguments(MODEL)
    assert found["model"] == f"llm/hf_cache/models--org--name/snapshots/{COMMIT}"
    assert "revision" not in found
    folder = home / "model_repository" / found["model"]
    assert "its weights are not here yet; hf-triton fetch llm" in run("generate")[2]
    folder.mkdir(parents=True)
    assert "fetch" not in run("generate")[2]


def test_paths_start_where_serve_starts_triton(home: Path) -> None:
    (home / "weights").mkdir()
    local = MODEL.replace("org/name", "./weights")
    assert (home / "model_repository" / arguments(local)["model"]).resolve() == home / "weights"
    assert is_used_in(home / "model_repository")
    assert not is_used_in(home)
    assert TritonServer(home / "model_repository").repository == home / "model_repository"


def test_curl_lines_say_what_the_backend_takes(home: Path) -> None:
    arguments(MODEL)
    lines = curl_lines(home / "model_repository", "llm", URL)
    whole, streamed = map(shlex.split, lines)
    assert whole[1] == f"{URL}/llm/generate"
    assert streamed[:3] == ["curl", "-N", f"{URL}/llm/generate_stream"]
    values = json.loads(whole[3])
    assert json.loads(values.pop("sampling_parameters")) == {"max_tokens": 64, "temperature": 0}
    assert values == {"text_input": "I am going", "exclude_input_in_output": True}
    assert json.loads(streamed[4])["stream"] is True


def test_a_model_that_changes_its_layout_leaves_its_other_folder_to_prune(
    home: Path, run: Run
) -> None:
    Path("models.yaml").write_text(MODEL.replace("    layout: vllm-backend\n", ""))
    assert run("generate")[0] == 0
    arguments(MODEL)
    assert not (home / "model_repository/llm/1/model.py").exists()
    assert run("diff")[0] == 1
    assert run("prune")[0] == 0
    assert run("diff")[0] == 0
    assert not (home / "model_repository/llm_stream").exists()


def test_options_that_the_backend_cannot_honour_are_refused(home: Path) -> None:
    options = "{engine: in_flight, default_max_tokens: 5, max_queue_size: 9, max_num_seqs: 7}"
    found = refusals(f"{MODEL}    options: {options}\n")
    refused = "NVIDIA's vLLM backend can't honour it"
    assert found[0] == (
        "6:23: models[0].options.engine: got 'in_flight', expected vllm: the layout is NVIDIA's "
        "vLLM backend"
    )
    assert found[1].startswith(
        f"6:54: models[0].options.default_max_tokens: {refused}: a request says max_tokens in"
    )
    assert found[2].startswith(f"6:73: models[0].options.max_queue_size: {refused}: it runs none")
    assert len(found) == 3


def test_an_engine_over_several_gpus_is_one_instance(home: Path) -> None:
    groups = "    instance_group: [{kind: KIND_GPU, gpus: [0, 1]}]\n"
    own = "    options: {engine: vllm, vllm: {tensor_parallel_size: 2}}\n"
    (found,) = refusals(f"{MODEL}{groups}{own}")
    assert found.endswith("options.vllm spreads one engine over 2 GPUs")


def test_vllms_own_arguments_are_passed_through(home: Path) -> None:
    own = "{tensor_parallel_size: 2, compilation_config: {level: 3}}"
    found = arguments(f"{MODEL}    options: {{engine: vllm, vllm: {own}}}\n")
    assert (found["tensor_parallel_size"], found["compilation_config"]) == (2, {"level": 3})
    assert "engine" not in found
