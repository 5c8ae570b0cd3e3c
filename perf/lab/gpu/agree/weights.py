"""Every way to keep weights that the product has, and adapters, against the CPU's tokens."""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.loading import load_config, load_model
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.text_generation.lora.linear import Adapter, Adapters
from hf_triton.text_generation.lora.rows import LowRank
from perf.lab.gpu.agree.compared import TOLERANCE, load, references, run_case
from perf.lab.gpu.models import random_model
from perf.lab.gpu.told import AbsentError, Told

_WIDEST = TOLERANCE[torch.bfloat16]  # what rounds inputs to 8 bits may round to the next value
METHODS = {
    "int8": TOLERANCE[torch.float32],
    "int8_dynamic": _WIDEST,
    "int4": _WIDEST,
    "bitsandbytes_8bit": _WIDEST,
    "bitsandbytes_4bit": TOLERANCE[torch.float32],
}
"""Every ``quantization`` of models.yaml, and by how much logits may differ, of their range."""
_RANK = 8


def measure(told: Told, pattern: str = "") -> None:
    """A row for each dtype and method, then adapters."""
    model, cases = random_model("llama"), dict[str, Callable[[dict[str, Any]], None]]()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for name in ("float32", "float16", "bfloat16"):
            cases[name] = partial(_measure_dtype, told, model, getattr(torch, name))
        for method in METHODS:
            cases[method] = partial(_measure_method, told, Path(folder), method)
        cases["adapters"] = partial(_measure_adapters, told, model)
        for name, case in cases.items():
            if re.search(pattern, name):
                with told.case(name, "fused, CUDA graphs") as row:
                    case(row)


def _measure_dtype(told: Told, model: Any, dtype: torch.dtype, row: dict[str, Any]) -> None:
    rounded = copy.deepcopy(model).to(dtype)
    expected = references(copy.deepcopy(rounded).float(), load())
    run_case(row, told, rounded.to(told.device), load(), expected)


def _measure_method(told: Told, folder: Path, method: str, row: dict[str, Any]) -> None:
    """Beside ``generate`` with the same method on the CPU; where it has none, on the device."""
    try:
        model = reference = _quantized(folder, method, str(told.device))
    except LoadError as error:
        raise AbsentError(str(error)) from error
    try:
        reference = _quantized(folder, method, "cpu")
    except LoadError:
        row["why"] = "beside the same weights on the GPU: the CPU has no such way"
    run_case(row, told, model, load(), references(reference, load()), METHODS[method])


def _quantized(folder: Path, method: str, device: str) -> Any:
    """The model as the product loads it."""
    served = ServedModel(
        folder=folder.parent,
        name="perf-gpu",
        task="text-generation",
        model=str(folder),
        local=True,
        revision=None,
        dtype="bfloat16" if method == "int4" else "float32",
        device_map=None,
        trust_remote_code=False,
        max_batch_size=0,
        options={},
        public_name="perf-gpu",
        decoupled=False,
        quantization={"method": method},
    )
    config = load_config(served, folder)
    return load_model(served, folder, AutoModelForCausalLM, config, Placement(device, {"": device}))


def _measure_adapters(told: Told, model: Any, row: dict[str, Any]) -> None:
    """Sequences of two adapters and of none in one batch, beside models whose weights have an
    adapter's change added.
    """
    adapters = [_adapter(name, model, seed) for seed, name in enumerate(("a", "b"))]
    asked = load((None, "a", "b"))
    expected = references(model, asked)
    for adapter in adapters:
        changed = copy.deepcopy(model)
        with torch.no_grad():
            for name, part in adapter.parts.items():
                changed.get_submodule(name).weight += part.up @ part.down
        for at, one in enumerate(asked):
            if one.adapter == adapter.name:
                (expected[at],) = references(changed, [one])
    here = model.to(told.device)
    run_case(row, told, here, asked, expected, adapters=Adapters(adapters))


def _adapter(name: str, model: Any, seed: int) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    parts = {}
    for path, module in model.named_modules():
        if path.endswith(("q_proj", "v_proj", "down_proj")):
            up, down = module.weight.shape[0], module.weight.shape[1]
            shapes = ((_RANK, down), (up, _RANK))
            parts[path] = LowRank(*(0.1 * torch.randn(s, generator=generator) for s in shapes))
    return Adapter(name, parts)
