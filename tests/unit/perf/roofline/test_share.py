"""What of a machine's limit a measurement is, from files and labels alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.report.schema import Load, Measurement, Run
from perf.roofline import measured as machine
from perf.roofline.share import Decoder, Lengths, decoder_in, share_of
from perf.roofline.step import machine_of
from perf.sweep.server import limits as sweeps

FIGURES = {"memory_gb_per_s": 10.0, "float32_gflop_per_s": 1e6, "bfloat16_gflop_per_s": 1e6}
MACHINE = machine_of(FIGURES, num_threads=2)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "float16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
PARAMETERS = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 100
CONTEXT = 3  # a prompt of 2 tokens, and half of an answer of 2
CACHE_BYTES = 2 * 2 * 64 * CONTEXT * 4


def model(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def decoder(folder: Path, served: str = "auto", most: int | None = None, **changes: Any) -> Decoder:
    found = decoder_in(model(folder, **changes), served, most)
    assert found is not None
    return found


def measured(callers: int | None, tokens_per_s: float | None = 100.0) -> Measurement:
    load = Load("m", "grpc-stream", callers, prompt_tokens="2", output_tokens="2")
    return Measurement(load, 0, "", 1.0, 1, 0, 1.0, output_tokens_per_s=tokens_per_s)


def test_half_stored_weights_are_read_as_they_are_stored(tmp_path: Path) -> None:
    found = decoder(tmp_path)
    assert (found.dtype, found.weight_dtype) == ("float32", "float16")
    per_step = 2 * PARAMETERS + CACHE_BYTES
    assert share_of(MACHINE, found, measured(1)) == pytest.approx(100 * per_step / 10e9)


@pytest.mark.parametrize(
    "dtype, stored, weights",
    [
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "float32", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_weights_take_the_fewer_bytes_of_what_is_stored_and_computed_in(
    tmp_path: Path, dtype: str, stored: str, weights: str
) -> None:
    found = decoder(tmp_path, dtype, dtype=stored)
    assert (found.dtype, found.weight_dtype) == (dtype, weights)


def test_more_callers_than_sequences_wait(tmp_path: Path) -> None:
    found = decoder(tmp_path, most=4)
    assert share_of(MACHINE, found, measured(64)) == share_of(MACHINE, found, measured(4))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt_neox"},
        {"hidden_size": "wide"},
        {"quantization_config": {}},
        {"dtype": "float8"},
        {"num_hidden_layers": 0},
    ],
)
def test_what_is_not_of_llamas_shape_has_no_share(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert decoder_in(model(tmp_path, **changes), "auto") is None


@pytest.mark.parametrize("text", ["", "[", "[1]", "\xff", "[" * 100_000])
def test_a_config_that_is_none_has_no_share(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    assert decoder_in(tmp_path, "auto") is None
    assert decoder_in(tmp_path / "not there", "auto") is None


def test_loads_whose_tokens_are_not_known_have_no_share(tmp_path: Path) -> None:
    found = decoder(tmp_path)
    one = measured(1)
    assert share_of(MACHINE, found, measured(None)) is None
    assert share_of(MACHINE, found, measured(1, None)) is None
    in_words = replace(one, load=replace(one.load, prompt_tokens="2 words"))
    assert share_of(MACHINE, found, in_words) is None
    near = decoder(tmp_path, sliding_window=2)
    assert share_of(MACHINE, near, one) is None


def test_lengths_are_read_from_labels() -> None:
    assert Lengths.of("8-64", "10") == Lengths(36, 10, 41)
    assert Lengths.of("4", "1/3") == Lengths(4, 2, 4 + 5 / 4)
    drawn = Lengths.of("4", "1-3")
    assert drawn
    assert drawn.context == pytest.approx(4 + (1 + 4 + 9) / 3 / 2 / 2)
    assert Lengths.of("", "8") is None
    assert Lengths.of("8-", "8") is None


def test_a_machine_without_torch_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def without() -> dict[str, float]:
        raise machine.NotMeasuredError("torch is not installed here")

    monkeypatch.setattr(machine, "figures", without)
    run = sweeps.with_roofline(sweeps.with_roofline(Run("sweep", "", "", "", {}, {})))
    assert list(run.notes) == [
        "the machine's limits were not measured: torch is not installed here"
    ]
    assert sweeps.limits(run, {}).machine is None


def test_a_repositorys_decoders_are_found_by_the_names_of_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, weights = tmp_path / "demo_stream", tmp_path / "weights"
    (served / "1").mkdir(parents=True)
    weights.mkdir()
    model(weights)
    (served / "config.pbtxt").write_text("instance_group { count: 2 }")
    values = {"task": "text-generation", "local": True, "model": "../weights", "dtype": "auto"}
    (served / "1" / "model.json").write_text(json.dumps(values | {"options": {"max_num_seqs": 3}}))

    monkeypatch.setattr(sweeps, "gpu_names", list)
    found = sweeps.decoders_of(["demo", "other"], tmp_path)
    assert set(found) == {"demo"}
    assert found["demo"].max_num_seqs == 6

    monkeypatch.setattr(sweeps, "gpu_names", lambda: ["A GPU"])
    assert sweeps.decoders_of(["demo"], tmp_path) == {}
