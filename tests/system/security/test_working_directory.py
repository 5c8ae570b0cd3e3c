"""Modules that lie where ``hf-triton serve`` is typed are no code of the server's."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.python_modules import leave_out_working_directory, run_module
from tests.support.served import started
from tests.support.triton import DEMO_MODEL, free_ports, post

# Modules that are imported if installed, or by Python and Triton themselves.
OPTIONAL = (
    *("uvloop", "h2", "torchvision", "numba", "PIL", "soundfile", "peft", "triton", "vllm"),
    *("llguidance", "onnxruntime", "torchao", "torchaudio", "librosa", "kernels", "flash_attn"),
    *("sitecustomize", "usercustomize", "triton_python_backend_utils", "c_python_backend_utils"),
    "hf_triton",
)
MODELS = """\
defaults: {{streaming: false}}
models:
  - {{name: demo, task: text-generation, model: {demo}, options: {{max_num_seqs: 2}}}}
  - {{name: image, task: pipeline, model: {image}, options: {{pipeline: image-classification}}}}
"""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module of every name that there is; each tells that it was imported."""
    told = tmp_path / "imported"
    names = {*importlib.metadata.packages_distributions(), *sys.stdlib_module_names, *OPTIONAL}
    for name in filter(str.isidentifier, names):
        trap = f"open({str(told)!r}, 'a').write(__name__ + '\\n')\n"
        (tmp_path / f"{name}.py").write_text(trap)
    yield tmp_path
    assert not told.exists() or not told.read_text().split()


@pytest.mark.threat("modules-in-the-working-folder")
def test_nothing_of_the_folder_that_is_served_from_is_imported(trapped: Path) -> None:
    models = MODELS.format(demo=DEMO_MODEL, image=DEMO_MODEL.parent / "image")
    (trapped / "models.yaml").write_text(models)
    listen = dataclasses.replace(free_ports(), openai_port=free_ports().http_port)
    with started(trapped, ("hf_triton.cli",), (), listen, {}) as served:
        served.wait_for("Ctrl-C stops")
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        answer = post(
            f"http://127.0.0.1:{listen.openai_port}/v1/completions",
            {"model": "demo", "prompt": "hello", "response_format": form, "max_tokens": 8},
        )
        assert answer.status == 200, answer.body


@pytest.mark.threat("modules-in-the-working-folder")
def test_a_module_of_ours_finds_nothing_in_the_working_directory(trapped: Path) -> None:
    """With whatever search path is inherited: an empty entry is the working directory too."""
    environment = {**os.environ, "PYTHONPATH": f"{os.pathsep}/nowhere{os.pathsep}"}
    leave_out_working_directory(environment)
    assert environment["PYTHONPATH"] == "/nowhere"
    command = run_module("hf_triton.cli", "tasks")
    done = subprocess.run(command, cwd=trapped, env=environment, capture_output=True, text=True)
    assert "text-generation" in done.stdout, done.stderr


@pytest.mark.threat("modules-in-the-working-folder")
def test_folders_are_told_in_full_and_empty_ones_left_out() -> None:
    environment = {"PATH": f"a{os.pathsep}", "PYTHONPATH": os.pathsep, "HF_HOME": "a", "TMPDIR": ""}
    leave_out_working_directory(environment)
    here = str(Path("a").absolute())
    assert environment == {"PATH": here, "HF_HOME": here, "TMPDIR": ""}
