"""What Triton loads of a model with an environment of its own: the task's model, which lies beside
it as task_model.py, where the environment is there and has what that needs.

triton_python_backend_stub of the model's folder has looked for the environment already and leaves
word of what it found. Told in ``initialize``: of what fails before, Triton shows a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

_FOLDER = Path(__file__).parent / "python_env"
_MAX_CHARACTERS = 600
_LAUNCHER = "triton_python_backend_stub"


class _Unloadable:
    """A model that says why it can't be loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        """Raises one readable line."""
        reason = " ".join(_error.split())[-_MAX_CHARACTERS:]
        raise pb_utils.TritonModelException(f"{args['model_name']}: {reason}")

    def execute(self, requests: list[object]) -> None:
        """Never called; Triton wants it."""


def _about_key(text: str) -> str:
    """``text`` behind what models.yaml says."""
    values = json.loads((_FOLDER / "environment.json").read_text(encoding="utf-8"))
    return f"python_env: {values['written']}: {text}"


def _lacks(error: ModuleNotFoundError) -> str:
    """What to add to the environment, and where."""
    package = (error.name or str(error)).partition(".")[0]
    return _about_key(f"lacks {package}, which this model needs: add that")


def _why_not_here(found: str) -> str:
    """Why the model can't run in this process; empty where that is in the environment ``found``."""
    word, _, folder = found.partition(" ")
    here = f"the server runs the model in {sys.prefix}"
    if not found:
        what = f"it has to start {_LAUNCHER} of the model's folder, which generate writes"
        return _about_key(f"{here}: {what}")
    if word != "environment":
        return found
    if Path(folder).exists() and Path(folder).samefile(sys.prefix):
        return ""
    return _about_key(f"is {folder}, but {here}: make {folder} with python3 -m venv")


_error = _why_not_here(os.environ.get("HF_TRITON_PYTHON_ENV_FOUND", ""))
_base: Any = _Unloadable
if not _error:
    try:
        from . import task_model  # type: ignore[attr-defined]  # put there by generate

        _base = task_model.TritonPythonModel
    except ModuleNotFoundError as error:
        _error = _lacks(error)


class TritonPythonModel(_base):  # type: ignore[misc]
    """The task's model, or one that can't be loaded."""

    def initialize(self, args: dict[str, str]) -> None:
        """As the task's; names a package that it looks for in vain."""
        try:
            super().initialize(args)
        except ModuleNotFoundError as error:
            message = f"{args['model_name']}: {_lacks(error)}"
            raise pb_utils.TritonModelException(message) from None
