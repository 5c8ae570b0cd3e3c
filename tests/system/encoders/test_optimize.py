"""The comparison of engines: fair, honest about what is refused, and clear about what to choose."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_triton.cli.verbs import optimize
from hf_triton.encoder.encoder_loading import RUNNERS
from hf_triton.encoder.optimize.comparison import (
    ENGINES,
    MIN_ROUNDS,
    PLAIN,
    Candidate,
    Report,
    Timing,
    candidates,
    choice,
    timings,
    to_json,
    to_text,
)
from hf_triton.encoder.options import EncoderOptions
from hf_triton.encoder.runners.encoder_runner import Runner, RunnerSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import LoadError
from tests.support.encoder_setups import served_model, setup_of
from tests.support.tiny_encoders import tiny_encoder

ROOT = Path(__file__).parents[3]


class _Noting(Runner):
    """Notes its name at every call, and takes no time."""

    def __init__(self, setup: RunnerSetup, name: str, notes: list[tuple[str, int, int]]) -> None:
        super().__init__(setup)
        self.name, self._notes = name, notes

    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        self._notes.append((self.name, len(batch), len(batch[0])))
        return []


class _NoModel:
    """As much of a model as made-up texts need."""

    class config:  # noqa: N801, the attribute of a model
        vocab_size = 50

        @classmethod
        def get_text_config(cls) -> Any:
            return cls


def test_engines_take_turns_and_each_is_first_as_often() -> None:
    setup = RunnerSetup(_NoModel(), torch.device("cpu"), "hidden", 64, has_token_types=False)
    notes: list[tuple[str, int, int]] = []
    names = ["a", "b", "c"]
    found = timings(setup, {name: _Noting(setup, name, notes) for name in names}, (16, 4), 0.0)
    assert {note[1:] for note in notes} == {(4, 16)}
    order = "".join(name for name, *_ in notes)
    assert order == "abc" + "abcbcacababcbca"  # once to warm up, then the rounds
    assert [(one.engine, len(one.seconds)) for one in found] == [
        (name, MIN_ROUNDS) for name in names
    ]
    assert found[0].ratio_to_plain == 1.0


def test_the_copy_of_a_refused_engine_is_gone_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, copies = setup_of(tiny_encoder("bert", "AutoModel", tmp_path / "model")), []

    def refuse(own: RunnerSetup, *_: Any) -> Runner:
        copies.append(weakref.ref(own.model))
        raise LoadError("no")

    monkeypatch.setitem(RUNNERS, "torch", refuse)
    served = served_model(tmp_path / "model", tmp_path)
    tried = candidates(setup, served, EncoderOptions(), ["torch"], None, [])
    next(tried)  # plain PyTorch
    assert next(tried).refusal == "no"
    gc.collect()
    assert [copy() for copy in copies] == [None]


def timing(engine: str, ratio: float) -> Timing:
    return Timing(16, 1, engine, 2.0, 3.0, ratio, seconds=[0.002] * 5)


def report(
    ratios: dict[str, float], refused: Sequence[str] = (), named_engine: str = "torch"
) -> Report:
    options = {
        "torch": {"engine": "torch"},
        "onnxruntime": {"engine": "onnxruntime"},
        "onnxruntime-int8": {"engine": "onnxruntime", "quantization": "int8"},
    }
    candidates = [Candidate(PLAIN, difference=0.0)]
    candidates += [
        Candidate(name, difference=0.001, tolerance=0.1, options=options[name]) for name in ratios
    ]
    candidates += [Candidate(name, refusal="no", options=options[name]) for name in refused]
    times = [timing(PLAIN, 1.0), *(timing(name, ratio) for name, ratio in ratios.items())]
    about = {"model": "tiny", "versions": {"torch": "2"}}
    return Report(about, named_engine, candidates, times, complete=True)


def test_the_fastest_engine_that_computes_the_same_is_chosen_and_int8_is_offered() -> None:
    found = choice(report({"torch": 1.5, "onnxruntime": 2.0, "onnxruntime-int8": 4.0}))
    assert found == {
        "engine": "onnxruntime",
        "options": {"engine": "onnxruntime"},
        "speedup": pytest.approx(2.0),
        "text": "Choose onnxruntime, 2.00 times as fast as plain PyTorch: write "
        "`options: {engine: onnxruntime}` in models.yaml; where a difference of 0.001 does not "
        "matter, `options: {engine: onnxruntime, quantization: int8}` is 4.00 times as fast as "
        "plain PyTorch.",
    }


@pytest.mark.parametrize("ratio, chosen", [(2.05, "torch"), (2.5, "onnxruntime")])
def test_the_default_engine_stays_where_another_is_hardly_faster(ratio: float, chosen: str) -> None:
    assert choice(report({"torch": 2.0, "onnxruntime": ratio}))["engine"] == chosen


def test_a_refused_engine_is_shown_and_never_chosen() -> None:
    found = report({"torch": 2.0}, refused=["onnxruntime"], named_engine="onnxruntime")
    assert found.named_is_refused
    assert "\nonnxruntime: refused: no\n" in to_text(found)
    assert choice(found)["engine"] == "torch"


def test_the_json_is_whole_and_standard() -> None:
    found = report({"torch": 2.0})
    found.candidates[1].difference = float("inf")
    value = json.loads(to_json(found), parse_constant=pytest.fail)
    assert value["schema_version"] == 2
    assert [engine["status"] for engine in value["engines"]] == ["ok", "ok"]
    assert value["timings"][1]["ratio_to_plain"] == 2.0


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the models.yaml of one tiny classifier."""
    auto_class = "AutoModelForSequenceClassification"
    tiny_encoder("bert", auto_class, tmp_path / "model", num_hidden_layers=1)
    yaml = "models:\n  - {name: tiny, task: text-classification, model: ./model}\n"
    (tmp_path / "models.yaml").write_text(yaml)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hf_triton.cli", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=work,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_one_command_exports_checks_times_and_says_what_to_write(work: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx needs numpy 2 on Python 3.13")
    engines = "torch,onnxruntime,onnxruntime-int8"
    asked = ["--engines", engines, "--lengths", "4,8", "--batch-sizes", "2", "--seconds", "0.1"]
    result = run(work, "optimize", "tiny", *asked)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("4 tokens, 2 texts, ")
    assert "\n\n8 tokens, 2 texts, " in result.stdout
    assert "Choose " in result.stdout.splitlines()[-1]
    written = work / "model_repository" / "tiny" / "hf_cache" / "optimize.json"
    value = json.loads(written.read_text())
    assert value["complete"]
    assert [engine["status"] for engine in value["engines"]] == ["ok"] * 4
    assert len(value["timings"]) == 2 * 4
    assert value["command"].startswith("hf-triton optimize tiny --engines torch,")
    assert {"cpu", "cores", "threads"} <= set(value["hardware"])
    assert run(work, "diff").returncode == 0


def test_an_engine_that_models_yaml_names_and_that_is_refused_ends_in_1(work: Path) -> None:
    text = (work / "models.yaml").read_text()
    changed = text.replace("}", ", dtype: bfloat16, options: {engine: onnxruntime}}")
    (work / "models.yaml").write_text(changed)
    asked = ["--engines", "torch,onnxruntime", "--lengths", "4", "--batch-sizes", "1"]
    file = work / "found.json"
    result = run(work, "optimize", "tiny", *asked, "--seconds", "0.1", "--json", str(file))
    assert result.returncode == 1, result.stderr
    assert "onnxruntime: refused: engine: onnxruntime computes float32 on cpu" in result.stdout
    statuses = {one["name"]: one["status"] for one in json.loads(file.read_text())["engines"]}
    assert statuses == {PLAIN: "ok", "torch": "ok", "onnxruntime": "refused"}


def test_a_text_longer_than_the_model_takes_is_refused(work: Path) -> None:
    result = run(work, "optimize", "tiny", "--lengths", "16,500")
    assert result.returncode == 1
    assert result.stdout == ""
    said = "hf-triton: tiny: --lengths: got 500, this model takes at most 128 tokens"
    assert said in result.stderr.splitlines()


def test_an_interrupt_tells_what_is_done(work: Path) -> None:
    # All rounds of one text take seconds; of 8,192 texts, minutes.
    asked = ["--engines", "torch", "--lengths", "4", "--batch-sizes", "1,8192", "--seconds", "300"]
    process = subprocess.Popen(
        command("optimize", "tiny", *asked),
        cwd=work,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "(2 of 2)" in line:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out.startswith("4 tokens, 1 text, ")
    assert "8192 texts" not in out
    file = work / "model_repository" / "tiny" / "hf_cache" / "optimize.json"
    assert json.loads(file.read_text())["complete"] is False


def test_the_verb_offers_the_engines_that_the_comparison_knows() -> None:
    assert tuple(ENGINES) == optimize.ENGINES
