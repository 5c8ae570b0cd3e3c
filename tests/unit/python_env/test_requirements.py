"""Requirements files are read as pip reads them, and the program that installs them is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.spec.python_env import Requirements
from hf_triton.serving import python_env as building
from tests.support.tiny_wheel import make_wheel

GOOD = """\
# what a model needs
--extra-index-url https://${USER}:${TOKEN}@example.org/simple
torch==2.13.0  # with a comment
transformers[torch] >=5.20, \\
    <5.24 ; python_version > "3.9"
einops @ https://example.org/einops-0.8.0-py3-none-any.whl
numpy==1.26.4 --hash=sha256:abc
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def content(folder: Path, text: str) -> list[str]:
    found = Requirements.read(write(folder, "requirements.txt", text))
    assert not found.mistakes
    return found.content


def test_everything_that_pip_takes_is_taken(tmp_path: Path) -> None:
    found = Requirements.read(write(tmp_path, "requirements.txt", GOOD))
    assert found.mistakes == []
    assert len(found.content) == 5


def test_comments_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    commented = content(tmp_path, "# a\n\neinops==0.8.0   # b\n")
    assert commented == content(tmp_path, "einops==0.8.0\n")


def test_included_files_count_wherever_they_lie(tmp_path: Path) -> None:
    write(tmp_path, "below/base.txt", "einops==0.8.0\n-c ../limits.txt\n")
    limits = write(tmp_path, "limits.txt", "numpy<2\n")
    main = "-r below/base.txt\ntimm\n"
    before = content(tmp_path, main)
    limits.write_text("numpy<1.27\n")
    assert content(tmp_path, main) != before
    files = Requirements.read(tmp_path / "requirements.txt").files
    assert [file.name for file in files] == ["requirements.txt", "base.txt", "limits.txt"]


def test_a_file_that_includes_itself_is_read_once(tmp_path: Path) -> None:
    assert content(tmp_path, "einops\n-r requirements.txt\n")


def test_a_local_wheel_counts_by_its_bytes(tmp_path: Path) -> None:
    make_wheel(tmp_path, "tiny", "1.0")
    text = "./tiny-1.0-py3-none-any.whl\n"
    before = content(tmp_path, text)
    make_wheel(tmp_path, "tiny", "1.0", ["another"])
    assert content(tmp_path, text) != before


@pytest.mark.parametrize(
    "text, problem",
    [
        ("einops==\n", "requirements.txt:1: is not a requirement: Expected "),
        ("\n{not: yaml}\n", "requirements.txt:2: is not a requirement"),
        ("-e .\n", "requirements.txt:1: an editable package can change"),
        ("-r no.txt\n", "no.txt: no such file"),
        ("-r https://example.org/a.txt\n", "only files of this machine can be included"),
        ("./here\n", "no such file"),
        (f"-r {'n' * 300}\n", "no such file"),
        ("-r loop\n", "loop: no such file"),
        (f"./{'n' * 300}.whl\n", "no such file"),
        ("# nothing\n", "requirements.txt names no package"),
        ("", "requirements.txt names no package"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    found = Requirements.read(write(tmp_path, "requirements.txt", text))
    assert problem in found.mistakes[0].text


@pytest.mark.parametrize("length", [8, 80])
def test_no_line_is_quoted_for_it_may_hold_a_password(tmp_path: Path, length: int) -> None:
    line = f"einops @@ https://user:{'secret' * length}@example.org/einops.whl\n"
    found = Requirements.read(write(tmp_path, "requirements.txt", line))
    assert found.mistakes
    assert "secret" not in found.mistakes[0].text


def test_a_byte_order_mark_is_no_name(tmp_path: Path) -> None:
    assert content(tmp_path, "\ufeffeinops\n") == content(tmp_path, "einops\n")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    for content in (b"\xff\xfe\x00", b"-r a\x00b\n"):
        path.write_bytes(content)
        (mistake,) = Requirements.read(path).mistakes
        assert mistake.text == "requirements.txt is not UTF-8 text"


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
