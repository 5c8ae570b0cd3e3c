"""An installed wheel holds the generator, and the templates where the generator finds them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from generator.spec.triton_models import LAUNCHER_FILE
from hf_triton.version import VERSION

ROOT = Path(__file__).parents[3]
TOP = ("generator", "hf_triton", "model_templates", "perf")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, as pip would lay them into site-packages."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in TOP:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(source / "dist"), str(source)], check=True)
    (wheel,) = (source / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def test_the_wheel_carries_every_file_of_templates_and_pages(site: Path) -> None:
    folders = (
        ROOT / "hf_triton",
        ROOT / "model_templates",
        ROOT / "generator/deploy/templates",
        ROOT / "hf_triton/ports/openai/playground",
    )
    files = [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in {".py", ".j2", ".yaml", ".html", ".css", ".js"}
        or path.name == LAUNCHER_FILE
    ]
    assert {folder for folder in folders for path in files if folder in path.parents} == {*folders}
    for path in files:
        installed = site / path.relative_to(ROOT)
        assert installed.read_bytes() == path.read_bytes(), path


def test_the_wheel_carries_nothing_else(site: Path) -> None:
    top = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {*TOP}
    of_perf = {path.name for path in (site / "perf").iterdir()}
    assert {"load", "report", "sweep", "tune", "verbs"} <= of_perf
    assert not {"lab", "README.md"} & of_perf


def test_the_installed_generator_finds_the_installed_templates(site: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "hf_triton.cli", "tasks"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "text-generation" in found.stdout


def test_the_library_has_the_projects_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{VERSION}"\n' in text
