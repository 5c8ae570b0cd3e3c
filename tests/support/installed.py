"""Environments that hold one real client each, made once and kept in the user's cache.

Knows pip, uv and npm; knows nothing of what is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_INSTALL_TIMEOUT_S = 900
NPM = "npm:"  # before the name of a package for Node


def environment_with(requirements: tuple[str, ...]) -> Path:
    """A folder with these packages, of Python or, after ``npm:``, of Node; skips the test where it
    can't be made. Its name has the requirements' hash, so that others make another one.
    """
    wanted = "\n".join((sys.version, *requirements))
    name = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    folder = _cache() / f"{Path(requirements[0].removeprefix(NPM)).name.split('=')[0]}-{name}"
    if not (folder / "complete").exists():
        print(f"installing {' '.join(requirements)} into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        make = _make_for_node if requirements[0].startswith(NPM) else _make
        make(folder, requirements)
        (folder / "complete").write_text(wanted, encoding="utf-8")
    return folder


def version_in(folder: Path, requirement: str) -> str:
    """The version of a requirement's package there."""
    if requirement.startswith(NPM):
        package = requirement.removeprefix(NPM).rsplit("@", 1)[0]
        found = (folder / "node_modules" / package / "package.json").read_text(encoding="utf-8")
        return str(json.loads(found)["version"])
    name = requirement.split("=")[0].split("[")[0]
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    return run_in(folder, "python", "-c", ask, environment=os.environ).stdout.strip()


def run_in(
    folder: Path, program: str, *arguments: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs one of an environment's programs, or ``node``, in its folder; never raises for what it
    says.
    """
    path = folder / "bin" / program
    return subprocess.run(
        [str(path if path.exists() else program), *arguments],
        env=dict(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
    )


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hf-triton" / "clients"


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    """By uv where it is installed: it takes a tenth of pip's time."""
    if uv := shutil.which("uv"):
        _run(uv, "venv", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--python", str(folder / "bin" / "python"), *requirements)
    else:
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(folder / "bin" / "python"), "-m", "pip", "install", *requirements)


def _make_for_node(folder: Path, requirements: tuple[str, ...]) -> None:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder.mkdir(parents=True)
    packages = [one.removeprefix(NPM) for one in requirements]
    _run("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages)


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"not installed within {_INSTALL_TIMEOUT_S} s: {' '.join(command[3:])}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command[3:])}: {error.stderr[-500:]}")
