"""The share of a machine's limit that a measurement reached, from files and labels alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf import roofline
from perf.report.schema import Load, Measurement, Run, read_run, write_run
from perf.roofline import Decoder, Lengths, decoder_in, share_of

MACHINE = {"memory_gb_per_s": 10.0, "float32_gflop_per_s": 1e6, "bfloat16_gflop_per_s": 1e6}
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
    assert (found.dtype, found.weight_bytes) == ("float32", 2)
    per_step = 2 * PARAMETERS + CACHE_BYTES
    assert share_of(MACHINE, found, measured(1)) == pytest.approx(100 * per_step / 10e9)


def test_many_sequences_wait_for_the_products() -> None:
    found = Decoder(parameters=100, head=10, attention=96, kept=96, dtype="bfloat16")
    machine = {**MACHINE, "memory_gb_per_s": 1e9, "bfloat16_gflop_per_s": 1.0}
    flop = 2 * (10 * 100 + 5 * 10) + 4 * 10 * 7 * 96
    assert found.tokens_per_s_limit(machine, Lengths(8, 8, 7), 5) == pytest.approx(5e9 / flop)


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
    ],
)
def test_what_is_not_of_llamas_shape_has_no_share(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert decoder_in(model(tmp_path, **changes), "auto") is None


def test_loads_whose_tokens_are_not_known_have_no_share(tmp_path: Path) -> None:
    found, one = decoder(tmp_path), measured(1)
    in_words = replace(one, load=replace(one.load, prompt_tokens="2 words"))
    for other in (measured(None), measured(1, None), in_words):
        assert share_of(MACHINE, found, other) is None
    assert share_of(MACHINE, decoder(tmp_path, sliding_window=2), one) is None
    assert share_of({}, found, one) is None


def test_lengths_are_read_from_labels() -> None:
    def of(prompt: str, output: str) -> Lengths | None:
        return Lengths.of(Load("m", "x", prompt_tokens=prompt, output_tokens=output))

    assert of("8-64", "10") == Lengths(36, 10, 41)
    assert of("4", "1/3") == Lengths(4, 2, 4 + 5 / 4)
    drawn = of("4", "1-3")
    assert drawn
    assert drawn.context == pytest.approx(4 + (1 + 4 + 9) / 3 / 2 / 2)
    assert of("", "8") is of("8-", "8") is None


def test_a_repositorys_decoders_are_found_and_the_machine_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, weights, folder = (tmp_path / name for name in ("demo_stream", "weights", "run"))
    (served / "1").mkdir(parents=True)
    weights.mkdir()
    model(weights)
    (served / "config.pbtxt").write_text("instance_group { count: 2 }")
    values = {"task": "text-generation", "local": True, "model": "../weights", "dtype": "auto"}
    (served / "1" / "model.json").write_text(json.dumps(values | {"options": {"max_num_seqs": 3}}))
    write_run(folder, Run("sweep", "", "", "", {}, {}))
    calls = iter([MACHINE])
    monkeypatch.setattr(roofline, "figures", lambda: next(calls))
    monkeypatch.setattr(roofline, "gpu_names", list)

    found = [roofline.limits_in(folder, ["demo", "other"], tmp_path) for _ in range(2)][1]

    assert set(found.decoders) == {"demo"}
    assert found.decoders["demo"].max_num_seqs == 6
    assert found.machine == MACHINE
    monkeypatch.setattr(roofline, "gpu_names", lambda: ["A GPU"])
    assert roofline.decoders_of(["demo"], tmp_path) == {}


def test_a_machine_without_torch_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without() -> dict[str, float]:
        raise roofline.NotMeasuredError("No module named 'torch'")

    monkeypatch.setattr(roofline, "figures", without)
    monkeypatch.setattr(roofline, "decoders_of", lambda *_: {"demo": None})
    write_run(tmp_path, Run("sweep", "", "", "", {}, {}))
    assert not roofline.limits_in(tmp_path, ["demo"], tmp_path).machine
    assert list(read_run(tmp_path).notes) == [
        "the machine's limits were not measured: No module named 'torch'"
    ]
