"""The folder of a model that has a Python environment of its own, and what a model checks there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from generator.spec.triton_models import LAUNCHER_FILE
from hf_triton.cli import main as cli
from hf_triton.python_env.find_environment import (
    FOLDER_VARIABLE,
    LIBRARY_PATH,
    MARKER,
    NUMPY_VARIABLE,
    built_folder,
    failure_file,
)
from hf_triton.runtime.own_environment import lacks, other_release
from hf_triton.version import VERSION
from tests.support.own_tasks import use_tasks
from tests.support.triton import echo_templates

MODELS = """\
defaults: {task: echo, model: ./weights}
models:
  - {name: demo, python_env: KEY}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = echo_templates(tmp_path / "templates")
    use_tasks(folder, monkeypatch.setattr)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "envs"))
    home = tmp_path / "work"
    (home / "weights").mkdir(parents=True)
    (home / "requirements.txt").write_text("tiny==1.0\n")
    monkeypatch.chdir(home)
    return home


def generate(work: Path, key: str = "requirements.txt") -> Path:
    """The folder of the engine's version."""
    (work / "models.yaml").write_text(MODELS.replace("KEY", key))
    assert cli.main(["generate"]) == 0
    return work / "model_repository" / "demo_stream" / "1"


def environment(work: Path, numpy: str | None = "1.26.4", python: str = "") -> Path:
    """One whose Python says what these ask for."""
    version = python or f"{sys.version_info[0]}, {sys.version_info[1]}"
    program = work / "env" / "bin" / "python3"
    program.parent.mkdir(parents=True, exist_ok=True)
    said = f'{{"python": [{version}], "versions": {{"numpy": {json.dumps(numpy)}}}}}'
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    if not (program.parent / "python").exists():
        (program.parent / "python").symlink_to("python3")
    return work / "env"


# In the place of Triton's own stub: loads the model with the python3 that is first on PATH.
STUB = """\
#!/bin/sh
[ ! -f "$6/triton_python_backend_utils.py" ] && exec env -0
cd "$6" && exec python3 -c '
import importlib, os, sys
from triton_python_backend_utils import TritonModelException
sys.path.append(os.path.dirname(os.path.dirname(sys.argv[1])))
try:
    importlib.import_module("1.model").TritonPythonModel().initialize({"model_name": "demo"})
    print(sys.prefix)
except TritonModelException as error:
    print(error)' "$@"
"""


def started(version: Path, **variables: str) -> str:
    """Starts a model's process by the rules of stub_launcher.cc; returns its output."""
    backend = version.parent.parent.parent / "backends" / "python"
    backend.mkdir(parents=True, exist_ok=True)
    default = backend / LAUNCHER_FILE
    default.write_text(STUB)
    default.chmod(0o755)
    own = version.parent / LAUNCHER_FILE
    program = own if own.exists() else default
    arguments = [version / "model.py", "region", "1", "1", "1", backend, "7", "demo_0", "DEFAULT"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    beside = {"PATH": path, "PYTHONPATH": "/of/another", NUMPY_VARIABLE: "2", **variables}
    command = [str(word) for word in (program, *arguments)]
    done = subprocess.run(
        command, env={**os.environ, **beside}, capture_output=True, text=True, check=True
    )
    return done.stdout


def activated(version: Path, **variables: str) -> dict[str, str]:
    """The environment variables of a stub that Triton starts for the model."""
    lines = started(version, **variables).split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def error_of(version: Path) -> str:
    return activated(version)["HF_TRITON_PYTHON_ENV_FOUND"]


# Needs nothing but Python and the library.
MODEL = """\
import os, sys
if "HF_TRITON_LIBRARY" in os.environ:
    sys.path.insert(0, os.environ["HF_TRITON_LIBRARY"])
from importlib.util import find_spec
from pathlib import Path
from triton_python_backend_utils import TritonModelException
from hf_triton.runtime import own_environment
from hf_triton.runtime.errors import LoadError

class TritonPythonModel:
    def initialize(self, args):
        try:
            own_environment.check(Path(__file__).parent)
        except LoadError as error:
            raise TritonModelException(f"{args['model_name']}: {error}")
        assert find_spec("jinja2") is None, "one of the server's packages"
"""


def loadable(version: Path) -> None:
    """Puts a model there that can be loaded here."""
    (version / "model.py").write_text(MODEL)
    utils = version.parent.parent.parent / "backends" / "python" / "triton_python_backend_utils.py"
    utils.parent.mkdir(parents=True)
    utils.write_text("class TritonModelException(Exception): pass\n")


def venv_with_numpy(folder: Path) -> None:
    venv.create(folder, symlinks=True)
    packages = next((folder / "lib").glob("python3.*")) / "site-packages"
    (packages / "numpy-1.26.4.dist-info").mkdir()
    (packages / "numpy-1.26.4.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 1.26.4\n")


def test_only_what_runs_the_engine_has_the_environment(work: Path) -> None:
    engine = generate(work)
    assert os.access(engine.parent / LAUNCHER_FILE, os.X_OK)
    front = engine.parent.parent / "demo"
    assert not (front / LAUNCHER_FILE).exists()
    assert not (front / "1" / "environment.json").exists()


def test_triton_leaves_what_starts_the_model_as_it_is(work: Path) -> None:
    """24.10 runs it without arguments. Where that ends with another code than 1 it takes everything
    but the owner's right to execute it: no shell of another user than root can read it then.
    """
    launcher = generate(work).parent / LAUNCHER_FILE
    assert subprocess.run([launcher], capture_output=True).returncode == 1


def test_what_triton_made_unreadable_can_be_served_and_removed(work: Path) -> None:
    launcher = generate(work).parent / LAUNCHER_FILE
    launcher.chmod(0o100)
    generate(work)
    assert launcher.stat().st_mode & 0o555 == 0o555
    launcher.chmod(0o100)
    generate(work, "null")
    assert not launcher.exists()


def test_a_changed_requirement_makes_the_engine_stale_and_a_comment_does_not(work: Path) -> None:
    generate(work)
    assert cli.main(["diff"]) == 0
    (work / "requirements.txt").write_text("# the same\ntiny==1.0\n")
    assert cli.main(["diff"]) == 0
    (work / "requirements.txt").write_text("tiny==2.0\n")
    assert cli.main(["diff"]) == 1


def test_a_model_loads_in_its_environment_alone_whatever_its_path(work: Path) -> None:
    folder = work / "my $(env)"
    venv_with_numpy(folder)
    moved = work / "my `models` & more"
    generate(work, "'./my $(env)'").parent.parent.rename(moved)
    version = moved / "demo_stream" / "1"
    loadable(version)
    assert started(version) == f"{folder}\n"
    (version.parent / LAUNCHER_FILE).unlink()
    # As 25.08 and later start a stub of EXECUTION_ENV_PATH: without running what activates it.
    by_triton = {"VIRTUAL_ENV": str(folder), "LD_LIBRARY_PATH": f"{folder}/lib"}
    assert "demo: python_env: ./my $(env): the server runs the model in " in started(
        version, **by_triton
    )


def test_nothing_of_the_working_directory_finds_the_environment(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = environment(work)
    version = generate(work, "./env")
    (work / "hf_triton.py").write_text("raise SystemExit('a trap')\n")
    found = activated(version, PYTHONPATH=os.pathsep)
    assert found["HF_TRITON_PYTHON_ENV_FOUND"] == f"environment {folder}"


def test_a_model_of_a_python_that_is_no_environment_does_not_load(work: Path) -> None:
    python = environment(work) / "bin" / "python3"
    looked = python.read_text().replace("echo", '[ "$1" != -I ] || exec echo')
    python.write_text(f'{looked}exec {sys.executable} "$@"\n')
    version = generate(work, "./env")
    loadable(version)
    reason = f"is {work / 'env'}, but the server runs the model in {sys.prefix}: make "
    assert f"demo: python_env: ./env: {reason}" in started(version)


def test_the_environment_takes_the_place_of_the_servers(work: Path) -> None:
    folder = environment(work)
    found = activated(generate(work, "./env"))
    assert found["VIRTUAL_ENV"] == str(folder)
    assert found["PATH"].startswith(f"{folder}/bin:")
    assert "PYTHONPATH" not in found
    assert found["HF_TRITON_LIBRARY"] == str(LIBRARY_PATH)
    assert found["HF_TRITON_PYTHON_ENV_FOUND"] == f"environment {folder}"


def test_a_built_environment_is_found_by_what_it_is_made_of(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = generate(work)
    assert "requirements.txt is not built on this machine" in error_of(version)
    assert "run hf-triton fetch" in error_of(version)
    values = json.loads((version / "environment.json").read_text())
    built = built_folder(values["requirements"], "")
    failure_file(built).parent.mkdir(parents=True, exist_ok=True)
    failure_file(built).write_text("No matching distribution found for lost-package\n")
    told = "could not be built on this machine: No matching distribution found for lost-package"
    assert f"requirements.txt {told}" in error_of(version)
    failure_file(built).unlink()
    shutil.copytree(environment(work), built, symlinks=True)
    assert "is not built" in error_of(version), "half of one is none"
    (built / MARKER).write_text("{}")
    assert activated(version)["VIRTUAL_ENV"] == str(built)
    monkeypatch.setenv(FOLDER_VARIABLE, f"{work / 'new'}:{work.parent / 'envs'}")
    assert activated(version)["VIRTUAL_ENV"] == str(built), "as one that is baked into an image"


def test_what_is_wrong_with_an_environment_is_told_in_one_line(work: Path) -> None:
    folder = environment(work)
    version = generate(work, "./env")
    environment(work, python="3, 8")
    assert "env is of Python 3.8, and the server's is 3." in error_of(version)
    environment(work, numpy="2.1.0")
    assert "has numpy 2.1.0, and this server's Python stub crashes on numpy 2" in error_of(version)
    environment(work, numpy=None)
    assert "has no numpy" in error_of(version)
    (folder / "bin" / "python3").write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    assert "bin/python3 does not run: no such library" in error_of(version)
    shutil.rmtree(folder)
    assert error_of(version) == f"python_env: {folder} is not a folder"


def test_what_starts_the_model_can_be_run_again_after_a_copy_without_modes(work: Path) -> None:
    launcher = generate(work).parent / LAUNCHER_FILE
    launcher.chmod(0o644)
    assert cli.main(["diff"]) == 1
    generate(work)
    assert os.access(launcher, os.X_OK)


def test_what_is_generated_is_the_same_wherever_environments_lie(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(work)
    monkeypatch.setenv(FOLDER_VARIABLE, str(work / "elsewhere"))
    assert cli.main(["diff"]) == 0


def test_a_folder_is_found_from_a_repository_that_is_a_link(work: Path) -> None:
    folder = environment(work)
    (work / "deep" / "down").mkdir(parents=True)
    (work / "model_repository").symlink_to("deep/down")
    assert activated(generate(work, "./env"))["VIRTUAL_ENV"] == str(folder)


@pytest.mark.parametrize(
    "library, told",
    [
        (f"{VERSION}-1a2b3c4d5e6f", ""),
        ("0.0.1-1a2b3c4d5e6f", f"was generated by hf-triton 0.0.1, this is {VERSION}: run "),
    ],
)
def test_a_folder_of_another_release_is_told_of(library: str, told: str) -> None:
    parameters = {"hf_triton_library": {"string_value": library}}
    assert other_release(parameters).startswith(told)
    assert bool(other_release(parameters)) == bool(told)
    assert other_release({}) == ""


def test_what_a_python_lacks_is_named_with_where_to_install_it(tmp_path: Path) -> None:
    missing = ModuleNotFoundError("No module named 'einops.layers'", name="einops.layers")
    assert "lacks einops, which this model needs: install it there" in lacks(tmp_path, missing)
    (tmp_path / "environment.json").write_text('{"written": "needs.txt"}')
    assert lacks(tmp_path, missing).startswith("python_env: needs.txt: lacks einops, which")


def test_what_a_python_has_in_another_version_is_told() -> None:
    wrong = ImportError("cannot import name 'A' from 'transformers' (/x)", name="transformers")
    assert "another version is installed in " in lacks(Path("/"), wrong)
