"""Encoders on ONNX Runtime: exported once, right, or refused with the reason."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_triton.encoder.encoder_loading import EncoderFiles
from hf_triton.encoder.onnx.onnx_runner import INT8_TOLERANCE, onnx_runner
from hf_triton.encoder.runners.encoder_runner import (
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
)
from hf_triton.encoder.task import EncoderTask, OutputKind, Prepared
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.feature_extraction.options import Options
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.engine.work_engine import Work
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.runtime.weights.served_model import ServedModel
from tests.support.encoder_setups import served_model, setup_of
from tests.support.tiny_encoders import Wrapping, tiny_encoder
from tests.support.triton import eventually

pytest.importorskip("onnxscript", reason="the extra onnx needs numpy 2 on Python 3.13")
pytest.importorskip("onnxruntime")
import onnx

ONNX = Options(engine="onnxruntime")
INT8 = Options(engine="onnxruntime", quantization="int8")
LENGTHS = (5, 17, 9, 17, 3, 60, 1, 100)


def small(architecture: str, auto_class: str, folder: Path) -> Path:
    """One layer, or one of each kind: exporting is slow."""
    layers = 2 if architecture == "modernbert" else 1
    return tiny_encoder(architecture, auto_class, folder, num_hidden_layers=layers, n_layers=layers)


def scene(setup: RunnerSetup) -> list[Encoding]:
    """Texts of mixed lengths, each as the first of a pair where the model can tell."""
    found = random_encodings(setup, LENGTHS)
    if not setup.has_token_types:
        return found
    types = [[0] * (len(e) // 2) + [1] * (len(e) - len(e) // 2) for e in found]
    return [dataclasses.replace(e, token_type_ids=t) for e, t in zip(found, types, strict=True)]


def difference(setup: RunnerSetup, served: ServedModel, options: Options = ONNX) -> float:
    """Between ONNX Runtime's outputs and those of the model alone with each text."""
    encodings = scene(setup)
    outputs = onnx_runner(setup, served, options).forward(encodings)
    return largest_difference(outputs, [reference_forward(setup, one) for one in encodings])


def onnx_files(served: ServedModel) -> list[Path]:
    return sorted(served.cache_dir.glob("onnx/*/model.onnx"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ServedModel]:
    """BERT's files, and the model with its ONNX file already made: only to be copied."""
    files = small("bert", "AutoModel", tmp_path_factory.mktemp("bert"))
    served = served_model(files, tmp_path_factory.mktemp("repository"))
    onnx_runner(setup_of(files), served, ONNX)
    return files, served


@pytest.fixture
def bert(exported: tuple[Path, ServedModel], tmp_path: Path) -> tuple[RunnerSetup, ServedModel]:
    """A copy of both."""
    files, served = exported
    copied = Path(shutil.copytree(files, tmp_path / "bert"))
    shutil.copytree(served.folder, tmp_path / "tiny")
    return setup_of(copied), served_model(copied, tmp_path)


# BERT's hidden states are in the other tests.
@pytest.mark.parametrize(
    "architecture, auto_class, output",
    [
        ("deberta-v2", "AutoModel", "hidden"),
        ("distilbert", "AutoModelForMaskedLM", "tokens"),
        ("modernbert", "AutoModelForSequenceClassification", "sequences"),
    ],
)
def test_onnx_runtime_computes_what_the_model_does(
    architecture: str, auto_class: str, output: OutputKind, tmp_path: Path
) -> None:
    files = small(architecture, auto_class, tmp_path / "model")
    setup = setup_of(files, output, auto_class)
    assert difference(setup, served_model(files, tmp_path)) < 1e-4


def test_the_model_is_exported_once(bert: tuple[RunnerSetup, ServedModel]) -> None:
    setup, served = bert
    (made,) = onnx_files(served)
    before = made.stat().st_mtime_ns
    assert difference(setup, served) < 1e-4
    assert onnx_files(served) == [made]
    assert made.stat().st_mtime_ns == before
    assert {path.name for path in made.parent.parent.iterdir()} == {made.parent.name, ".lock"}


def test_a_changed_model_is_exported_anew_and_its_old_file_goes(
    bert: tuple[RunnerSetup, ServedModel],
) -> None:
    setup, served = bert
    (old,) = onnx_files(served)
    with torch.no_grad():
        for parameter in setup.model.parameters():
            parameter.mul_(1.5)
    setup.model.save_pretrained(served.local_path)
    assert difference(setup, served) < 1e-4
    (new,) = onnx_files(served)
    assert new != old


@pytest.mark.parametrize("part", ["model.onnx", "model.onnx.data"])
def test_a_broken_file_is_made_anew(part: str, bert: tuple[RunnerSetup, ServedModel]) -> None:
    setup, served = bert
    broken = onnx_files(served)[0].with_name(part)
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2] if part == "model.onnx" else bytes(len(whole)))
    assert difference(setup, served) < 1e-4
    assert broken.stat().st_size == len(whole)


def test_a_broken_file_that_cannot_be_removed_is_an_error(
    bert: tuple[RunnerSetup, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_files(bert[1])[0].write_bytes(b"broken")

    def refuse(folder: Path, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(LoadError, match=r"writing the ONNX file failed: .*Read-only"):
        onnx_runner(*bert, ONNX)


def test_int8_is_near_the_model_and_uses_the_file_that_is_there(
    bert: tuple[RunnerSetup, ServedModel],
) -> None:
    setup, served = bert
    (full,) = onnx_files(served)
    before = full.stat().st_mtime_ns
    assert 1e-4 < difference(setup, served, INT8) < INT8_TOLERANCE
    assert full.stat().st_mtime_ns == before
    (rounded,) = set(onnx_files(served)) - {full}
    kinds = {node.op_type for node in onnx.load(rounded).graph.node}
    assert "MatMulInteger" in kinds


class OfAnOperatorUnknownToOnnx(Wrapping):
    def changed(self, hidden: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = torch.special.bessel_j0(hidden)
        return changed


class OtherWhenExported(Wrapping):
    def changed(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 0.25 if torch.compiler.is_exporting() else hidden


def test_an_export_that_fails_says_at_which_operator(
    bert: tuple[RunnerSetup, ServedModel],
) -> None:
    setup, served = bert
    setup = dataclasses.replace(setup, model=OfAnOperatorUnknownToOnnx(setup.model).eval())
    with pytest.raises(LoadError) as caught:
        onnx_runner(setup, served, ONNX)
    text = str(caught.value)
    assert text.startswith("the export to ONNX failed: DispatchError: No ONNX function found")
    assert "bessel_j0" in text
    assert text.endswith("; use engine: torch")
    assert "\n" not in text
    assert onnx_files(served) == []
    assert [path.name for path in (served.cache_dir / "onnx").iterdir()] == [".lock"]


def test_an_export_that_disagrees_is_refused_with_the_difference(
    bert: tuple[RunnerSetup, ServedModel],
) -> None:
    setup, served = bert
    setup = dataclasses.replace(setup, model=OtherWhenExported(setup.model).eval())
    with pytest.raises(LoadError, match=r"own output by 0\.\d+, allowed is 0.0001"):
        onnx_runner(setup, served, ONNX)


def test_a_type_that_onnx_runtime_does_not_compute_is_refused(exported: Any) -> None:
    files, served = exported
    setup = setup_of(files, dtype=torch.bfloat16)
    message = (
        "engine: onnxruntime computes float32 on cpu, the model is in bfloat16: set dtype: "
        "float32, or use engine: torch"
    )
    with pytest.raises(LoadError) as caught:
        onnx_runner(setup, served, ONNX)
    assert str(caught.value) == message


def test_missing_packages_are_named_with_the_command_that_installs_them(
    bert: tuple[RunnerSetup, ServedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(LoadError, match=r"pip install 'onnx>=1.20,<2' 'onnxscript"):
        onnx_runner(*bert, ONNX)


def test_a_repository_that_cannot_be_written_serves_all_the_same(
    bert: tuple[RunnerSetup, ServedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, served = bert
    shutil.rmtree(served.cache_dir)
    served.cache_dir.write_text("a file where the folder would be")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    assert difference(setup, served) < 1e-4
    assert list((tmp_path / "scratch").iterdir()) == []


class Hidden(EncoderTask):
    """As little as a task can be."""

    auto_class = "AutoModel"

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        raise NotImplementedError


def test_the_engine_serves_without_the_models_own_weights(
    bert: tuple[RunnerSetup, ServedModel],
) -> None:
    setup, served = bert
    loaded = EncoderFiles(served, ONNX, Hidden).load(Placement("cpu", {"": "cpu"}), 1)
    assert loaded.description.endswith("onnxruntime (CPU), batches cut by length")
    answers: list[Sequence[Any] | Exception] = []
    encodings = scene(setup)
    try:
        loaded.engine.thread.submit([Work(encodings, answers.append, lambda: False)])
        assert eventually(lambda: bool(answers))
    finally:
        loaded.engine.thread.stop()
    got = [torch.from_numpy(array) for array in answers[0]]  # type: ignore[union-attr]
    assert largest_difference(got, [reference_forward(setup, one) for one in encodings]) < 1e-4
    runner: Any = loaded.engine.runner
    assert {parameter.device.type for parameter in runner.setup.model.parameters()} == {"meta"}
