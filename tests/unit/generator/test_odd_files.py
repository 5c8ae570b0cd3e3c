"""Pipes, devices, folders, huge files and files of secrets under the names that users give."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from generator.errors import RepositoryError, ServerError, SpecError
from generator.yaml_file import nodes
from hf_triton.runtime.regular_file import read_regular
from hf_triton.tritonserver.admin_key import take_admin_key
from hf_triton.tritonserver.state_file import (
    SERVED_FILE,
    STATE_PREFIX,
    ServerState,
    running_servers,
    served_models,
    write_state,
)
from tests.support.full_disk import files_of_at_most
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL

SHADOW = "root:$y$j9T$hunter2:19000:0:99999:7:::\ndaemon:*:hunter2:0:99999:7:::\n"
PRIVATE_KEY = "-----BEGIN hunter2 KEY-----\nMIIhunter2\n/hunter2\n"
ODD = ("pipe", "device", "folder", "socket", "huge")


def make(kind: str, path: Path) -> str:
    """Puts something odd there; returns what an error says of it."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        with path.open("wb") as file:
            file.truncate(111 * 2**20)
    return {"huge": "it is larger than", "folder": "folder"}.get(kind, f"it is a {kind}")


def write_good(work: Path) -> None:
    """A models.yaml that names files, without a mistake."""
    text = f"{ONE_MODEL}    hooks: hooks.py\n    python_env: requirements.txt\n"
    (work / "models.yaml").write_text(text)
    (work / "requirements.txt").write_text("einops\n")
    (work / "hooks.py").write_text("def preprocess(request):\n    return request\n")


@pytest.mark.threat("yaml-file-kinds")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["models.yaml", "models.lock", "hooks.py", "requirements.txt"])
def test_a_file_of_models_yaml_that_is_none_is_a_mistake(
    name: str, kind: str, work: Path, run: Run
) -> None:
    write_good(work)
    (work / name).unlink(missing_ok=True)
    said = make(kind, work / name)
    code, _, err = run("validate")
    assert code == 1
    assert said in err or (name, kind) == ("requirements.txt", "folder")
    assert name in err


def test_a_state_file_on_a_full_disk_leaves_no_part_of_one(tmp_path: Path) -> None:
    state = ServerState(pid=os.getpid(), config="models.yaml", repository=str(tmp_path))
    with files_of_at_most(10), pytest.raises(RepositoryError, match="File too large"):
        write_state(state)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.threat("yaml-file-kinds")
@pytest.mark.parametrize("kind", ODD)
def test_a_key_file_that_is_none_is_told_at_once(kind: str, tmp_path: Path) -> None:
    said = make(kind, tmp_path / "key")
    with pytest.raises(ServerError, match=rf"--admin-key-file .*: can't be read: .*{said}"):
        take_admin_key(tmp_path / "key", {})


@pytest.mark.threat("secrets-by-yaml")
@pytest.mark.parametrize("text", [SHADOW, PRIVATE_KEY, "- hunter2\n", "hunter2\n", "hunter2: 1\n"])
@pytest.mark.parametrize("name", ["models.yaml", "requirements.txt", "hooks.py"])
def test_nothing_of_a_file_that_is_something_else_is_shown(
    name: str, text: str, work: Path, run: Run
) -> None:
    write_good(work)
    (work / name).write_text(text)
    code, out, err = run("validate")
    assert code == 1 or (name, text) == ("requirements.txt", "hunter2\n")
    assert "hunter2" not in out + err


def test_thousands_of_mistakes_are_not_all_told(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text("models:\n" + "  - {}\n" * 5000)
    _, _, err = run("validate")
    assert err.count("\n") < 110
    assert "models.yaml: and " in err


def test_a_file_at_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("models: []\n" + "#" * (nodes.MOST_BYTES - 11))
    assert nodes.read(path).get("models") is not None
    path.write_text("models: []\n" + "#" * (nodes.MOST_BYTES - 10))
    with pytest.raises(SpecError, match="larger than 4 MiB"):
        nodes.read(path)


def test_a_size_that_the_kernel_does_not_know_is_bounded_too(tmp_path: Path) -> None:
    endless = tmp_path / "odd"
    endless.symlink_to("/proc/self/status")  # of no bytes, it says, and has a thousand
    assert endless.stat().st_size == 0
    assert read_regular(endless, 2**20)
    with pytest.raises(OSError, match="it is larger than"):
        read_regular(endless, 100)


def test_a_record_or_a_state_that_is_a_pipe_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SERVED_FILE)
    os.mkfifo(tmp_path / f"{STATE_PREFIX}8000.json")
    assert served_models(tmp_path) is None
    assert running_servers(tmp_path) == []


def test_a_record_or_a_state_that_is_nested_too_deep_is_none(tmp_path: Path) -> None:
    for name in (SERVED_FILE, f"{STATE_PREFIX}8000.json"):
        (tmp_path / name).write_text('{"added": ' + "[" * 100_000)
    assert served_models(tmp_path) is None
    assert running_servers(tmp_path) == []
