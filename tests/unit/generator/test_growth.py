"""The cost of a thousand models grows with their number, and not faster: counted, never timed."""

from __future__ import annotations

import cProfile
import gc
import pstats
from pathlib import Path

import pytest

from generator.repository.compare import Action, compare
from generator.yaml_file.nodes import did_you_mean
from hf_triton.cli import main as cli
from tests.unit.generator.workspace import ONE_MODEL

FEW, MANY = 5, 20
_ENTRY = "  - {{name: m{i:03d}, task: fake-{kind}, model: org/m{i}}}\n"


def models(count: int) -> str:
    kinds = ("task", "stream")
    return "models:\n" + "".join(_ENTRY.format(i=i, kind=kinds[i % 2]) for i in range(count))


def counted(verb: str, folder: Path) -> pstats.Stats:
    """Every function's calls in one run of a verb, by what is in ``folder``: without those of the
    garbage collector, which ends what earlier tests have left.
    """
    profile = cProfile.Profile()
    places = ["--config", str(folder / "models.yaml"), "--repository", str(folder / "repository")]
    gc.disable()
    try:
        profile.enable()
        code = cli.main([verb, *places])
        profile.disable()
    finally:
        gc.enable()
    assert code == 0
    return pstats.Stats(profile)


def laid_out(work: Path, name: str, models_yaml: str) -> Path:
    folder = work / name
    folder.mkdir()
    (folder / "models.yaml").write_text(models_yaml)
    return folder


@pytest.mark.parametrize("verb", ["validate", "generate", "prune"])
def test_calls_grow_no_faster_than_models(work: Path, verb: str) -> None:
    def calls(count: int) -> int:
        folder = laid_out(work, f"{count}", models(count))
        if verb == "prune":
            counted("generate", folder)
            (folder / "models.yaml").write_text(ONE_MODEL)
        stats = counted(verb, folder)
        return int(stats.total_calls)  # type: ignore[attr-defined]

    calls(2)  # imports, and both templates, once
    few, many, more = calls(FEW), calls(2 * FEW), calls(MANY)
    # On a straight line 20 more take twice what 10 more do.
    assert (more - many) / (many - few) < 2.1


def test_what_is_identical_on_disk_is_kept_in_memory_once(tmp_path: Path) -> None:
    files = {"1/model.py": b"code" * 1000}
    (tmp_path / "1").mkdir()
    (tmp_path / "1/model.py").write_bytes(files["1/model.py"])
    (change,) = compare(tmp_path, files).changes
    assert change.action is Action.IDENTICAL
    assert change.old is files["1/model.py"]


def test_a_message_lists_no_thousand_names() -> None:
    hint = did_you_mean("zzz", [f"model-{i}" for i in range(1000)], "models")
    assert "model-49" in hint
    assert hint.endswith("model-49 and 950 more")
