"""An adapter of the demo model, written as PEFT saves one: random, so that it changes the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.support.triton import DEMO_MODEL

_RANK = 2


def write_adapter(folder: Path, seed: int = 0, **config: Any) -> Path:
    """Rank 2 on every layer's output projection; ``config`` changes adapter_config.json."""
    shape = json.loads((Path(DEMO_MODEL) / "config.json").read_text())
    size = shape["hidden_size"]
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = random.normal(size=(_RANK, size)).astype(np.float32)
        weights[f"{name}.lora_B.weight"] = random.normal(size=(size, _RANK)).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**values, **config}))
    return folder
