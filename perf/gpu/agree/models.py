"""Every kind of decoder that an engine treats in its own way, against the CPU's tokens."""

from __future__ import annotations

import copy
from typing import Any

import torch

from perf.gpu.agree.compared import case, load, references, run_case
from perf.gpu.results import Context
from perf.gpu.sections.shapes import CONTEXT, random_model

_WINDOW = {"sliding_window": 24}
_GPT2 = {"n_embd": 256, "n_head": 4, "n_layer": 2, "n_positions": CONTEXT}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "window": ("mistral", _WINDOW),
    "biases": ("qwen2", {}),
    "normed heads": ("qwen3", {"head_dim": 64}),
    "soft cap": (
        "gemma2",
        {**_WINDOW, "head_dim": 64, "attn_logit_softcapping": 5.0, "attn_implementation": "eager"},
    ),
    "two rotary bases": ("gemma3_text", {**_WINDOW, "head_dim": 64, "num_hidden_layers": 6}),
    "joined products": ("phi3", {}),
    "learned positions": ("gpt2", _GPT2),
    "parallel layers": ("gpt_neox", {}),
    "experts": ("mixtral", {"num_local_experts": 4}),
    "one key head": ("falcon", {"alibi": False, "num_kv_heads": 1}),
    "alibi": ("bloom", {"n_head": 4, "n_layer": 2}),
}


def measure(context: Context) -> None:
    """A row for each."""
    device = torch.device(context.device)
    for name in MODELS:
        model_type, changes = MODELS[name]
        with case(context, case=f"{model_type}: {name}") as row:
            model = random_model(model_type, **changes)
            expected = references(model, load())
            run_case(row, copy.deepcopy(model).to(device), device, load(), expected)
