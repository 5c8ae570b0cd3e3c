"""What lies in the folder of a model with an environment of its own, beside what every model has.

Triton is pointed at ``python_env`` there, the same on every machine: its bin/activate finds the
environment when the model is loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from generator.errors import RepositoryError, TemplateError
from generator.spec.model_spec import PythonEnv
from generator.spec.runtime_rules import ENVIRONMENT_CODE
from generator.spec.task_folders import VERSION_FOLDER
from generator.spec.triton_models import ENVIRONMENT_FOLDER, TritonModel

_MODEL_FILE = f"{VERSION_FOLDER}/model.py"
_TASK_MODEL_FILE = f"{VERSION_FOLDER}/task_model.py"
# Triton puts the path into a command line for bash, unquoted, and waits for ever where that fails.
_UNSAFE = frozenset(" \t\"'`$&|;<>()[]{}*?!#\\~")


def with_environment(
    files: Mapping[str, bytes], model: TritonModel, repository: Path
) -> dict[str, bytes]:
    """The model's files, its model.py behind one that looks at the environment first. Raises
    RepositoryError where Triton could not find it.
    """
    env = model.spec.python_env
    if env is None or _TASK_MODEL_FILE in files:
        raise TemplateError(f"{model.spec.task}: {_TASK_MODEL_FILE} is where model.py would go")
    refuse_unsafe(repository.resolve() / model.name)
    found = dict(files)
    found[_TASK_MODEL_FILE] = found[_MODEL_FILE]
    for path, content in _own_files().items():
        found[f"{VERSION_FOLDER}/{path}"] = content
    place = f"{VERSION_FOLDER}/{ENVIRONMENT_FOLDER}/environment.json"
    found[place] = (json.dumps(_values(env, repository / model.name), indent=2) + "\n").encode()
    return found


def refuse_unsafe(folder: Path) -> None:
    """Raises RepositoryError where Triton's own command line would break on the path."""
    wrong = sorted(_UNSAFE & set(str(folder)))
    if wrong:
        shown = " and ".join(repr(one) for one in wrong)
        raise RepositoryError(
            f"{folder}: holds {shown}, and Triton can't start a model with a python_env from such "
            "a path: use another --repository"
        )


@lru_cache
def _own_files() -> dict[str, bytes]:
    folder = ENVIRONMENT_CODE
    inner = ("bin/activate", "find_environment.py")
    own = {f"{ENVIRONMENT_FOLDER}/{path}": (folder / path).read_bytes() for path in inner}
    return {"model.py": (folder / "model.py").read_bytes(), **own}


def _values(env: PythonEnv, model_folder: Path) -> dict[str, object]:
    """What find_environment.py reads; a relative path starts from the model's folder."""
    if env.folder is None:
        digest, below = env.digest, env.system_site_packages
        return {"written": env.written, "requirements": digest, "below": below}
    path = env.written
    if not Path(path).expanduser().is_absolute():
        path = Path(os.path.relpath(env.folder, model_folder.resolve())).as_posix()
    return {"written": env.written, "path": path}
