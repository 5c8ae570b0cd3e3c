"""The sections' own code on a CPU, with tiny models."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from perf.gpu.agree import sampling, ways, weights
from perf.gpu.agree.compared import Reference, case, compare
from perf.gpu.results import Context
from perf.gpu.sections import (
    ceilings,
    encoder,
    kernels,
    launches,
    memory,
    throughput,
)
from perf.gpu.sections.closed_loop import Request, mean_context, tokens_per_s

pytestmark = pytest.mark.slow


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Context, list[dict[str, Any]]]:
    figures: list[dict[str, Any]] = []
    return Context(
        "cpu", True, "tiny", tmp_path, 0, lambda each: figures.append(asdict(each))
    ), figures


LOOP = "closed loop, in process"
Measured = tuple[Context, list[dict[str, Any]]]


def rows(figures: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    return [figure["row"] for figure in figures if figure["table"] == table]


def test_ceilings_are_of_copies_reads_and_products(measured: Measured) -> None:
    context, figures = measured
    ceilings.measure(context)
    assert [row["measured"] for row in rows(figures, "memory")] == ["copy", "read"]
    assert all(value > 0 for figure in figures for value in list(figure["row"].values())[1:])


def test_tokens_a_second_are_ours_and_others(measured: Measured) -> None:
    context, figures = measured
    throughput.measure(context)
    found = [(row["clients"], row["generated_by"]) for row in rows(figures, LOOP)]
    ways = ("in_flight", "transformers, continuous batching", "the tutorial's padded batches")
    assert found == [(clients, way) for way in ways for clients in (1, 4)]
    assert not rows(figures, "not measured")


def test_a_peer_that_fails_leaves_the_others(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object, *_: object, **__: object) -> None:
        raise RuntimeError("no kernels for it here")

    monkeypatch.setattr("transformers.LlamaForCausalLM.init_continuous_batching", fails)
    context, figures = measured
    throughput.measure(context)
    assert {row["generated_by"] for row in rows(figures, LOOP)} == {
        "in_flight",
        "the tutorial's padded batches",
    }
    assert rows(figures, "not measured")[0]["why"] == "RuntimeError: no kernels for it here"


def test_a_limit_is_of_weights_and_of_the_keys_that_are_needed() -> None:
    limit = throughput.Limit(weight_bytes=15_000, kv_bytes_per_token=10, bytes_per_s=1000.0)
    assert limit.tokens_per_s(2, 100.0) == pytest.approx(2 / ((15_000 + 2 * 100 * 10) / 1000))
    asked = [Request([0] * 10, 2), Request([0] * 20, 2)]
    assert mean_context(asked) == pytest.approx((11 + 12 + 21 + 22) / 4)


def test_tokens_are_counted_while_all_clients_are_busy() -> None:
    async def answer(prompt: list[int], max_tokens: int) -> int:
        await asyncio.sleep(0.01 * len(prompt))
        return max_tokens

    asked = [Request([0], 10)] * 12
    assert asyncio.run(tokens_per_s(answer, 2, asked)) == pytest.approx(2 * 10 / 0.01, rel=0.5)

    async def short(prompt: list[int], max_tokens: int) -> int:
        return max_tokens - 1

    with pytest.raises(RuntimeError, match="9 tokens came, 10 were asked for"):
        asyncio.run(tokens_per_s(short, 2, asked))


def test_what_the_cpu_generates_agrees_with_itself(measured: Measured) -> None:
    context, figures = measured
    weights.measure(context)
    found = {row["weights"]: row["agrees"] for row in rows(figures, "agreement")}
    assert found.pop("int4") is None, "it needs a GPU"
    assert all(found[name] for name in ("float32", "bfloat16", "int8", "adapters"))
    assert not any(figure["target"] and figure["target"]["value"] < 1 for figure in figures)


def test_tokens_are_the_same_however_they_are_chosen_and_whenever_they_are_read(
    measured: Measured,
) -> None:
    context, figures = measured
    sampling.measure(context)
    found = rows(figures, "agreement")
    assert {row["sampling"]: row["near_ties"] for row in found} == dict.fromkeys(sampling.WAYS, 0)
    assert all(row["agrees"] and row["tokens"] == 80 for row in found)
    assert [row["way"] for row in rows(figures, "sampling")] == list(sampling.WAYS)


def test_another_token_is_told_from_a_near_tie() -> None:
    logits = torch.tensor([[0.0, 9.0, 8.95], [10.0, 5.0, 0.0]])
    reference = Reference((1, 0), logits)
    assert reference.differs([1, 0], 1e-2) == (2, False)
    assert reference.differs([2, 2], 1e-2) == (0, False), "what follows a near tie is another text"
    assert reference.differs([1, 1], 1e-2) == (1, True)
    assert reference.differs([1], 1e-2) == (2, True), "too short"


def test_a_model_that_cannot_run_is_a_row_and_the_others_follow(measured: Measured) -> None:
    context, figures = measured
    with case(context, case="a"):
        raise RuntimeError("illegal memory access")
    with case(context, case="b") as row:
        compare(row, [Reference((1,), torch.zeros(1, 2))], [[1]], 1e-3)
    assert [row["agrees"] for row in rows(figures, "agreement")] == [False, True]
    assert rows(figures, "agreement")[0]["why"] == "RuntimeError: illegal memory access"


def test_launches_are_counted_and_a_backend_that_is_not_there_is_told(measured: Measured) -> None:
    context, figures = measured
    launches.measure(context)
    found = {row["backend"]: row.get("why", "") for row in rows(figures, "attention")}
    assert "No viable backend" in found["cuDNN"]
    assert found["flash"] == ""


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


def test_every_way_to_compute_a_llama_agrees_with_the_cpu(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "_SHORT", (3,))
    context, figures = measured
    ways.measure(context)
    found = {(row["way"], row["dtype"]): row for row in rows(figures, "agreement")}
    assert found["few pages: preempted", "float32"]["preempted"] > 0
    assert found["fused, FlashAttention 3", "bfloat16"]["agrees"] is None, "it is not installed"
    assert [row for row in found.values() if row["agrees"] is False] == []
    assert found["fused, our kernel", "float32"]["run_by"].startswith("fused")
    assert found["paged, our kernel", "float32"]["run_by"].startswith("paged")
