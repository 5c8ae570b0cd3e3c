"""Sizes of models that are loaded on demand, and the memory that they may take together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from generator.models_yaml.server_settings import OnDemand
from generator.render.memory import FRONT_BYTES, PROCESS_BYTES
from hf_triton.runtime.request.request_parameters import VARIABLE
from hf_triton.serving.supervision.on_demand import sizes
from hf_triton.serving.supervision.on_demand.sizes import Sizes
from hf_triton.text_generation.memory.cache_budget import budgets_file, within_budget
from hf_triton.tritonserver.http_api import parse_metrics
from hf_triton.tritonserver.stubs import Stub
from tests.support.triton import DEMO_MODEL

GIB = 2**30
VALUES = f'{{"model": "{DEMO_MODEL}", "local": true, "dtype": "float32", "options": {{}}}}'
PUBLISHED = """\
hf_triton_memory_bytes{model="m",version="1",instance="m_0",device="cpu",kind="loaded"} 7
hf_triton_memory_bytes{model="m",version="1",instance="m_0",device="cuda:0",kind="loaded"} 1000
hf_triton_memory_bytes{model="m",version="1",instance="m_1",device="cuda:0",kind="loaded"} 500
hf_triton_memory_bytes{model="m",version="1",instance="m_0",device="cuda:0",kind="free"} 9000
hf_triton_memory_bytes{model="n",version="1",instance="n_0",device="cuda:0",kind="loaded"} 4000
"""
TWO_GPUS = {"cuda:0": (80.0 * GIB, 30.0 * GIB), "cuda:1": (80.0 * GIB, 60.0 * GIB)}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    monkeypatch.setattr(sizes, "gpu_bytes", lambda: found)
    monkeypatch.setattr(sizes, "free_cpu_bytes", lambda: 10 * GIB)
    return found


def make(
    repository: Path,
    group: str = "count: 1, kind: KIND_AUTO",
    *,
    settings: OnDemand = OnDemand(),  # noqa: B008, it is frozen
    stubs: Iterable[Stub] = (),
) -> Sizes:
    """Sizes of one entry, ``m``, with the front ``m`` and the engine ``m_stream``."""
    for folder in ("m", "m_stream"):
        (repository / folder / "1").mkdir(parents=True, exist_ok=True)
        text = f'name: "{folder}"\ninstance_group [ {{ {group} }} ]\n'
        if not (repository / folder / "config.pbtxt").exists():
            (repository / folder / "config.pbtxt").write_text(text)
    (repository / "m_stream/1/model.json").write_text(VALUES)
    folders = ["m_stream", "m"]
    published = parse_metrics(PUBLISHED)
    return Sizes(repository, settings, lambda _name: folders, lambda: stubs, lambda: published)


def weights() -> int:
    return (Path(DEMO_MODEL) / "model.safetensors").stat().st_size


def test_before_a_first_load_the_files_of_the_weights_count(tmp_path: Path, gpus: object) -> None:
    size = make(tmp_path, "count: 2, kind: KIND_CPU").of("m")
    assert set(size) == {"cpu"}
    processes = 2 * PROCESS_BYTES + FRONT_BYTES
    assert size["cpu"] == 2 * weights() + processes


@pytest.mark.parametrize(
    "group, expected",
    [
        ("count: 2, kind: KIND_GPU, gpus: [ 1 ]", {"cuda:1": 2.0}),
        ("count: 1, kind: KIND_AUTO", {"cuda:0": 1.0, "cuda:1": 1.0}),
        ("count: 1, kind: KIND_MODEL", {"cuda:0": 0.5, "cuda:1": 0.5}),
        ("count: 1, kind: KIND_CPU", {}),
    ],
)
def test_weights_lie_where_instances_are(
    tmp_path: Path,
    gpus: dict[str, tuple[float, float]],
    group: str,
    expected: dict[str, float],
) -> None:
    gpus.update(TWO_GPUS)
    size = dict(make(tmp_path, group).of("m"))
    assert size.pop("cpu") > 0
    assert size == {device: copies * weights() for device, copies in expected.items()}


def test_what_it_took_counts_from_then_on(tmp_path: Path, gpus: object) -> None:
    stubs = [Stub("m_stream", "1", os.getpid())]
    first = make(tmp_path, stubs=stubs)
    estimate = first.of("m")
    first.note_loaded("m")
    first.measure(["m"])
    running = first.of("m")
    assert running["cpu"] > 10 * 2**20, "this process' own memory"
    assert running["cuda:0"] == 1500, "all instances, and none of another model"
    first.note_unloaded("m")
    assert first.of("m") == running
    (tmp_path / "m_stream/config.pbtxt").write_text(
        "instance_group [ { count: 3, kind: KIND_CPU } ]"
    )
    assert first.of("m") not in (running, estimate), "it is another model now"


@pytest.mark.parametrize(
    "settings, cpu, gpu",
    [
        (OnDemand(memory_gib=4), 4 * GIB, 4 * GIB),
        (OnDemand(memory_share=0.25), None, 20 * GIB),
        (OnDemand(), 9 * GIB, 27 * GIB),
    ],
)
def test_the_budget_is_bytes_or_a_share_or_what_is_free(
    tmp_path: Path,
    gpus: dict[str, tuple[float, float]],
    settings: OnDemand,
    cpu: float | None,
    gpu: float,
) -> None:
    gpus.update(TWO_GPUS)
    found = make(tmp_path, settings=settings).limits()
    assert found["cuda:0"] == gpu
    assert cpu in (None, found["cpu"])


def test_what_runs_already_does_not_lessen_what_is_free(tmp_path: Path, gpus: object) -> None:
    found = make(tmp_path, stubs=[Stub("m_stream", "1", os.getpid())])
    before = found.limits()["cpu"]
    found.note_loaded("m")
    found.measure(["m"])
    assert found.limits()["cpu"] > before


def test_text_models_share_what_the_weights_leave_of_a_gpu(
    tmp_path: Path, gpus: dict[str, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.update(TWO_GPUS)
    sizes_of = {"small": {"cuda:0": 1.0 * GIB}, "large": {"cuda:0": 3.0 * GIB, "cpu": 9.0}}
    monkeypatch.setattr(sizes, "folder_bytes", lambda folder, *_: sizes_of[folder.name])

    def budgets(memory_gib: float) -> dict[str, dict[str, float]]:
        settings = OnDemand(memory_gib=memory_gib)
        return Sizes(tmp_path, settings, lambda name: [name], tuple, list).cache_budgets(sizes_of)

    assert budgets(12) == {
        "small": {"cuda:0": 2 * GIB},
        "large": {"cuda:0": 6 * GIB},
    }
    assert budgets(4)["large"] == {"cuda:0": 0.75 * GIB}


@pytest.mark.parametrize(
    "model, device, expected",
    [
        ("m", "cuda:0", 500),
        ("m", "cuda", 500),
        ("m", "cuda:1", 900),
        ("m", "cpu", 900),
        ("n", "cuda:0", 900),
    ],
)
def test_a_model_takes_no_more_of_a_gpu_than_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, device: str, expected: int
) -> None:
    budgets_file(f"{tmp_path}/p_").write_text('{"m": {"cuda:0": 500.0, "cuda:1": 1000.0}}')
    free = within_budget(model, lambda _device: 900)
    assert free(torch.device(device)) == 900, "nobody shares it"
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/p_")
    assert within_budget(model, lambda _device: 900)(torch.device(device)) == expected


def of_the_hub(folder: Path, **values: object) -> Sizes:
    found = make(folder)
    ours = {"model": "org/m", "local": False, "revision": None, "public_name": "m"}
    text = json.dumps({**ours, "dtype": "float32", "options": {}, **values})
    (folder / "m_stream/1/model.json").write_text(text)
    return found


@pytest.mark.parametrize(
    "values, size",
    [
        ({"locked_files": {"model.safetensors": {"size": 7000, "sha256": "0" * 64}}}, 7000),
        ({"locked_files": {"pytorch_model.bin": {"size": 7000, "sha256": "0" * 64}}}, 0),
        ({"gguf_file": "a.gguf", "locked_files": {"a.gguf": {"size": 7, "sha256": ""}}}, 56),
        ({"model": "s3://bucket/m"}, 0),
        ({"quantization": {"method": "int8"}}, 0),
    ],
)
def test_what_is_not_downloaded_is_as_large_as_models_lock_says(
    tmp_path: Path, gpus: object, values: dict[str, object], size: int
) -> None:
    found = of_the_hub(tmp_path, **values)
    assert found.of("m")["cpu"] == size + PROCESS_BYTES + FRONT_BYTES


def test_what_runs_below_a_process_counts_with_it(tmp_path: Path, gpus: object) -> None:
    def size() -> float:
        found = make(tmp_path, stubs=[Stub("m_stream", "1", os.getpid())])
        found.measure(["m"])
        return found.of("m")["cpu"]

    before, code = size(), "import sys; x = b'1' * 2**26; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE) as below:
        assert below.stdout is not None
        below.stdout.readline()
        assert size() - before > 2**26 - 2 * 2**20
