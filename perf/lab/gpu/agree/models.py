"""Every kind of decoder that an engine treats in its own way, against the CPU's tokens."""

from __future__ import annotations

import re
from typing import Any

from perf.lab.gpu.agree.compared import load, references, run_case
from perf.lab.gpu.models import CONTEXT, random_model
from perf.lab.gpu.told import Told

_WINDOW = {"sliding_window": 24}
_GPT2 = {"n_embd": 256, "n_head": 4, "n_layer": 2, "n_positions": CONTEXT}
_FULL, _LINEAR = "full_attention", "linear_attention"
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
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
    "latent": (
        "deepseek_v3",
        {
            "q_lora_rank": 64,
            "kv_lora_rank": 64,
            "v_head_dim": 64,
            "num_key_value_heads": 4,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 128,
            "first_k_dense_replace": 1,
        },
    ),
    "states": ("mamba", {"state_size": 16}),
    "states with heads": (
        "mamba2",
        {"num_heads": 8, "head_dim": 64, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    ),
    "states and experts": (
        "qwen3_next",
        {
            "head_dim": 64,
            "layer_types": [_LINEAR, _FULL],
            **_EXPERTS,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "shared_expert_intermediate_size": 128,
        },
    ),
    "convolutions": ("lfm2", {"layer_types": ["conv", _FULL], "block_multiple_of": 16}),
    "states and keys in a layer": (
        "falcon_h1",
        {
            "head_dim": 64,
            "mamba_d_ssm": 512,
            "mamba_n_heads": 8,
            "mamba_d_head": 64,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
        },
    ),
}
# What is to run a case on a GPU; the others over pages, with graphs.
_FUSED, _STATES = "fused, CUDA graphs", "paged, states"
RUNNERS = {
    **dict.fromkeys(("llama", "window", "biases", "normed heads"), _FUSED),
    "alibi": "cache",
    "latent": "packed",
    **dict.fromkeys(("states", "states with heads", "states and experts"), _STATES),
    **dict.fromkeys(("convolutions", "states and keys in a layer"), _STATES),
}


def measure(told: Told, pattern: str) -> None:
    """A row for each."""
    for name, (model_type, changes) in MODELS.items():
        if re.search(pattern, name):
            with told.case(f"{model_type}: {name}", RUNNERS.get(name, "paged, CUDA graphs")) as row:
                model = random_model(model_type, **changes)
                expected = references(model, load())
                run_case(row, told, model.to(told.device), load(), expected)
