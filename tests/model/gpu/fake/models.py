"""Models whose weights lie on the GPU that is not there: of the right shapes, without memory."""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime.devices.device import choose_attention_kernels

# Weights of well-known models: what a step of them takes.
LLAMA_2_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LLAMA_3_8B = {
    **LLAMA_2_7B,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def causal_on_gpu(model_type: str, dtype: torch.dtype = torch.bfloat16, **config: Any) -> Any:
    """A decoder of these sizes, without special tokens, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {"bos_token_id": None, "eos_token_id": None, **config}
    made = AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made, dtype=dtype)
    return on_gpu(model.eval())


def on_gpu(model: Any) -> Any:
    """As ``from_pretrained`` with ``device_map`` leaves a model that was made on meta tensors: all
    weights and buffers on the GPU, what is tied still tied.
    """
    choose_attention_kernels("cuda:0")  # as hf_triton.runtime.weights.loading does
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda:0"
            )
            is_weight = isinstance(tensor, torch.nn.Parameter)
            moved[id(tensor)] = torch.nn.Parameter(made, requires_grad=False) if is_weight else made
        return moved[id(tensor)]

    for module in model.modules():
        for store in (module._parameters, module._buffers):
            store.update({name: move(t) for name, t in store.items() if t is not None})
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                setattr(module, name, move(value))
    return model
