"""The sections' own code on a CPU, with tiny models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from perf.gpu.results import Context
from perf.gpu.sections import ceilings, decode, encoder, engines, kernels, memory

pytestmark = pytest.mark.slow


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Context, list[dict[str, Any]]]:
    figures: list[dict[str, Any]] = []
    return Context(
        "cpu", True, "tiny", tmp_path, 0, lambda each: figures.append(asdict(each))
    ), figures


Measured = tuple[Context, list[dict[str, Any]]]


def rows(figures: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    return [figure["row"] for figure in figures if figure["table"] == table]


def test_ceilings_are_of_copies_reads_and_products(measured: Measured) -> None:
    context, figures = measured
    ceilings.measure(context)
    assert [row["measured"] for row in rows(figures, "memory")] == ["copy", "read"]
    assert all(value > 0 for figure in figures for value in list(figure["row"].values())[1:])


def test_decoding_is_compared_with_its_limit_eager_and_with_graphs(measured: Measured) -> None:
    context, figures = measured
    decode.measure(context)
    found = [(row["load"], row["sequences"], row["run_as"]) for row in rows(figures, "decoding")]
    assert found == [
        (load, sequences, run_as)
        for load, sequences in (("short", 1), ("short", 4), ("long", 2))
        for run_as in ("CUDA graphs", "eager")
    ]
    assert all(row["limit_share"] > 0 for row in rows(figures, "decoding"))
    mixed = rows(figures, "mixed load, in process")
    assert [row["requests"] for row in mixed] == [8, 32]
    assert all(0 < row["steps_with_prompts_share"] < 1 for row in mixed)
    assert {row["run_as"] for row in rows(figures, "kernels of a step, short load")} == {
        "CUDA graphs",
        "eager",
    }


def test_the_8_b_shape_with_one_sequence_has_a_target(measured: Measured) -> None:
    _, figures = measured
    context = Context("cpu", True, "llama-8b", Path(), 0, lambda each: figures.append(asdict(each)))
    limit = decode.Limit(weight_bytes=15_000, kv_bytes_per_token=10, bytes_per_s=1000.0)
    for sequences, run_as in ((1, "CUDA graphs"), (1, "eager"), (8, "CUDA graphs")):
        decode._emit(context, decode.SHORT, limit, sequences, run_as, step_s=20.0)
    first, *others = figures
    assert first["target"]["least"] == 0.70
    assert first["target"]["value"] == pytest.approx((15_000 + 144 * 10) / 1000 / 20)
    assert not any(figure["target"] for figure in others)


def test_a_model_that_cannot_be_captured_is_measured_eagerly(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(engines, "run_again", fails)
    monkeypatch.setattr(decode, "TINY", decode.TINY[1:])
    context, figures = measured
    with pytest.raises(RuntimeError, match="could not be captured"):
        decode.measure(context)
    assert {row["run_as"] for row in rows(figures, "decoding")} == {"eager"}


def test_encoders_are_timed_eager_and_with_graphs(measured: Measured) -> None:
    context, figures = measured
    encoder.measure(context)
    (table,) = {figure["table"] for figure in figures}
    assert [(row["tokens"], row["texts"]) for row in rows(figures, table)] == [
        (16, 1),
        (16, 2),
        (48, 1),
        (48, 2),
    ]


def test_memory_is_held_to_the_budget(measured: Measured) -> None:
    context, figures = measured
    memory.measure(context)
    stated, share = rows(figures, "budget")
    assert stated["kv_cache_gib"] <= stated["budget_gib"] == 0.01
    assert share["max_model_len"] == 128
    assert sum(figure["target"] is not None for figure in figures) == 4


@pytest.mark.parametrize(
    "kernel, kind",
    [
        ("nvjet_tst_64x8_64x16_4x2_h_bz_splitK_TNT", "matrix products"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "matrix products"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("void at::native::index_copy_kernel", "indexing"),
        ("elementwise_kernel<direct_copy_kernel_cuda>", "copies"),
        ("vectorized_elementwise_kernel<4, MulFunctor>", "elementwise"),
        ("reduce_kernel<512, 1, MeanOps>", "reductions"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_told_apart_by_their_names(kernel: str, kind: str) -> None:
    assert kernels.kind_of(kernel) == kind
