"""``diff`` shows what would change, writes nothing, and exits 1 when anything would."""

from __future__ import annotations

from pathlib import Path

from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, snapshot


def test_a_change_is_shown_as_a_unified_diff(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    run("generate")
    before = snapshot(work / "model_repository")
    (work / "models.yaml").write_text(ONE_MODEL + "    max_batch_size: 8\n")
    code, out, _ = run("diff")
    assert code == 1
    assert out.splitlines()[:12] == [
        "update model_repository/demo/1/model.json",
        "--- a/demo/1/model.json",
        "+++ b/demo/1/model.json",
        "@@ -3,7 +3,7 @@",
        '   "device_map": null,',
        '   "dtype": "auto",',
        '   "local": false,',
        '-  "max_batch_size": 0,',
        '+  "max_batch_size": 8,',
        '   "model": "org/name",',
        '   "name": "demo",',
        '   "options": {',
    ]
    assert "-max_batch_size: 0" in out.splitlines()
    assert "+dynamic_batching {" in out.splitlines()
    assert snapshot(work / "model_repository") == before


def test_a_conflict_is_shown(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    run("generate")
    (work / "model_repository/demo/config.pbtxt").write_bytes(b"mine \xff\n")
    code, out, _ = run("diff")
    assert code == 1
    assert out.splitlines()[0] == "conflict model_repository/demo/config.pbtxt: edited by hand"
    assert "-mine \\xff" in out.splitlines()
