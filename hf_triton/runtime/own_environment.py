"""Whether a model with a Python environment of its own runs in that, and what a Python lacks.

``triton_python_backend_stub`` of the model's folder has looked for the environment already
(hf_triton/python_env/), and leaves word of what it found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hf_triton.python_env.find_environment import ENVIRONMENT_FILE
from hf_triton.runtime.errors import LoadError

FOUND_VARIABLE = "HF_TRITON_PYTHON_ENV_FOUND"
_LAUNCHER = "triton_python_backend_stub"


def check(version_folder: Path) -> None:
    """Raises LoadError where this process runs in another environment than the model asks for."""
    written = _written(version_folder)
    if written is None:
        return
    found = os.environ.get(FOUND_VARIABLE, "")
    word, _, folder = found.partition(" ")
    here = f"python_env: {written}: the server runs the model in {sys.prefix}"
    if not found:
        what = f"it has to start {_LAUNCHER} of the model's folder, which generate writes"
        raise LoadError(f"{here}: {what}")
    if word != "environment":
        raise LoadError(found)
    if not (Path(folder).exists() and Path(folder).samefile(sys.prefix)):
        here = f"python_env: {written}: is {folder}, but the server runs the model in {sys.prefix}"
        raise LoadError(f"{here}: make {folder} with python3 -m venv")


def lacks(version_folder: Path, error: ModuleNotFoundError) -> str:
    """What to install, and where, for an import to work that failed."""
    package = (error.name or str(error)).partition(".")[0]
    written = _written(version_folder)
    if written is not None:
        return f"python_env: {written}: lacks {package}, which this model needs: add that"
    what = "pip install 'hf-triton[runtime]' there"
    return f"the server's Python, {sys.prefix}, lacks {package}, which this model needs: {what}"


def _written(version_folder: Path) -> str | None:
    """What models.yaml says of the model's environment; None where it has none of its own."""
    try:
        text = (version_folder / ENVIRONMENT_FILE).read_text(encoding="utf-8")
        return str(json.loads(text)["written"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        what = "write it anew with `hf-triton generate`"
        raise LoadError(f"{ENVIRONMENT_FILE}: {error}; {what}") from error
