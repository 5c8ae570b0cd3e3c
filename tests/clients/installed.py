"""Environments that hold one real client each, made once and kept.

Knows pip; knows nothing of what is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_INSTALL_TIMEOUT_S = 900


def environment_with(folder: Path, *requirements: str) -> Path:
    """The folder of an environment's programs; skips the test where it can't be made.

    Its name has the requirements' hash, so that others make another one.
    """
    wanted = "\n".join((sys.version, *requirements))
    name = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    environment = folder / f"{requirements[0].split('=')[0]}-{name}"
    programs = environment / "bin"
    if not (environment / "complete").exists():
        shutil.rmtree(environment, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(environment))
        _run(str(programs / "python"), "-m", "pip", "install", "--quiet", *requirements)
        (environment / "complete").write_text(wanted, encoding="utf-8")
    return programs


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"not installed within {_INSTALL_TIMEOUT_S} s: {' '.join(command[3:])}")
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        pytest.skip(f"{' '.join(command[3:])}: {' '.join(errors) or error.stderr[-300:]}")


def drive(
    programs: Path, script: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder, kept from importing its neighbours."""
    return run_in(programs, "python", "-I", str(script), *arguments, **environment)


def run_in(
    programs: Path, program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs one of an environment's programs; fails with all that it said."""
    done = subprocess.run(
        [str(programs / program), *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done
