"""The script behind ``make setup``: what it says and mends, without a network."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SETUP = ROOT / "tools" / "setup"


# What `make` exports to what it runs, these tests too, and what its own calls read.
OF_MAKE = {"PYTHON", "VENV", "TORCH", "TORCH_INDEX_URL", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in OF_MAKE}


def _bash(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"source {shlex.quote(str(SETUP))}; {script}"],
        env={**_environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def _fake_python(folder: Path, name: str, version: str) -> Path:
    """An interpreter of another version: it says so, and fails the question whether it fits."""
    fake = folder / name
    fake.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {version}" || exit 1\n')
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize(
    "script, variables, code, said",
    [
        ("find_python", {"PYTHON": "{old}"}, 1, "is Python 3.9.18; need Python 3.10 to 3.13"),
        ("find_python", {"PYTHON": "python3.99"}, 1, "setup: PYTHON=python3.99: no such command"),
        ("PATH={folder}; find_python", {}, 1, "make setup PYTHON=python3.12"),
        ("wanted_torch", {"TORCH": "rocm"}, 1, "setup: TORCH=rocm: expected one of auto, gpu, cpu"),
        ("nvidia-smi() {{ return 1; }}; wanted_torch", {}, 0, "cpu"),
        ("nvidia-smi() {{ echo 'GPU 0: H200'; }}; wanted_torch", {}, 0, "gpu"),
    ],
)
def test_what_is_found_is_told(
    tmp_path: Path, script: str, variables: dict[str, str], code: int, said: str
) -> None:
    for version in ("3", "3.10", "3.11", "3.12", "3.13"):
        old = _fake_python(tmp_path, f"python{version}", "3.9.18")
    asked = {name: value.format(old=old) for name, value in variables.items()}
    result = _bash(script.format(folder=tmp_path), **asked)
    assert result.returncode == code
    assert said in result.stdout + result.stderr


@pytest.mark.parametrize("on_path, extra", [(True, "runtime"), (False, "serve")])
def test_beside_a_server_on_path_no_other_is_installed(
    on_path: bool, extra: str, tmp_path: Path
) -> None:
    if on_path:
        (tmp_path / "tritonserver").touch(mode=0o755)
    script = "environment_is_sound() { true; }; install_torch() { echo cpu; }; PY=echo; main"
    path = f"{tmp_path}:/usr/bin:/bin"
    said = _bash(script, VENV=str(tmp_path), PATH=path).stdout
    assert said == f"-m pip install --editable .[{extra},dev]\n"


@pytest.mark.skipif(not shutil.which("cc"), reason="Python 3.13 is passed over without a compiler")
def test_an_environment_that_lost_its_interpreter_is_made_anew(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to("/nonexistent/python3")
    (venv / ".installed").write_text("stale")
    script = "environment_is_sound || make_environment && environment_is_sound && echo mended"
    result = _bash(script, VENV=str(venv), PYTHON=sys.executable)
    assert result.stdout == "mended\n", result.stderr
    assert not (venv / ".installed").exists()


@pytest.mark.parametrize("is_sound", ["true", "false"])
def test_an_environment_of_another_user_is_told_of(is_sound: str, tmp_path: Path) -> None:
    script = f"environment_is_sound() {{ {is_sound}; }}; may_write() {{ false; }}; main"
    result = _bash(script, VENV=str(tmp_path), TORCH="cpu")
    assert result.returncode == 1
    assert f"and {tmp_path} belongs to {tmp_path.owner()}: run this as that user" in result.stderr


def test_a_complete_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    result = _bash(
        "environment_is_sound() { true; }; request gpu >$STAMP; install_torch() { false; }; main",
        VENV=str(tmp_path),
    )
    assert (result.returncode, result.stderr) == (0, "")
