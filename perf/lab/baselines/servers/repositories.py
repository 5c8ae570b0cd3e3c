"""Lays out the model repositories that are measured, in a temporary folder beside the model.

The tutorial's is copied from ``tutorial/``; ours comes from ``hf-triton generate``,
as a user's does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from generator.python_modules import run_module
from perf.lab.baselines.servers.launches import MAX_MODEL_LEN, VLLM_CACHE_GIB
from perf.load.targets import IN_FLIGHT, TUTORIAL

TUTORIAL_FILES = Path(__file__).parent / "tutorial"
MODEL_FOLDER = "llama-42m"  # named in tutorial/config.pbtxt too

MODELS_YAML = """\
models:
  - name: {name}
    task: text-generation
    model: ./{model}
    dtype: {dtype}
    streaming: {streaming}
    options:
      engine: {engine}
      max_model_len: {max_model_len}
"""
# What gives a model an environment of its own on any server.
ENVIRONMENT = """
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}
"""


def lay_out_tutorial(folder: Path) -> Path:
    """Make the tutorial's repository in ``folder``, which holds the model; return its path."""
    repository = folder / "tutorial_repository"
    version = repository / TUTORIAL.name / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(TUTORIAL_FILES / "config.pbtxt", version.parent)
    shutil.copy(TUTORIAL_FILES / "model.py", version)
    return repository


def lay_out_in_flight(
    folder: Path,
    dtype: str = "float32",
    *,
    streaming: bool = False,
    on_vllm: Path | None = None,
) -> Path:
    """Generate our repository in ``folder``, which holds the model; return its path. Where the
    environment ``on_vllm`` is given, with the vllm engine in it.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    models_yaml = MODELS_YAML.format(
        name=IN_FLIGHT.name,
        model=MODEL_FOLDER,
        dtype=dtype,
        streaming=str(streaming).lower(),
        engine="vllm" if on_vllm else "in_flight",
        max_model_len=MAX_MODEL_LEN,
    )
    name = f"{dtype}{'_streaming' if streaming else ''}"
    if on_vllm is None:
        return generated(folder, name, models_yaml)
    models_yaml += f"      kv_cache_gib: {VLLM_CACHE_GIB}\n"
    repository = generated(folder, f"vllm_{name}", models_yaml, "--force")
    engine = repository / (f"{IN_FLIGHT.name}_stream" if streaming else IN_FLIGHT.name)
    with (engine / "config.pbtxt").open("a", encoding="utf-8") as config:
        config.write(ENVIRONMENT.format(on_vllm))
    return repository


def generated(folder: Path, name: str, models_yaml: str, *options: str) -> Path:
    """The repository that ``hf-triton generate`` with ``options`` makes of ``models_yaml``, in
    ``folder``.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    config, repository = folder / "models.yaml", folder / f"{name}_repository"
    config.write_text(models_yaml, encoding="utf-8")
    arguments = ["generate", "--config", str(config), "--repository", str(repository), *options]
    subprocess.run(run_module("generator", *arguments), check=True, stdout=sys.stderr)
    return repository
