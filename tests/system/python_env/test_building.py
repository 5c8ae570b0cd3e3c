"""Environments, built by the real venv and pip from wheels made here; no network."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.models_yaml.reading import load
from generator.spec.python_env import PythonEnv
from hf_triton.cli import main as cli
from hf_triton.python_env.find_environment import FOLDER_VARIABLE, MARKER, failure_file, is_built
from hf_triton.serving.python_env import ensure, folder_of
from hf_triton.tritonserver import binary
from tests.support.own_tasks import use_tasks
from tests.support.tiny_wheel import make_wheel
from tests.support.triton import echo_templates

Run = Callable[..., tuple[int, str, str]]

MODELS = """\
defaults: {task: echo, model: ./weights}
models:
  - {name: one, python_env: {requirements: needs.txt, no_deps: alone.txt}}
  - {name: same, python_env: {requirements: copy.txt, no_deps: alone.txt}}
  - {name: broken, python_env: broken.txt}
  - {name: plain}
"""
INDEX = "https://somebody:pass-word@127.0.0.1:9/simple"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with wheels and requirements; environments are built beside it."""
    templates_folder = echo_templates(tmp_path / "templates")
    use_tasks(templates_folder, monkeypatch.setattr)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "envs"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "work"
    (home / "weights").mkdir(parents=True)
    make_wheel(home / "wheels", "numpy", "1.0")
    make_wheel(home / "wheels", "numpy", "2.0")
    make_wheel(home / "wheels", "tiny", "1.0", ["numpy"])
    make_wheel(home / "wheels", "lonely", "1.0", ["nowhere-to-be-found"])
    offline = "--no-index\n--find-links wheels\n"
    for name in ("needs.txt", "copy.txt"):
        (home / name).write_text(f"{offline}tiny\n")
    (home / "alone.txt").write_text(f"{offline}lonely==1.0\n")
    (home / "broken.txt").write_text("lost-package==3.1\n")
    (home / "models.yaml").write_text(MODELS)
    monkeypatch.chdir(home)
    return home


def env_of(work: Path, name: str) -> PythonEnv:
    specs = load(work / "models.yaml")
    env = next(spec.python_env for spec in specs if spec.name == name)
    assert env is not None
    return env


def versions_in(env: PythonEnv, *modules: str) -> list[str]:
    lines = "".join(f"import {name}; print({name}.VERSION);" for name in modules)
    command = [str(folder_of(env) / "bin" / "python"), "-c", lines]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_models_that_ask_for_the_same_share_an_environment_and_failures_stop_no_other(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setattr(binary, "numpy_below", lambda: "2")  # whichever server is on PATH
    half = folder_of(env_of(work, "one"))
    (half / "bin").mkdir(parents=True)  # what a build that was killed leaves

    assert cli.main(["fetch", "--envs-only"]) == 1
    said = capsys.readouterr()
    assert "one, same: environment of needs.txt and alone.txt: to be built" in said.out
    assert said.err.count(": built in ") == 1
    assert "broken: python_env: " in said.err
    assert "No matching distribution found for lost-package==3.1" in said.err
    assert "pass-word" not in said.err + said.out
    broken = folder_of(env_of(work, "broken"))
    assert not broken.exists()
    assert "No matching distribution found for lost-package" in failure_file(broken).read_text()

    env = env_of(work, "same")
    assert folder_of(env) == half
    assert versions_in(env, "tiny", "numpy", "lonely") == ["1.0", "1.0", "1.0"]
    written = (half / MARKER).stat().st_mtime_ns
    assert cli.main(["fetch", "--envs-only", "one", "same"]) == 0
    assert (half / MARKER).stat().st_mtime_ns == written
    assert "is there" in capsys.readouterr().out


def test_two_builds_at_once_make_one_environment_that_sees_the_packages_below_it(
    work: Path,
) -> None:
    text = MODELS.replace("alone.txt}", "alone.txt, system_site_packages: true}")
    (work / "models.yaml").write_text(text)
    env = env_of(work, "one")
    built: list[bool] = []
    waited: list[Path] = []
    is_waited_for = threading.Event()

    def wait(folder: Path) -> None:
        waited.append(folder)
        is_waited_for.set()

    def build() -> None:
        built.append(ensure(env, "2", lambda _line: is_waited_for.wait(60), wait))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(built) == [False, True]
    assert waited == [folder_of(env)]
    assert is_built(folder_of(env))
    program = "import jinja2, tiny, lonely"
    subprocess.run([str(folder_of(env) / "bin" / "python"), "-c", program], check=True)
