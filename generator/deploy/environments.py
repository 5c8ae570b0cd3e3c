"""Models' own Python environments elsewhere: which files travel, and what can't.

Knows ``python_env:`` of models.yaml; builds nothing. The digest of what is to be installed is the
same there, so that an image which has the environment built is found to have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from generator.errors import Problem, SpecError
from generator.spec.model_spec import ModelSpec
from generator.spec.python_env import PythonEnv
from generator.yaml_file.nodes import Node

_KEY = re.compile(r"(?!models\.(yaml|lock)$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# User and password of an address; git's own user is none. The rest may be a variable of pip's.
_USER_INFO = re.compile(rb"://(?!git@)(?:[^/\s@:]*:)?([^/\s@]*)@")
_VARIABLE = re.compile(rb"\$\{[A-Z0-9_]+\}")


def written_files(spec: ModelSpec) -> list[Node]:
    """Where models.yaml names a requirements file for the model."""
    node = spec.places.get("python_env")
    if node is None or spec.python_env is None or spec.python_env.folder is not None:
        return []
    named = (node.get("requirements"), node.get("no_deps"))
    return [one for one in named if one is not None] or [node]


def flat_files(specs: Sequence[ModelSpec]) -> dict[str, bytes]:
    """The requirements of all of them, by their names without a folder."""
    return {
        path.name: path.read_bytes()
        for spec in specs
        for path in (spec.python_env.files if spec.python_env else ())
    }


def refuse_unmovable(config: Path, specs: Sequence[ModelSpec]) -> None:
    """Raises SpecError for every environment that pods could not have."""
    problems = []
    names: dict[str, Path] = {}
    for spec in specs:
        if spec.python_env is not None:
            place = spec.places["python_env"]
            problems += [
                Problem(place.line, place.column, place.where, message)
                for message in _reasons(spec.python_env, names)
            ]
    if problems:
        raise SpecError(str(config), problems)


def _reasons(env: PythonEnv, names: dict[str, Path]) -> Iterator[str]:
    if env.folder is not None and not env.written.startswith("/"):
        yield (
            f"'{env.written}' is a folder on this machine, which a cluster does not have: name a "
            "requirements file, or the absolute path of an environment in the image"
        )
    for path in env.files:
        if path.suffix in (".whl", ".gz", ".zip"):
            yield f"{path.name} is a package on this machine: build the environment into the image"
        elif path.parent != env.files[0].parent or not _KEY.fullmatch(path.name):
            yield f"{path} can't lie beside {env.files[0].name} in a ConfigMap: use one folder"
        elif names.setdefault(path.name, path) != path:
            yield f"{path} has the name of {names[path.name]}: give them different ones"
        elif any(_VARIABLE.sub(b"", word) for word in _USER_INFO.findall(path.read_bytes())):
            yield f"{path.name} has a password, which no ConfigMap may hold: use ${{NAME}}"


def note(specs: Sequence[ModelSpec]) -> str:
    """What to know before it is brought up; empty where no model has an environment to build."""
    built = [spec.name for spec in specs if spec.python_env and not spec.python_env.folder]
    if not built:
        return ""
    return (
        f"{', '.join(built)}: the Python environment is built when the container starts, unless "
        "the image has it: docker build --build-arg PYTHON_ENVS=1"
    )
