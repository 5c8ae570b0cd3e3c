"""What lies in the folder of a model with an environment of its own, beside what every model has.

The same on every machine: Triton starts the script in the model's folder for its Python stub, and
that finds the environment when the model is loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from generator.errors import TemplateError
from generator.spec.model_spec import PythonEnv
from generator.spec.runtime_rules import ENVIRONMENT_CODE
from generator.spec.task_folders import VERSION_FOLDER
from generator.spec.triton_models import ENVIRONMENT_FOLDER, LAUNCHER_FILE, TritonModel

_MODEL_FILE = f"{VERSION_FOLDER}/model.py"
_TASK_MODEL_FILE = f"{VERSION_FOLDER}/task_model.py"
_FIND = "find_environment.py"


def with_environment(
    files: Mapping[str, bytes], model: TritonModel, repository: Path
) -> dict[str, bytes]:
    """The model's files, its model.py behind one that looks at the environment first."""
    env = model.spec.python_env
    if env is None or _TASK_MODEL_FILE in files:
        raise TemplateError(f"{model.spec.task}: {_TASK_MODEL_FILE} is where model.py would go")
    found = dict(files)
    found[_TASK_MODEL_FILE] = found[_MODEL_FILE]
    found |= _own_files()
    place = f"{VERSION_FOLDER}/{ENVIRONMENT_FOLDER}/environment.json"
    found[place] = (json.dumps(_values(env, repository / model.name), indent=2) + "\n").encode()
    return found


@lru_cache
def _own_files() -> dict[str, bytes]:
    places = {
        LAUNCHER_FILE: LAUNCHER_FILE,
        _MODEL_FILE: "model.py",
        f"{VERSION_FOLDER}/{ENVIRONMENT_FOLDER}/{_FIND}": _FIND,
    }
    return {path: (ENVIRONMENT_CODE / name).read_bytes() for path, name in places.items()}


def _values(env: PythonEnv, model_folder: Path) -> dict[str, object]:
    """What find_environment.py reads; a relative path starts from the model's folder."""
    if env.folder is None:
        digest, below = env.digest, env.system_site_packages
        return {"written": env.written, "requirements": digest, "below": below}
    path = env.written
    if not Path(path).expanduser().is_absolute():
        path = Path(os.path.relpath(env.folder, model_folder.resolve())).as_posix()
    return {"written": env.written, "path": path}
