"""Every mistake that models.yaml can hold, with the exact text that names it.

Regenerate with ``python -m tests.unit.generator.regenerate``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.generator.conftest import Run
from tests.unit.generator.regenerate import report_of
from tests.unit.generator.workspace import ONE_MODEL, BrokenYaml, broken_cases

CASES = broken_cases()
CONTROL = ONE_MODEL.encode() + b"    dtype: a\x07b\n"


@pytest.mark.threat("trace-collector-key", "model-name-in-yaml", "yaml-bombs")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_mistake_is_reported_with_its_exact_text(case: BrokenYaml, work: Path) -> None:
    assert report_of(case.text, work) == case.says


@pytest.mark.parametrize("verb", ["generate", "diff", "prune"])
@pytest.mark.parametrize("case", ["empty", "names", "unknown_key"])
def test_no_verb_writes_from_a_broken_file(case: str, verb: str, work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(CASES[case].text)
    code, _, _ = run(verb)
    assert (code, [path.name for path in work.iterdir()]) == (1, ["models.yaml"])


@pytest.mark.parametrize(
    "raw, place, message",
    [
        (b"models:\n  - name: \xff\n", ":2:11", "byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"\xfe\xff\x00m", ":1:1", "byte 0xfe is not UTF-8; save the file as UTF-8"),
        (b"caf\xc3\xa9: \xe9", ":1:7", "byte 0xe9 is not UTF-8; save the file as UTF-8"),
        (CONTROL, ":5:13", "control character U+0007 is not allowed"),
        (b"models:\x00", ":1:8", "control character U+0000 is not allowed"),
        (b"models: &a\n  - *a\n", ":2:5", None),
    ],
)
def test_bytes_that_are_no_yaml_are_placed(
    raw: bytes, place: str, message: str | None, work: Path, run: Run
) -> None:
    (work / "models.yaml").write_bytes(raw)
    code, _, err = run("validate")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"models.yaml{place}: ")
    assert message is None or last == f"models.yaml{place}: {message}"


@pytest.mark.parametrize("text", ["\ufeff" + ONE_MODEL, ONE_MODEL.replace("\n", "\r\n")])
def test_marks_and_line_ends_of_windows_are_no_mistake(text: str, work: Path, run: Run) -> None:
    (work / "models.yaml").write_bytes(text.encode())
    assert run("validate")[0] == 0


def test_a_missing_file_is_named(work: Path, run: Run) -> None:
    expected = "hf-triton: 1 mistake in nowhere.yaml\nnowhere.yaml: no such file\n"
    assert run("validate", "--config", "nowhere.yaml") == (1, "", expected)


def test_an_unreadable_file_is_named(work: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, _most_bytes: int) -> bytes:  # a mode of 0 would not stop root
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("generator.yaml_file.nodes.read_regular", refused)
    _, _, err = run("validate")
    assert err.splitlines()[-1] == "models.yaml: can't be read: permission denied"


@pytest.mark.threat("hub-token")
def test_a_token_is_never_echoed(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(CASES["token"].text)
    _, out, err = run("validate")
    assert "abcdefghij" not in out + err
    assert "shortsecret" not in out + err
