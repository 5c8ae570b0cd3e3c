"""Lays out the model repositories that are measured, in a temporary folder beside the model.

The tutorial's is copied from ``perf/baselines/tutorial``; ours comes from ``hf-triton generate``,
as a user's does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
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
      engine: in_flight
      max_model_len: {max_model_len}
"""


def lay_out_tutorial(folder: Path) -> Path:
    """Make the tutorial's repository in ``folder``, which holds the model; return its path."""
    repository = folder / "tutorial_repository"
    version = repository / TUTORIAL.name / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(TUTORIAL_FILES / "config.pbtxt", version.parent)
    shutil.copy(TUTORIAL_FILES / "model.py", version)
    return repository


def lay_out_in_flight(folder: Path, dtype: str = "float32", *, streaming: bool = False) -> Path:
    """Generate our repository in ``folder``, which holds the model; return its path.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    models_yaml = MODELS_YAML.format(
        name=IN_FLIGHT.name,
        model=MODEL_FOLDER,
        dtype=dtype,
        streaming=str(streaming).lower(),
        max_model_len=LONGEST_PROMPT + OUTPUT_LENGTHS[-1],
    )
    return generated(folder, f"{dtype}{'_streaming' if streaming else ''}", models_yaml)


def generated(folder: Path, name: str, models_yaml: str) -> Path:
    """The repository that ``hf-triton generate`` makes of ``models_yaml``, in ``folder``.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    config, repository = folder / "models.yaml", folder / f"{name}_repository"
    config.write_text(models_yaml, encoding="utf-8")
    arguments = ["generate", "--config", str(config), "--repository", str(repository)]
    subprocess.run([sys.executable, "-m", "generator", *arguments], check=True, stdout=sys.stderr)
    return repository
