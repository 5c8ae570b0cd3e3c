"""The jobs on a CPU with tiny models: all is right there, and a planted fault is found."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perf.lab.gpu.__main__ import main
from perf.lab.gpu.agree import sampling, weights
from perf.lab.gpu.agree.compared import Reference
from perf.lab.gpu.engines import Asked
from perf.lab.gpu.jobs import JOBS
from perf.lab.gpu.kernels import checks
from perf.lab.gpu.kernels.steps import OPS, Rule, Step, error
from perf.lab.gpu.speed.loops import limit, tokens_per_s
from perf.lab.gpu.speed.profile import kind_of
from perf.lab.gpu.told import DEVICE_LOST, Told, cell, show_log

KERNELS = {job.name: job.words for job in JOBS["prove"] if job.name.startswith("kernels")}


@pytest.mark.parametrize("command", ["prove", "race"])
def test_the_plan_is_right_on_a_cpu(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    only = "^(?!kernels|weights|sampling)"  # which are tried below
    words = [command, str(tmp_path), "--device", "cpu", "--budget-s", "900", "--only", only]
    assert main(words) == 0, capfd.readouterr().out


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # of numpy's, in the interpreter
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_agree_with_float64(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = Told("cpu")
    checks.measure(told, *KERNELS[name][1:])
    assert (told.num_good > 0, told.num_bad) == (True, 0), capsys.readouterr().out


def test_a_kernel_that_is_off_is_bad_and_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = SimpleNamespace(
        add_rms_norm=OPS.add_rms_norm,
        rotate_and_store=OPS.rotate_and_store,
        silu_mul=lambda x: 1.5 * OPS.silu_mul(x),
    )
    monkeypatch.setattr(checks, "OPS", faulty)
    told = Told("cpu")
    checks.measure(told, "rows", "(silu|add_rms).*float32")
    said = capsys.readouterr().out
    assert "BAD rows silu_mul 1100 float32: agrees False, difference 0.50, allowed" in said
    assert (told.num_good, told.num_bad) == (1, 1)


def test_a_kernel_that_reads_what_is_nobodys_is_bad() -> None:
    step = Step(
        (1, 5), (20, 33), checks.SMALL_LAYERS["groups of 2"], torch.float32, torch.device("cpu")
    )
    assert error(step.attend(), step.expected()) < 1e-5
    step.lengths += 1
    assert error(step.attend(), step.expected()) == float("inf"), "a key behind the end"


def test_expected_attention_is_that_of_torch() -> None:
    step = Step((4,), (4,), checks.SMALL_LAYERS["groups of 2"], torch.float32, torch.device("cpu"))
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
    weights.measure(told, "float32|int4|adapters")
    assert (told.num_good, told.num_bad) == (2, 0)
    assert "int4: agrees -, why" in capsys.readouterr().out, "it needs a GPU"


def test_tokens_are_the_same_however_they_are_chosen_and_whenever_they_are_read() -> None:
    told = Told("cpu")
    sampling.measure(told)
    assert (told.num_good, told.num_bad) == (len(sampling.WAYS), 0)


def test_another_token_is_told_from_a_near_tie() -> None:
    logits = torch.tensor([[0.0, 9.0, 8.95], [10.0, 5.0, 0.0]])
    reference = Reference((1, 0), logits)
    assert reference.differs([1, 0], 1e-2) == (2, False)
    assert reference.differs([2, 2], 1e-2) == (0, False), "what follows a near tie is another text"
    assert reference.differs([1, 1], 1e-2) == (1, True)
    assert reference.differs([1], 1e-2) == (2, True), "too short"


def test_an_answer_of_another_length_ends_a_loop() -> None:
    async def short(asked: Asked) -> int:
        return asked.max_tokens - 1

    with pytest.raises(RuntimeError, match="1 tokens came, 2 were asked for"):
        asyncio.run(tokens_per_s(short, 2, [Asked([1], 2)] * 6))


def test_the_limit_is_what_reading_takes() -> None:
    asked = [Asked([1] * 48, 3)]  # attends to 50 tokens on average
    assert limit(asked, 2, weight_bytes=1000, bytes_per_token=10) == 2 / (1000 + 2 * 50 * 10)


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
