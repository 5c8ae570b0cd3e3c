"""The files of the demo models of the other tasks: small, readable, and made the same each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from demo.make_task_models import MODELS

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"


def size(name: str) -> int:
    return sum(path.stat().st_size for path in (DEMO / name).rglob("*") if path.is_file())


def test_each_is_under_400_kilobytes_and_all_under_two_and_a_half_megabytes() -> None:
    sizes = {name: size(name) for name in MODELS}
    assert all(each < 400_000 for each in sizes.values()), sizes
    assert sum(sizes.values()) < 2_500_000, sizes


@pytest.mark.parametrize("name", MODELS)
def test_every_file_can_be_read_by_another_user(name: str) -> None:
    paths = [path for path in (DEMO / name).rglob("*") if path.is_file()]
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in paths)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_stored_short_and_computed_in_float32(name: str) -> None:
    with safe_open(DEMO / name / "model.safetensors", framework="pt") as weights:
        dtypes = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118
    assert dtypes == {"F16"}
    assert json.loads((DEMO / name / "config.json").read_text())["dtype"] == "float32"


def test_all_encoders_share_one_tokenizer() -> None:
    names = ("mask", "embedding", "classifier", "zero-shot", "entities", "answers")
    assert len({(DEMO / name / "tokenizer.json").read_bytes() for name in names}) == 1


@pytest.mark.slow
def test_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    runs = [_make_tiny(tmp_path / name, seed) for name, seed in (("first", "1"), ("second", "2"))]
    assert [run.wait(timeout=600) for run in runs] == [0, 0]
    first = {path for path in (tmp_path / "first").rglob("*") if path.is_file()}
    names = {path.relative_to(tmp_path / "first") for path in first}
    committed = {
        path.relative_to(DEMO)
        for name in MODELS
        for path in (DEMO / name).rglob("*")
        if path.is_file()
    }
    assert names == committed
    for path in names:
        assert (tmp_path / "first" / path).read_bytes() == (
            tmp_path / "second" / path
        ).read_bytes(), path


def _make_tiny(folder: Path, hash_seed: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "demo.make_task_models", "--steps", "1", "--out", str(folder)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_a_name_that_is_no_model_is_refused() -> None:
    command = [sys.executable, "-m", "demo.make_task_models", "embeding"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "got embeding, expected some of mask, embedding, classifier" in done.stderr
