"""What lies in the folder of a model with an environment of its own, beside what every model has.

The same on every machine: Triton starts the script in the model's folder for its Python stub, and
that finds the environment when the model is loaded.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path

from generator.spec.python_env import PythonEnv
from generator.spec.runtime_rules import ENVIRONMENT_CODE, ENVIRONMENT_FILE
from generator.spec.task_folders import VERSION_FOLDER
from generator.spec.triton_models import LAUNCHER_FILE


def environment_files(env: PythonEnv, model_folder: Path) -> dict[str, bytes]:
    """The script, and what it looks for."""
    values = json.dumps(_values(env, model_folder), indent=2) + "\n"
    return {LAUNCHER_FILE: _launcher(), f"{VERSION_FOLDER}/{ENVIRONMENT_FILE}": values.encode()}


@lru_cache
def _launcher() -> bytes:
    return (ENVIRONMENT_CODE / LAUNCHER_FILE).read_bytes()


def _values(env: PythonEnv, model_folder: Path) -> dict[str, object]:
    """What find_environment.py reads; a relative path starts from the model's folder."""
    if env.folder is None:
        digest, below = env.digest, env.system_site_packages
        return {"written": env.written, "requirements": digest, "below": below}
    path = env.written
    if not Path(path).expanduser().is_absolute():
        path = Path(os.path.relpath(env.folder, model_folder.resolve())).as_posix()
    return {"written": env.written, "path": path}
