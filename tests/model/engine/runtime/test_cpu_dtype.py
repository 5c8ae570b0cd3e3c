"""A CPU's dtype if models.yaml has none: as saved, or float32 if the processor is slow in that. A
dtype that is written is followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from hf_triton.runtime.devices import device as devices
from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.weights.weight_loading import load_config, load_model
from tests.support.served_models import served_model
from tests.support.tiny_models import T5, random_encoder_decoder, tiny_model

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that gives this machine another processor, and so much free memory."""

    def become(*, multiplies: bool, free_bytes: int = 2**40) -> None:
        monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: multiplies)
        monkeypatch.setattr(devices, "free_cpu_bytes", lambda: free_bytes)

    return become


@pytest.mark.parametrize(
    "saved, multiplies, free_bytes, chosen, why",
    [
        (BFLOAT16, False, 21, FLOAT32, "this processor has no instructions"),
        (BFLOAT16, False, 19, BFLOAT16, "float32 would be faster, but takes 0.0 GiB while"),
        (BFLOAT16, True, 21, BFLOAT16, ""),
        (FLOAT16, True, 21, FLOAT32, "CPUs are slow in float16"),
        (FLOAT32, False, 21, FLOAT32, ""),
        (torch.float64, False, 21, torch.float64, ""),
    ],
)
def test_auto_is_the_fastest_that_memory_allows(
    processor: Callable[..., None],
    saved: torch.dtype,
    multiplies: bool,
    free_bytes: int,
    chosen: torch.dtype,
    why: str,
) -> None:
    processor(multiplies=multiplies, free_bytes=free_bytes)
    found, told = devices.fastest_dtype(saved, num_bytes=10)
    assert found == chosen
    assert why in told
    assert bool(why) == bool(told)


def saved(folder: Path, model: Any, dtype: torch.dtype, *, configured: bool = True) -> Path:
    model.to(dtype).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("dtype") == str(dtype).removeprefix("torch.")
    if not configured:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path, auto_class: Any, device: str = "cpu", **keys: Any) -> Any:
    served = served_model(folder, model=".", local=True, **keys)
    config = load_config(served, folder)
    return load_model(served, folder, auto_class, config, Placement(device, {"": "cpu"}))


_MODELS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "decoder": (AutoModelForCausalLM, lambda: tiny_model("llama")),
    "encoder": (AutoModel, lambda: tiny_model("llama").model),
    "encoder-decoder": (AutoModelForSeq2SeqLM, lambda: random_encoder_decoder("t5", **T5)),
}


@pytest.mark.parametrize("configured", [True, False], ids=["", "config.json names no dtype"])
@pytest.mark.parametrize("kind", _MODELS)
def test_a_model_of_bfloat16_is_computed_in_float32_from_16_bits_where_that_is_faster(
    processor: Callable[..., None],
    tmp_path: Path,
    log_lines: list[str],
    kind: str,
    configured: bool,
) -> None:
    auto_class, make = _MODELS[kind]
    folder = saved(tmp_path, make(), BFLOAT16, configured=configured)
    processor(multiplies=False)
    model = load(folder, auto_class)
    assert {weight.dtype for weight in model.parameters()} == {FLOAT32}
    why = "this processor has no instructions to multiply bfloat16"
    assert log_lines == [
        f"I tiny: computes in float32, and not in bfloat16, as its weights are: {why}"
    ]
    assert prepack(model) == _num_linears(make())


def _num_linears(model: torch.nn.Module) -> int:
    return sum(type(module) is torch.nn.Linear for module in model.modules())


@pytest.mark.parametrize(
    "dtype, multiplies, told",
    [
        ("bfloat16", False, "this processor has no instructions to multiply bfloat16"),
        ("float16", True, "CPUs are slow in float16"),
        ("bfloat16", True, ""),
        ("float32", True, ""),
        ("float32", False, ""),
    ],
)
def test_a_dtype_that_is_written_is_followed_with_a_line_where_it_costs_much(
    processor: Callable[..., None],
    tmp_path: Path,
    log_lines: list[str],
    dtype: str,
    multiplies: bool,
    told: str,
) -> None:
    folder = saved(tmp_path, tiny_model("llama"), BFLOAT16)
    processor(multiplies=multiplies)
    assert load(folder, AutoModelForCausalLM, dtype=dtype).dtype == getattr(torch, dtype)
    line = f"W tiny: dtype: {dtype} is slow on this processor: {told}"
    assert log_lines == ([line] if told else [])


def test_a_gpu_computes_in_what_was_saved(
    processor: Callable[..., None], tmp_path: Path, log_lines: list[str]
) -> None:
    folder = saved(tmp_path, tiny_model("llama"), BFLOAT16)
    processor(multiplies=False)
    assert load(folder, AutoModelForCausalLM, device="cuda:0").dtype == BFLOAT16
    assert log_lines == []
