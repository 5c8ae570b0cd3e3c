"""Every way to keep weights that the product has, and adapters, against the CPU's tokens."""

from __future__ import annotations

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.loading import load_config, load_model
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.text_generation.lora.linear import Adapter, Adapters, LowRank
from perf.gpu.agree.compared import TOLERANCE, load, references, run_case
from perf.gpu.models import random_model
from perf.gpu.told import Told

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


def measure(told: Told, wanted: re.Pattern[str]) -> None:
    """A row for each dtype and method, then adapters."""
    device, model, runner = told.device, random_model("llama"), "fused, CUDA graphs"
    for dtype in filter(wanted.search, ("float32", "float16", "bfloat16")):
        with told.case(dtype, runner) as row:
            rounded = copy.deepcopy(model).to(getattr(torch, dtype))
            expected = references(copy.deepcopy(rounded).float(), load())
            run_case(row, rounded.to(device), device, load(), expected)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for method in filter(wanted.search, METHODS):
            with told.case(method, runner) as row:
                _measure_method(row, Path(folder), method, device)
    if wanted.search("adapters"):
        with told.case("adapters", runner) as row:
            _measure_adapters(row, model, device)


def _measure_method(row: dict[str, Any], folder: Path, method: str, device: torch.device) -> None:
    """Beside ``generate`` with the same method on the CPU; where it has none, on the device."""
    try:
        model = _quantized(folder, method, str(device))
    except LoadError as error:
        row["agrees"], row["why"] = None, str(error)
        return
    try:
        reference = _quantized(folder, method, "cpu")
    except LoadError:
        reference, row["why"] = model, "beside the same weights on the GPU: the CPU has no such way"
    expected = references(reference, load())
    run_case(row, model, device, load(), expected, METHODS[method])


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


def _measure_adapters(row: dict[str, Any], model: Any, device: torch.device) -> None:
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
        found = references(changed, asked)
        for at, one in enumerate(asked):
            expected[at] = found[at] if one.adapter == adapter.name else expected[at]
    on_device = copy.deepcopy(model).to(device)
    run_case(row, on_device, device, asked, expected, adapters=Adapters(adapters))


def _adapter(name: str, model: Any, seed: int) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    parts = {}
    for path, module in model.named_modules():
        if path.endswith(("q_proj", "v_proj", "down_proj")):
            up, down = module.weight.shape[0], module.weight.shape[1]
            shapes = ((_RANK, down), (up, _RANK))
            parts[path] = LowRank(*(0.1 * torch.randn(s, generator=generator) for s in shapes))
    return Adapter(name, parts)
