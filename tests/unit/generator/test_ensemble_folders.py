"""``layout: ensemble`` makes four of Triton's models of one: their configs, files and life."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from generator.render import model_config
from tests.support.apply_bench import tell_state
from tests.support.fake_control import FakeTriton, listening
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL

ENSEMBLE = ONE_MODEL + "    layout: ensemble\n"
FOLDERS = ["demo", "demo_model", "demo_postprocessing", "demo_tokenizer"]


def configs(text: str, work: Path, run: Run) -> dict[str, Any]:
    """Generates; each folder's config, parsed."""
    (work / "models.yaml").write_text(text)
    assert run("generate")[0] == 0
    files = (work / "model_repository").glob("*/config.pbtxt")
    return {file.parent.name: model_config.parse(file.read_text()) for file in sorted(files)}


def full_dims(tensor: Any, config: Any) -> list[int]:
    """With the batch dimension that Triton adds."""
    return [-1, *tensor.dims] if config.max_batch_size else list(tensor.dims)


@pytest.mark.parametrize("size", [0, 8])
def test_callers_find_the_tensors_of_a_single_model(size: int, work: Path, run: Run) -> None:
    batch = f"    max_batch_size: {size}\n"
    single = configs(ONE_MODEL + batch, work, run)["demo"]
    ensemble = configs(ENSEMBLE + batch, work, run)["demo"]
    assert list(ensemble.input) == list(single.input)
    assert list(ensemble.output) == list(single.output)
    assert (ensemble.max_batch_size, ensemble.platform) == (size, "ensemble")


NATIVE = "    ensemble: {{backend: {}, token_type_ids: false, model_max_batch_size: 4}}\n"
BACKENDS = {
    "python": "",
    "onnxruntime": NATIVE.format("onnxruntime"),
    "tensorrt": NATIVE.format("tensorrt"),
}


@pytest.mark.parametrize("size", [0, 8])
@pytest.mark.parametrize("keys", BACKENDS.values(), ids=BACKENDS.keys())
def test_each_tensor_has_one_type_and_shape_wherever_it_goes(
    keys: str, size: int, work: Path, run: Run
) -> None:
    """As Triton checks it: dims with the batch dimension, which a step may have as its own."""
    found = configs(f"{ENSEMBLE}    max_batch_size: {size}\n{keys}", work, run)
    outer = found["demo"]
    seen = {t.name: {(t.data_type, *full_dims(t, outer))} for t in (*outer.input, *outer.output)}
    for step in outer.ensemble_scheduling.step:
        config = found[step.model_name]
        inputs = {tensor.name: tensor for tensor in config.input}
        outputs = {tensor.name: tensor for tensor in config.output}
        assert set(step.input_map) == set(inputs)
        assert set(step.output_map) == set(outputs)
        for tensors, names in ((inputs, step.input_map), (outputs, step.output_map)):
            for name, tensor in tensors.items():
                shape = (tensor.data_type, *full_dims(tensor, config))
                seen.setdefault(names[name], set()).add(shape)
    assert all(len(shapes) == 1 for shapes in seen.values()), seen


def test_all_folders_come_and_go_together(work: Path, run: Run) -> None:
    configs(ENSEMBLE, work, run)
    repository = work / "model_repository"
    assert sorted(path.name for path in repository.iterdir()) == FOLDERS
    assert run("diff")[0] == 0
    (work / "models.yaml").write_text(ENSEMBLE.replace("demo", "other"))
    run("generate")
    assert len(run("prune")[1].splitlines()) == len(FOLDERS)
    assert not [path for path in repository.iterdir() if path.name.startswith("demo")]


def test_apply_loads_all_steps_by_one_load_of_the_ensemble(work: Path, run: Run) -> None:
    repository = work / "model_repository"
    configs(ENSEMBLE, work, run)
    with listening(FakeTriton(repository)) as fake:
        tell_state(fake.port, metrics_port=fake.port)
        fake.load("demo")
        fake.events.clear()
        (work / "models.yaml").write_text(ENSEMBLE + "    max_batch_size: 8\n")
        assert run("apply")[0] == 0
        assert (fake.events[0], fake.events[-1]) == ("unload demo", "load demo")
        assert sorted(fake.events[1:-1]) == [f"unload {name}" for name in FOLDERS[1:]]
        assert [fake.ready(name) for name in FOLDERS] == [{2}] * len(FOLDERS)

        load, step = fake.load, repository / "demo_model/3"

        def break_a_step(name: str) -> None:
            if step.exists():
                (step / "model.json").write_text('{"options": {"fail": "no weights"}}')
            load(name)

        fake.load = break_a_step  # type: ignore[method-assign]
        (work / "models.yaml").write_text(ENSEMBLE)
        why = "demo_model: RuntimeError: no weights; version 2 is loaded again"
        assert f"model 'demo' failed: {why}" in run("apply")[2]
        assert [fake.ready(name) for name in FOLDERS] == [{2}] * len(FOLDERS)


def test_a_model_file_of_the_users_stays_through_generate_and_prune(work: Path, run: Run) -> None:
    native = ENSEMBLE + "    ensemble: {backend: onnxruntime}\n"
    configs(native, work, run)
    theirs = work / "model_repository/demo_model/1/model.onnx"
    theirs.write_bytes(b"onnx")
    configs(native + "    max_batch_size: 8\n", work, run)
    (work / "models.yaml").write_text(ONE_MODEL.replace("demo", "other"))
    run("prune")
    assert theirs.read_bytes() == b"onnx"


NEEDS_EXPORT = ONE_MODEL + "    layout: ensemble\n    ensemble: {backend: onnxruntime}\n"
TARGET = "model_repository/demo_model/1/model.onnx"


@pytest.fixture
def home(work: Path) -> Path:
    """The folder of exports; models.yaml has a model that needs one."""
    (work / "models.yaml").write_text(NEEDS_EXPORT)
    folder = work / "model_repository/demo/hf_cache/onnx"
    folder.mkdir(parents=True)
    return folder


def export(home: Path, name: str, content: str, age_s: int = 0) -> Path:
    folder = home / name
    folder.mkdir()
    (folder / "model.onnx").write_text(content)
    (folder / "model.onnx.data").write_text(f"weights of {content}")
    written_s = (folder / "model.onnx").stat().st_mtime - age_s
    os.utime(folder / "model.onnx", (written_s, written_s))
    return folder


def test_the_newest_export_is_put_in_its_place_with_its_weights(home: Path, run: Run) -> None:
    export(home, "sequences-float32-none-1", "old", age_s=60)
    newest = export(home, "sequences-float32-none-2", "new")
    export(home, "sequences-float16-none-3", "wrong type")
    export(home, "sequences-float32-int8-4", "not asked for")
    code, _, err = run("generate")
    place = newest.relative_to(Path.cwd())
    assert (code, err) == (0, f"{TARGET}: taken from {place}\n")
    assert Path(TARGET).read_text() == "new"
    assert Path(f"{TARGET}.data").read_text() == "weights of new"
    assert run("generate") == (0, "model_repository: 0 written, 4 identical\n", "")


def test_a_file_that_is_there_stays(home: Path, run: Run) -> None:
    run("generate")
    Path(TARGET).write_text("mine")
    export(home, "sequences-float32-none-1", "theirs")
    assert run("generate")[2] == ""
    assert Path(TARGET).read_text() == "mine"
    assert not Path(f"{TARGET}.data").exists()


@pytest.mark.parametrize(
    "backend, message",
    [
        (
            "onnxruntime",
            "model.onnx: is missing; hf-triton optimize demo --engines onnxruntime makes",
        ),
        ("tensorrt", "model.plan: is missing; make it with trtexec"),
    ],
)
def test_a_missing_file_is_told_of_and_how_to_make_it(
    backend: str, message: str, home: Path, work: Path, run: Run
) -> None:
    (work / "models.yaml").write_text(NEEDS_EXPORT.replace("onnxruntime", backend))
    code, _, err = run("generate")
    assert code == 0
    assert err.startswith(f"model_repository/demo_model/1/{message}")


def test_an_export_is_copied_where_it_can_not_be_linked(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:  # as between two file systems
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    export(home, "sequences-float32-none-1", "new")
    assert run("generate")[0] == 0
    assert Path(TARGET).read_text() == "new"
