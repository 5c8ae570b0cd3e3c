"""Finds the Python environment of a model, and says what is wrong with it.

Run by triton_python_backend_stub with the server's own Python and the path of environment.json in
the model's version folder; prints ``library <folder>``, from where hf_triton is imported, and
``environment <folder>``, or one line that says why there is none. hf-triton imports it too: both
sides must agree where an environment lies.
Needs nothing but Python, and knows nothing of pip.

environment.json has ``written``, what models.yaml says, and either ``requirements``, the
digest of what is to be installed, or ``path``, an environment that somebody else made.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

# On a search path it leads to hf_triton alone of the packages that lie beside it.
LIBRARY_PATH = Path(__file__).resolve().parent / "library"
ENVIRONMENT_FILE = "environment.json"  # in the folder of the version
FOLDER_VARIABLE = "HF_TRITON_PYTHON_ENVS"
# 24.10 only: set by hf-triton for a server whose stub crashes on arrays of that numpy and later.
NUMPY_VARIABLE = "HF_TRITON_NUMPY_BELOW"
MARKER = ".hf-triton-python-env.json"  # written last: without it an environment is half there
_LOOK_TIMEOUT_S = 60.0
_LIST_VERSIONS = """\
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
found = {name: version(name) for name in sys.argv[1:]}
print(json.dumps({"python": list(sys.version_info[:2]), "versions": found}))
"""


class BrokenEnvironmentError(Exception):
    """The environment can't be built or used; the text says why."""


class Inside(NamedTuple):
    """The version of an environment's Python, and of each package, or None."""

    python: tuple[int, int]
    versions: dict[str, str | None]


def environments_folders() -> list[Path]:
    """The folders of the environments that hf-triton builds; new ones go to the first."""
    given = [path for path in os.environ.get(FOLDER_VARIABLE, "").split(os.pathsep) if path]
    if given:
        return [Path(path).absolute() for path in given]
    cache = os.environ.get("XDG_CACHE_HOME")
    return [Path(cache or Path.home() / ".cache", "hf-triton", "python_envs").absolute()]


def built_folder(digest: str, below: str) -> Path:
    """The folder in which the environment of these requirements is, or would be built, for this
    Python and machine. One that sees the packages ``below`` it, those of the interpreter at that
    prefix, is for that one alone.
    """
    version = f"{platform.python_implementation().lower()}-{sys.version_info[0]}"
    tag = f"{version}.{sys.version_info[1]}-{sys.platform}-{platform.machine()}"
    if below:
        tag = f"{tag}-{hashlib.sha256(below.encode()).hexdigest()[:8]}"
    places = [folder / digest[:32] / tag for folder in environments_folders()]
    return next((place for place in places if is_built(place)), places[0])


def is_built(folder: Path) -> bool:
    """Returns whether an environment of hf-triton's is there, whole."""
    return (folder / MARKER).is_file()


def failure_file(folder: Path) -> Path:
    """The file with the line that says why the environment could not be built there."""
    return folder.with_name(f"{folder.name}.failed")


def look_inside(folder: Path, *packages: str) -> Inside:
    """Asks the environment's Python. Raises BrokenEnvironmentError."""
    python = folder / "bin" / "python3"
    if not folder.is_dir():
        raise BrokenEnvironmentError(f"{folder} is not a folder")
    if not python.exists():
        raise BrokenEnvironmentError(f"{folder} is not a Python environment: it has no bin/python3")
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _LIST_VERSIONS, *packages],
            capture_output=True,
            text=True,
            timeout=_LOOK_TIMEOUT_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
        raise BrokenEnvironmentError(f"{python} does not run: {' '.join(said)}") from None
    return Inside(tuple(found["python"]), found["versions"])


def check(folder: Path, numpy_below: str) -> None:
    """Raises BrokenEnvironmentError unless the server's stub can run in the environment."""
    inside = look_inside(folder, "numpy")
    here = sys.version_info[:2]
    if inside.python != here:
        got, wanted = (f"{major}.{minor}" for major, minor in (inside.python, here))
        raise BrokenEnvironmentError(f"{folder} is of Python {got}, and the server's is {wanted}")
    numpy = inside.versions["numpy"]
    if numpy is None:
        raise BrokenEnvironmentError(f"{folder} has no numpy, which Triton's Python stub needs")
    if numpy_below and int(numpy.split(".")[0]) >= int(numpy_below):
        reason = f"this server's Python stub crashes on numpy {numpy_below} and later"
        raise BrokenEnvironmentError(f"{folder} has numpy {numpy}, and {reason}: numpy<2 is needed")


def find(values: dict[str, Any], beside: Path) -> Path:
    """The environment that an environment.json names; a relative path starts from ``beside``.

    Raises:
        BrokenEnvironmentError: it is not there, or not as it has to be.
    """
    written = values["written"]
    if "path" in values:
        folder = Path(os.path.normpath(beside / Path(values["path"]).expanduser()))
    else:
        folder = built_folder(values["requirements"], sys.prefix if values["below"] else "")
        if not is_built(folder):
            raise BrokenEnvironmentError(f"the environment of {written} {_why_not_built(folder)}")
    check(folder, os.environ.get(NUMPY_VARIABLE, ""))
    return folder


def _why_not_built(folder: Path) -> str:
    try:
        failure = failure_file(folder).read_text(encoding="utf-8").strip()
    except OSError:
        return f"is not built on this machine, at {folder}: run hf-triton fetch"
    return f"could not be built on this machine: {failure}"


def main(environment_file: str) -> None:
    """Prints the library's folder, and the environment's, or why there is none."""
    path = Path(environment_file).resolve()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = f"environment {find(values, path.parent.parent)}"
    except (BrokenEnvironmentError, OSError, ValueError, KeyError, RuntimeError) as error:
        found = f"python_env: {error}"
    sys.stdout.write(f"library {LIBRARY_PATH}\n{found}\n")
