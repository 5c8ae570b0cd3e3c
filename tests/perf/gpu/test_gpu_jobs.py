"""The jobs on a CPU with tiny models: all is right there, and a planted fault is found."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perf.gpu.__main__ import main
from perf.gpu.agree import sampling, weights
from perf.gpu.agree.compared import Reference
from perf.gpu.kernels import __main__ as kernels
from perf.gpu.kernels import checks
from perf.gpu.kernels.steps import OPS, Rule, Step, error
from perf.gpu.speed.__main__ import Limit
from perf.gpu.speed.closed_loop import Request, tokens_per_s
from perf.gpu.speed.profile import kind_of
from perf.gpu.told import DEVICE_LOST, Told, cell, show_log

EVERYTHING = re.compile("")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["prove", "race"])
def test_the_whole_plan_is_right_on_a_cpu(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, str(tmp_path), "--device", "cpu", "--budget-s", "900"]
    assert main(words) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert "BAD" not in told
    assert "cut off" not in told


@pytest.mark.parametrize("group", ["rows", "draws", "graphs"])
def test_kernels_agree_with_float64(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main([group, "--device", "cpu"]) == 0
    assert "0 do not" in capsys.readouterr().out


def test_a_kernel_that_is_off_is_bad_and_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = SimpleNamespace(
        add_rms_norm=OPS.add_rms_norm,
        rotate_and_store=OPS.rotate_and_store,
        silu_mul=lambda x: 1.5 * OPS.silu_mul(x),
    )
    monkeypatch.setattr(checks, "OPS", faulty)
    assert kernels.main(["rows", "--device", "cpu"]) == 1
    told = capsys.readouterr().out
    assert "BAD rows silu_mul 100 float32: agrees False, difference 0.50, allowed" in told
    assert "rows: 3 agree, 1 do not" in told


def test_a_kernel_that_reads_what_is_nobodys_is_bad() -> None:
    step = Step((1, 5), (20, 33), checks.SMALL, torch.float32, torch.device("cpu"))
    assert error(step.attend(), step.expected()) < 1e-5
    step.lengths += 1
    assert error(step.attend(), step.expected()) == float("inf"), "a key behind the end"


def test_expected_attention_is_that_of_torch() -> None:
    step = Step((4,), (4,), checks.SMALL, torch.float32, torch.device("cpu"))
    k, v = (stored[step.pages].flatten(0, 1)[:4] for stored in (step.keys, step.values))
    q, k, v = (x.transpose(0, 1)[None].double() for x in (step.q, k, v))
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(step.expected(), want[0].transpose(0, 1))
    assert torch.allclose(step.expected(Rule(window=1))[3], v[0, :, 3].repeat_interleave(2, 0))


def test_a_lost_device_ends_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told("cpu")
    told.device = torch.device("cuda:7")
    with pytest.raises(SystemExit) as ended, told.case("a case"):
        raise RuntimeError("illegal memory access")
    assert ended.value.code == DEVICE_LOST
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("BAD a case: agrees False, why RuntimeError: illegal memory")
    assert lines[-1].startswith("LOST a case: cuda:7 answers no more")


def test_a_slower_runner_and_steps_without_graphs_are_slow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told("cpu")
    told.device = torch.device("cuda:0")
    for runner in ("fused, CUDA graphs", "paged"):
        with told.case("llama", "fused, CUDA graphs") as row:
            row |= {"agrees": True, "run_by": runner}
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("SLOW")] == [
        "SLOW llama: run by paged, not by fused, CUDA graphs"
    ]
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    show_log()
    logging.getLogger("hf_triton").warning("without CUDA graphs run 1 of 9 sizes: Error: why")
    assert capsys.readouterr().out == "SLOW without CUDA graphs run 1 of 9 sizes: Error: why\n"


def test_what_the_cpu_generates_agrees_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told("cpu")
    weights.measure(told, re.compile("float32|int4|adapters"))
    assert (told.num_good, told.num_bad) == (2, 0)
    assert "int4: agrees -, why" in capsys.readouterr().out, "it needs a GPU"


def test_tokens_are_the_same_however_they_are_chosen_and_whenever_they_are_read() -> None:
    told = Told("cpu")
    sampling.measure(told, EVERYTHING)
    assert (told.num_good, told.num_bad) == (len(sampling.WAYS), 0)


def test_another_token_is_told_from_a_near_tie() -> None:
    logits = torch.tensor([[0.0, 9.0, 8.95], [10.0, 5.0, 0.0]])
    reference = Reference((1, 0), logits)
    assert reference.differs([1, 0], 1e-2) == (2, False)
    assert reference.differs([2, 2], 1e-2) == (0, False), "what follows a near tie is another text"
    assert reference.differs([1, 1], 1e-2) == (1, True)
    assert reference.differs([1], 1e-2) == (2, True), "too short"


def test_an_answer_of_another_length_ends_a_loop() -> None:
    async def short(prompt: list[int], max_tokens: int) -> int:
        return max_tokens - 1

    with pytest.raises(RuntimeError, match="1 tokens came, 2 were asked for"):
        asyncio.run(tokens_per_s(short, 2, [Request([1], 2)] * 6))


def test_the_limit_is_what_reading_takes() -> None:
    limit = Limit(weight_bytes=1000, kv_bytes_per_token=10, bytes_per_s=2000.0)
    assert limit.tokens_per_s(2, context=50.0) == 2 * 2000 / (1000 + 2 * 50 * 10)


@pytest.mark.parametrize(
    "kernel, kind",
    [
        ("nvjet_tst_64x8_64x16_4x2_h_bz_splitK_TNT", "matrix products"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("void at::native::index_copy_kernel", "indexing"),
        ("elementwise_kernel<direct_copy_kernel_cuda>", "copies"),
        ("vectorized_elementwise_kernel<4, MulFunctor>", "elementwise"),
        ("reduce_kernel<512, 1, MeanOps>", "reductions"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_told_apart_by_their_names(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_values_are_written_as_people_read_them() -> None:
    values = {"tokens": 1234.5, "limit_share": 0.715, "ms": 0.25, "why": None, "s": 3e-7}
    assert [cell(*pair) for pair in values.items()] == ["1,234", "72%", "0.25", "-", "3e-07"]
