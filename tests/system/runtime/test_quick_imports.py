"""A model's process imports less of torch and transformers, and computes what it did."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_triton.runtime import disk_cache
from hf_triton.runtime.quick_imports import RELEASES
from tests.support.tiny_adapters import save_adapter
from tests.support.tiny_models import tiny_model

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
from pathlib import Path
sys.path[:0] = ["."]
import hf_triton.runtime
hf_triton.runtime.version_folder = Path(sys.argv[1])
os.environ["XDG_CACHE_HOME"] = sys.argv[1]
from hf_triton.runtime.quick_imports import leave_out
leave_out(hf_triton.runtime.version_folder)
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[2]).eval()
print(model(torch.tensor([[1, 2, 3]])).logits.sum().item())
names = ("torch._dynamo.eval_frame", "torch.distributed.tensor", "accelerate", "torchao", "sympy")
print([name for name in names if sys.modules.get(name)])
"""
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU all is imported")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    tiny_model("llama").save_pretrained(folder)
    return folder


def version_folder(folder: Path, weights: Path, **values: object) -> Path:
    served = {"options": {}, "local": True, "model": str(weights), **values}
    (folder / "model.json").write_text(json.dumps(served))
    return folder


def run(folder: Path, weights: Path, more: str = "") -> list[str]:
    command = [sys.executable, "-c", SCRIPT + more, str(folder), str(weights)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@NO_GPU
def test_a_model_computes_the_same_without_what_it_does_not_need(
    tmp_path: Path, weights: Path
) -> None:
    asks = """
torch._dynamo.reset()
compiled = torch.compile(lambda x: x * 2, backend="eager")
print(compiled(torch.ones(1)).item(), "torch._dynamo.eval_frame" in sys.modules)
print(torch.arange(3, device="meta").device)
"""
    logits, imported, compiled, device = run(version_folder(tmp_path, weights), weights, asks)
    own = tiny_model("llama")(torch.tensor([[1, 2, 3]])).logits.sum().item()
    assert float(logits) == pytest.approx(own, abs=1e-4)
    assert imported == "[]"
    assert compiled == "2.0 True"
    assert device == "meta"
    assert [*tmp_path.rglob("imports/*")]


@NO_GPU
def test_a_step_of_an_ensemble_knows_its_model_without_what_weights_need(
    tmp_path: Path, weights: Path
) -> None:
    asks = """
from hf_triton.runtime.quick_imports import without_weights
with without_weights():
    built = AutoModelForCausalLM.from_config(model.config)
print(built.lm_head.weight.shape == model.lm_head.weight.shape)
print([name for name in names if sys.modules.get(name)])
print(sys.modules["torch._meta_registrations"].has_begun)
"""
    folder = version_folder(tmp_path, weights, role="tokenizer")
    assert run(folder, weights, asks)[2:] == ["True", "[]", "False"]


@NO_GPU
def test_an_engine_that_uses_the_compiler_gets_all(tmp_path: Path, weights: Path) -> None:
    folder = version_folder(tmp_path, weights, options={"engine": "onnxruntime"})
    assert "torch._dynamo.eval_frame" in run(folder, weights)[1]


@NO_GPU
def test_an_adapter_beside_the_weights_is_loaded(tmp_path: Path, weights: Path) -> None:
    model = tiny_model("llama")
    save_adapter(model, tmp_path / "both", target_modules=["o_proj"])
    model.save_pretrained(tmp_path / "both")
    folder = version_folder(tmp_path, tmp_path / "both")
    assert run(folder, tmp_path / "both")[0] != run(folder, weights)[0]


def test_what_transformers_finds_in_its_files_is_found_again(tmp_path: Path, weights: Path) -> None:
    again = """
from transformers.utils.import_utils import create_import_structure_from_path as scan
import transformers.models
for path in (transformers.models.__file__, os.path.dirname(transformers.models.__file__)):
    print(scan(path) == scan.args[0](path))
"""
    folder = version_folder(tmp_path, weights)
    run(folder, weights)
    assert run(folder, weights, again)[2:] == ["True", "True"]


def test_nothing_is_left_where_a_value_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = disk_cache.path_of("imports", "a key")
    assert file is not None
    file.mkdir()
    with pytest.raises(OSError, match="directory"):
        disk_cache.put(file, b"1")
    assert [*file.parent.iterdir()] == [file]
    assert disk_cache.get(file) == b""


def test_values_are_kept_beside_what_others_of_a_group_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments lie there too; a volume that is mounted there belongs to root."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hf-triton").mkdir()
    (tmp_path / "hf-triton").chmod(0o775)
    file = disk_cache.path_of("imports", "a key")
    assert file is not None
    assert file.is_relative_to(tmp_path)


def test_the_releases_are_those_that_are_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lowest, past = re.findall(r'"transformers>=5\.(\d+),<5\.(\d+)"', text)[0]
    assert RELEASES["transformers"] == tuple(f"5.{n}" for n in range(int(lowest), int(past)))
    (pinned,) = re.findall(r'"torch==(\d+\.\d+)\.', text)
    assert RELEASES["torch"] == (pinned,)


def test_a_process_without_a_gpu_does_not_import_what_only_gpus_need() -> None:
    """torch's varlen_attn brings its compiler along: seconds of each load."""
    names = "hf_triton.text_generation.engines.in_flight.runner_selection", "sys"
    asked = f"import {', '.join(names)}; print('torch.nn.attention.varlen' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
