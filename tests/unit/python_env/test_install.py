"""The program that installs packages, and the error if it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.serving import python_env as building

PIP = ["python", "-m", "pip"]


@pytest.mark.parametrize(
    "has_uv, pip_config, first",
    [
        (True, "global.timeout='180'\n", "uv"),
        (True, "global.index-url='https://example.org/simple'\n", "python"),
        (True, ":env:.find-links='/wheels'\n", "python"),
        (False, "", "python"),
    ],
)
def test_uv_installs_where_it_is_and_pip_has_no_index_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_uv: bool, pip_config: str, first: str
) -> None:
    if has_uv:
        (tmp_path / "uv").write_text("#!/bin/sh\n")
        (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    asked: list[list[str]] = []

    def run_quietly(command: list[str]) -> str:
        asked.append(command)
        return pip_config

    monkeypatch.setattr(building, "run_quietly", run_quietly)
    command = building.installer(PIP, "/env/bin/python3")
    assert asked == [[*PIP, "config", "list"]] * has_uv, "the pip that would install, no other"
    assert Path(command[0]).name == first
    assert "install" in command


@pytest.mark.parametrize(
    "lines, said",
    [
        (["Collecting a", "ERROR: No matching distribution found for a"], "No matching"),
        (["error: No solution found", "cause: Because a was not found"], "No solution found: Bec"),
        (["error: Request failed", "cause: Failed to fetch: http://x/"], "the package index can't"),
        (["ERROR: [Errno 28] No space left on device"], "no space is left on the disk"),
        (["error: https://user:secret@example.org/ is wrong"], "https://***@example.org/ is"),
    ],
)
def test_a_failure_is_one_line(lines: list[str], said: str) -> None:
    assert building.reason(lines).startswith(said)
