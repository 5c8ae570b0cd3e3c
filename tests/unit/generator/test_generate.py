"""Generating again and again: what is written, what is left alone, and what stands in the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from generator.render import manifest, model_folder
from generator.render.manifest import MANIFEST_FILE
from generator.repository import writing
from tests.support.full_disk import files_of_at_most
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, ONE_STREAMING_MODEL, snapshot


@pytest.fixture
def made(work: Path, run: Run) -> Path:
    """A repository with the model ``demo``, just generated."""
    (work / "models.yaml").write_text(ONE_MODEL)
    assert run("generate")[0] == 0
    return work / "model_repository"


def change_files(work: Path, model: str = ONE_MODEL) -> None:
    """As a newer version of the task and another key would: one file changed, one new."""
    add_to_model(work, "# newer")
    (work / "mine.py").write_text("def preprocess(request): pass\n")
    (work / "models.yaml").write_text(f"{model}    hooks: mine.py\n")


def add_to_model(work: Path, line: str) -> str:
    """Ends the task's model.py with one more line; returns its text."""
    model = work.parent / "templates/fake_task/model.py.j2"
    model.write_text(f"{model.read_text()}{line}\n")
    model_folder.form_of.cache_clear()  # a process reads a template once
    model_folder.template_environment.cache_clear()
    return model.read_text()


def test_generating_again_touches_nothing(made: Path, run: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    assert run("generate") == (0, "model_repository: 0 written, 1 identical\n", "")
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before
    assert run("diff") == (0, "model_repository: 1 identical\n", "")


def test_only_what_changed_is_written(made: Path, work: Path, run: Run) -> None:
    untouched = made / "demo/1/model.py"
    before = untouched.stat().st_mtime_ns
    (work / "models.yaml").write_text(ONE_MODEL + "    dtype: float16\n")
    _, out, _ = run("generate")
    assert (
        out
        == "update     demo: 1/model.json, config.pbtxt\nmodel_repository: 1 written, 0 identical\n"
    )
    assert untouched.stat().st_mtime_ns == before
    assert json.loads((made / "demo/1/model.json").read_text())["dtype"] == "float16"


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


def test_a_newer_task_updates_adds_and_removes_files(made: Path, work: Path, run: Run) -> None:
    change_files(work)
    assert "+1/hooks.py, 1/model.json, 1/model.py" in run("generate")[1]
    (work / "models.yaml").write_text(ONE_MODEL)
    assert "-1/hooks.py" in run("generate")[1]
    assert not (made / "demo/1/hooks.py").exists()
    assert run("diff")[0] == 0


def test_a_folder_left_empty_by_removed_files_goes_too(made: Path, run: Run) -> None:
    """Such as the packages that earlier releases copied beside model.py."""
    package = made / "demo/1/engines"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__/one.cpython-312.pyc").write_text("compiled while served")
    (package / "one.py").write_text("")
    known = manifest.parse((made / "demo" / MANIFEST_FILE).read_bytes())
    files = {**known, "1/engines/one.py": manifest.digest(b"")}
    (made / "demo" / MANIFEST_FILE).write_bytes(manifest.to_bytes(files))
    assert "-1/engines/one.py" in run("generate")[1]
    assert not package.exists()


def test_a_deleted_file_is_made_again(made: Path, run: Run) -> None:
    (made / "demo/1/model.py").unlink()
    assert run("diff")[0] == 1
    assert run("generate")[0] == 0
    assert run("diff")[0] == 0


def test_a_lost_manifest_is_made_again(made: Path, run: Run) -> None:
    before = (made / "demo" / MANIFEST_FILE).read_bytes()
    (made / "demo" / MANIFEST_FILE).unlink()
    assert run("diff")[1] == "update model_repository/demo: its manifest\n"
    assert run("generate")[1].startswith("update     demo: its manifest\n")
    assert (made / "demo" / MANIFEST_FILE).read_bytes() == before


def test_an_edited_model_py_is_kept_and_told_and_served_anew(made: Path, run: Run) -> None:
    edited, config = made / "demo/1/model.py", made / "demo/config.pbtxt"
    before = config.read_text()
    edited.write_text(edited.read_text() + "# mine\n")
    note = "model_repository/demo/1/model.py: edited by hand, and kept\n"
    code, told, _ = run("diff")
    line = "edited model_repository/demo/1/model.py by hand, and kept: servers reload it"
    assert (code, told.splitlines()[0]) == (1, line)
    assert run("generate")[::2] == (0, note)
    assert edited.read_text().endswith("# mine\n")
    assert config.read_text() != before, "a running server has loaded another model.py"
    assert run("diff")[0] == 0
    assert run("generate")[::2] == (0, note)
    edited.write_text(edited.read_text().removesuffix("# mine\n"))
    assert run("generate")[::2] == (0, "")
    assert config.read_text() == before
    edited.write_text("def broken(:\n")
    line = "model_repository/demo: edited by hand, and not valid Python: 1/model.py:1: "
    assert run("generate")[2].startswith(f"hf-triton: conflict: {line}")
    assert run("generate", "--force")[0] == 0
    assert run("generate")[::2] == (0, "")


def test_an_edited_model_py_is_kept_until_its_code_would_be_rendered_otherwise(
    made: Path, work: Path, run: Run
) -> None:
    edited = made / "demo/1/model.py"
    edited.write_text(edited.read_text() + "mine = 2\n")
    (work / "models.yaml").write_text(ONE_MODEL.replace("org/name", "org/new"))
    assert run("generate")[0] == 0
    assert edited.read_text().endswith("mine = 2\n")
    assert run("diff")[0] == 0
    newer = add_to_model(work, "newer = 3")
    assert run("generate")[2].startswith(
        "hf-triton: conflict: model_repository/demo/1/model.py: edited by hand\n"
    )
    assert run("generate", "--force")[0] == 0
    assert edited.read_text() == newer
    assert run("diff")[0] == 0


def test_an_edit_that_is_already_what_would_be_written_is_no_conflict(
    made: Path, work: Path, run: Run
) -> None:
    (made / "demo/1/model.py").write_text(add_to_model(work, "# changed"))
    assert run("generate")[0] == 0
    assert run("diff")[0] == 0


def test_an_edited_file_that_is_no_longer_generated_is_kept(
    made: Path, work: Path, run: Run
) -> None:
    change_files(work)
    run("generate")
    (work / "models.yaml").write_text(ONE_MODEL)
    (made / "demo/1/hooks.py").write_text("mine")
    code, _, err = run("generate")
    assert code == 1
    assert "demo/1/hooks.py: no longer generated, but edited by hand" in err
    assert (made / "demo/1/hooks.py").read_text() == "mine"


def test_files_that_are_not_ours_are_left_alone(made: Path, work: Path, run: Run) -> None:
    mine = {"notes.txt": "a", "2/model.py": "b", "1/extra.py": "c", "hf_cache/weights": "d"}
    for path, text in mine.items():
        (made / "demo" / path).parent.mkdir(exist_ok=True)
        (made / "demo" / path).write_text(text)
    change_files(work)
    assert run("generate")[0] == 0
    assert run("generate", "--force")[0] == 0
    assert {path: (made / "demo" / path).read_text() for path in mine} == mine


def test_a_model_of_the_user_is_never_mixed_with_ours(work: Path, run: Run) -> None:
    theirs = work / "model_repository/demo"
    theirs.mkdir(parents=True)
    (theirs / "config.pbtxt").write_text('name: "demo"\n')
    (work / "models.yaml").write_text(ONE_MODEL)
    code, _, err = run("generate")
    assert code == 1
    message = "model_repository/demo: exists, holds config.pbtxt, and was not made by hf-triton"
    assert message in err
    assert run("diff")[0] == 1
    assert snapshot(theirs) == {"config.pbtxt": b'name: "demo"\n'}


def test_weights_that_came_first_are_no_conflict(work: Path, run: Run) -> None:
    (work / "model_repository/demo/hf_cache").mkdir(parents=True)
    (work / "models.yaml").write_text(ONE_MODEL)
    assert run("generate")[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"files": 3}',
        '{"files": {"config.pbtxt": 7}}',
        '{"files": {"../../secret": "%s"}}' % ("0" * 64),
        '{"files": {"hf_cache/x": "%s"}}' % ("0" * 64),
        "[" * 100_000,
        '{"added": ' + "[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_a_conflict(text: str, made: Path, run: Run) -> None:
    (made / "demo" / MANIFEST_FILE).write_text(text)
    code, _, err = run("generate")
    assert code == 1
    assert f"model_repository/demo: {MANIFEST_FILE} is damaged" in err
    assert run("generate", "--force")[0] == 0
    assert run("diff")[0] == 0


@pytest.mark.threat("repository-links")
@pytest.mark.parametrize("place", ["", "1"])
def test_nothing_is_written_through_a_linked_folder(place: str, work: Path, run: Run) -> None:
    outside = work / "outside"
    outside.mkdir()
    link = work / "model_repository/demo" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    (work / "models.yaml").write_text(ONE_MODEL)
    for arguments in ((), ("--force",)):
        code, _, err = run("generate", *arguments)
        assert code == 1
        assert "conflict: model_repository/demo" in err
    assert list(outside.iterdir()) == []


def test_a_linked_file_is_a_conflict_and_force_replaces_the_link(made: Path, run: Run) -> None:
    outside = made.parent / "outside"
    outside.write_text("theirs")
    config = made / "demo/config.pbtxt"
    config.unlink()
    config.symlink_to(outside)
    assert "config.pbtxt: is a symbolic link" in run("generate")[2]
    assert run("generate", "--force")[0] == 0
    assert outside.read_text() == "theirs"
    assert not config.is_symlink()


def test_a_folder_in_a_files_place_is_a_message_even_by_force(made: Path, run: Run) -> None:
    (made / "demo/config.pbtxt").unlink()
    (made / "demo/config.pbtxt").mkdir()
    assert "config.pbtxt: is not a regular file" in run("generate")[2]
    code, _, err = run("generate", "--force")
    assert code == 1
    assert "Is a directory" in err


@pytest.mark.parametrize("text, name", [(ONE_MODEL, "demo"), (ONE_STREAMING_MODEL, "demo_stream")])
def test_a_linked_repository_keeps_paths_right(text: str, name: str, work: Path, run: Run) -> None:
    (work / "weights").mkdir()
    (work / "far/away").mkdir(parents=True)
    (work / "model_repository").symlink_to(work / "far/away")
    (work / "models.yaml").write_text(text.replace("org/name", "./weights"))
    assert run("generate")[0] == 0
    folder = work / "model_repository" / name
    values = json.loads((folder / "1/model.json").read_text())
    assert values["model"] == "../../../weights"
    assert (folder / values["model"]).samefile(work / "weights")


def test_a_second_run_at_the_same_time_is_refused(made: Path, work: Path, run: Run) -> None:
    change_files(work)
    with writing.locked(made):
        code, _, err = run("generate")
    assert code == 1
    who = f"another hf-triton (process {os.getpid()})"
    assert err == f"hf-triton: model_repository: {who} is writing to it; wait for that one\n"
    assert run("generate")[0] == 0


def test_a_look_at_a_models_lock_makes_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert not writing.is_locked(folder)
    assert not folder.exists()
    with writing.locked_model(folder):
        assert writing.is_locked(folder)
    assert not writing.is_locked(folder)


def test_an_interrupt_ends_in_130(work: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (work / "models.yaml").write_text(ONE_MODEL)
    monkeypatch.setattr(writing, "apply", interrupted)
    assert run("generate") == (130, "", "hf-triton: interrupted\n")


@pytest.mark.parametrize("name", ["demo", "other"])  # one that is there, and a new one
def test_a_full_disk_is_a_message_and_leaves_the_old(
    name: str, made: Path, work: Path, run: Run
) -> None:
    before = snapshot(made)
    text = ONE_MODEL.replace("demo", name).replace("org/name", "org/new")
    (work / "models.yaml").write_text(text)
    with files_of_at_most(10):
        code, _, err = run("generate")
    assert code == 1
    assert "File too large" in err
    assert snapshot(made) == before
    assert [path.name for path in made.iterdir()] == ["demo"]


def test_a_file_in_the_repositorys_place_is_a_message(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    (work / "model_repository").write_text("")
    code, _, err = run("generate")
    assert code == 1
    assert "Traceback" not in err
