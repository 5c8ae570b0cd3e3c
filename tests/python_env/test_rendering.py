"""What a model's folder holds where the model has an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from generator import cli
from generator.spec import task_folders
from generator.spec.runtime_rules import FOLDER_VARIABLE, MARKER, NUMPY_VARIABLE, built_folder
from tests.support.triton import echo_templates

MODELS = """\
defaults: {task: echo, model: ./weights}
models:
  - {name: demo, python_env: KEY}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = echo_templates(tmp_path / "templates")
    monkeypatch.setattr(task_folders, "default_directory", lambda: folder)
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


def activated(version: Path) -> dict[str, str]:
    """The environment variables of a stub that Triton starts for the model."""
    command = f"source {version}/python_env/bin/activate && env -0"
    folder = str(Path(sys.executable).parent)
    variables = {
        **os.environ,
        "PATH": os.pathsep.join([folder, os.environ["PATH"]]),
        "PYTHONPATH": "/of/another",
        NUMPY_VARIABLE: "2",
    }
    done = subprocess.run(
        ["bash", "-c", command], env=variables, capture_output=True, text=True, check=True
    )
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


def error_of(version: Path) -> str:
    return activated(version)["HF_TRITON_PYTHON_ENV_ERROR"]


def test_only_what_runs_the_engine_has_the_environment(work: Path) -> None:
    engine = generate(work)
    config = (engine.parent / "config.pbtxt").read_text()
    assert '"EXECUTION_ENV_PATH"' in config
    assert '"$$TRITON_MODEL_DIRECTORY/1/python_env"' in config
    front = engine.parent.parent / "demo"
    assert "EXECUTION_ENV_PATH" not in (front / "config.pbtxt").read_text()
    assert not (front / "1" / "python_env").exists()


def test_a_changed_requirement_makes_the_engine_stale_and_a_comment_does_not(work: Path) -> None:
    generate(work)
    assert cli.main(["diff"]) == 0
    (work / "requirements.txt").write_text("# the same\ntiny==1.0\n")
    assert cli.main(["diff"]) == 0
    (work / "requirements.txt").write_text("tiny==2.0\n")
    assert cli.main(["diff"]) == 1


def test_what_is_generated_is_the_same_wherever_environments_lie(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(work)
    monkeypatch.setenv(FOLDER_VARIABLE, str(work / "elsewhere"))
    assert cli.main(["diff"]) == 0


def test_without_the_key_nothing_is_left_of_it(work: Path) -> None:
    engine = generate(work)
    generate(work, "null")
    assert not (engine / "python_env").exists()
    assert not (engine / "task_model.py").exists()


def test_a_path_that_triton_would_break_on_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "models.yaml").write_text(MODELS.replace("KEY", "requirements.txt"))
    assert cli.main(["generate", "--repository", "my models"]) == 1
    assert "holds ' ', and Triton can't start a model with a python_env" in capsys.readouterr().err


def test_the_environment_takes_the_place_of_the_servers(work: Path) -> None:
    folder = environment(work)
    found = activated(generate(work, "./env"))
    assert found["VIRTUAL_ENV"] == str(folder)
    assert found["PATH"].startswith(f"{folder}/bin:")
    assert "PYTHONPATH" not in found
    assert "HF_TRITON_PYTHON_ENV_ERROR" not in found


def test_a_folder_is_found_from_a_repository_that_is_a_link(work: Path) -> None:
    folder = environment(work)
    (work / "deep" / "down").mkdir(parents=True)
    (work / "model_repository").symlink_to("deep/down")
    assert activated(generate(work, "./env"))["VIRTUAL_ENV"] == str(folder)


def test_a_built_environment_is_found_by_what_it_is_made_of(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = generate(work)
    assert "requirements.txt is not built on this machine" in error_of(version)
    assert "run hf-triton fetch" in error_of(version)
    values = json.loads((version / "python_env" / "environment.json").read_text())
    built = built_folder(values["requirements"], "")
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
    assert error_of(version) == f"python_env: {folder} is no folder"
