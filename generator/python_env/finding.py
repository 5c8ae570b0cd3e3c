"""Where environments lie and what is wrong with them: the code that the server runs, imported."""

from __future__ import annotations

from pathlib import Path

import generator.hub_rules  # noqa: F401, makes model_templates importable

RUNTIME_FOLDER = Path(__file__).resolve().parents[2] / "model_templates" / "python_env"

from python_env.find_environment import (  # noqa: E402
    FOLDER_VARIABLE,
    MARKER,
    NUMPY_VARIABLE,
    BrokenEnvironmentError,
    built_folder,
    check,
    is_built,
    look_inside,
)

__all__ = [
    "FOLDER_VARIABLE",
    "MARKER",
    "NUMPY_VARIABLE",
    "RUNTIME_FOLDER",
    "BrokenEnvironmentError",
    "built_folder",
    "check",
    "is_built",
    "look_inside",
]
