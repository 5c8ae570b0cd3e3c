"""Lays out the model repositories that are measured, in a temporary folder beside the model.

The baseline's is copied from ``perf/baseline``; ours comes from ``hf-triton generate``, as a user's
does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
from perf.load.targets import IN_FLIGHT, TUTORIAL

BASELINE = Path(__file__).parent / "tutorial"
MODEL_FOLDER = "llama-42m"  # named in perf/baseline/config.pbtxt too

MODELS_YAML = f"""\
models:
  - name: {IN_FLIGHT.name}
    task: text-generation
    model: ./{MODEL_FOLDER}
    dtype: float32
    streaming: false
    options:
      engine: in_flight
      max_model_len: {LONGEST_PROMPT + OUTPUT_LENGTHS[-1]}
"""


def lay_out_baseline(folder: Path) -> Path:
    """Make the baseline's repository in ``folder``, which holds the model; return its path."""
    repository = folder / "baseline_repository"
    version = repository / TUTORIAL.name / "1"
    version.mkdir(parents=True)
    shutil.copy(BASELINE / "config.pbtxt", version.parent)
    shutil.copy(BASELINE / "model.py", version)
    return repository


def lay_out_in_flight(folder: Path) -> Path:
    """Generate our repository in ``folder``, which holds the model; return its path.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    return generated(folder, "in_flight", MODELS_YAML)


def generated(folder: Path, name: str, models_yaml: str) -> Path:
    """The repository that ``hf-triton generate`` makes of ``models_yaml``, in ``folder``.

    Raises ``subprocess.CalledProcessError`` when the generator does.
    """
    config, repository = folder / "models.yaml", folder / f"{name}_repository"
    config.write_text(models_yaml, encoding="utf-8")
    arguments = ["generate", "--config", str(config), "--repository", str(repository)]
    subprocess.run([sys.executable, "-m", "generator", *arguments], check=True, stdout=sys.stderr)
    return repository
