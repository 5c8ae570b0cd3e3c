"""The script behind ``make``: what it installs, with programs that tell how they are called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Variables that `make` exports to its commands, these tests too, and that its own calls read.
OF_MAKE = {"PYTHON", "VENV", "TORCH", "TORCH_INDEX_URL", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
# Says how it is called; `-m venv` and `uv venv` make an environment whose Python says so too.
FAKE = """\
#!/bin/sh
case "$1 $2" in
    "-c "*) exec {python} "$@" ;;
    "-V ") echo "Python 3.12.1"; exit ;;
    "-m venv" | "venv --clear") for venv; do :; done
        mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python" ;;
esac
echo "$(basename "$0") $*" >>{calls}
case "$*" in *+cpu*) exit {no_build} ;; esac
"""


class Machine:
    """A folder with a checkout of the script, and programs on a PATH of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        (folder / "tools").mkdir()
        self.bin.mkdir()
        shutil.copy(ROOT / "tools" / "setup", folder / "tools")
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.put("python3.12")

    def put(self, name: str, no_build: int = 0) -> None:
        calls = self.folder / "calls"
        text = FAKE.format(python=sys.executable, calls=calls, no_build=no_build)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if key not in OF_MAKE}
        (self.folder / "calls").write_text("")
        return subprocess.run(
            ["bash", "tools/setup", *arguments],
            cwd=self.folder,
            env={**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "TORCH": "cpu", **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_pip_installs_what_serving_needs_and_later_the_rest(machine: Machine) -> None:
    assert machine.setup("serve").returncode == 0
    made, torch, ours = machine.calls()
    assert made == "python3.12 -m venv --clear .venv"
    assert torch.startswith("python -m pip install torch==")
    assert torch.endswith("+cpu")
    assert ours == "python -m pip install --editable .[serve]"
    assert machine.setup("serve").returncode == 0
    assert machine.calls() == []
    machine.setup()
    assert machine.calls()[-1] == "python -m pip install --editable .[serve,dev]"
    machine.setup()
    machine.setup("serve")
    assert machine.calls() == []


def test_uv_is_used_where_there_is_one(machine: Machine) -> None:
    machine.put("uv")
    assert machine.setup("serve", PYTHON="python3.12").returncode == 0
    made, torch, ours = machine.calls()
    assert made == "uv venv --clear --seed --python python3.12 .venv"
    assert torch.startswith("uv pip install --python .venv/bin/python torch==")
    assert torch.endswith("+cpu --torch-backend cpu")
    assert ours == "uv pip install --python .venv/bin/python --editable .[serve]"


def test_without_a_cpu_build_the_usual_one_comes_unless_the_first_was_asked_for(
    machine: Machine,
) -> None:
    machine.put("python3.12", no_build=1)
    asked = machine.setup("serve", TORCH_INDEX_URL="https://wheels.test")
    assert asked.returncode == 1
    assert "set TORCH_INDEX_URL to PyTorch's index of CPU wheels" in asked.stderr
    assert machine.calls()[-1].endswith("+cpu --extra-index-url https://wheels.test")
    assert machine.setup("serve", TORCH="auto").returncode == 0
    assert machine.calls()[-1] == "python -m pip install --editable .[serve]"


def test_beside_a_server_on_path_no_other_is_installed(machine: Machine) -> None:
    machine.put("tritonserver")
    machine.setup()
    assert machine.calls()[-1] == "python -m pip install --editable .[runtime,dev]"


def test_an_environment_that_lost_its_interpreter_is_made_anew(machine: Machine) -> None:
    machine.setup("serve")
    python = machine.folder / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3")
    machine.setup("serve")
    assert machine.calls()[0] == "python3.12 -m venv --clear .venv"


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"PYTHON": "python3.99"}, "setup: need Python 3.10 to 3.13; python3.99 is "),
        ({"TORCH": "rocm"}, "setup: TORCH=rocm: expected one of auto, gpu, cpu"),
    ],
)
def test_what_is_wrong_is_told(machine: Machine, variables: dict[str, str], said: str) -> None:
    found = machine.setup(**variables)
    assert (found.returncode, found.stderr[: len(said)]) == (1, said)
