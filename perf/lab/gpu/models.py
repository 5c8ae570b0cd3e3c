"""Models of known shapes with random weights, made on the device itself: nothing is read or sent.

Speed does not depend on what weights say. Only words of the load come out: what else the vocabulary
has gets a logit of 0, never the largest.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from hf_triton.runtime.devices.device import free_bytes
from perf.load.requests import NUM_SPECIAL_TOKENS, VOCABULARY_SIZE

GIB = 2**30
_LLAMA = {
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "bos_token_id": None,
    "eos_token_id": None,  # an answer is as long as asked
    "pad_token_id": 0,
}


def _llama(hidden: int, mlp: int, layers: int, *, tied: bool, **more: int) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers}
    return {**_LLAMA, **sizes, "tie_word_embeddings": tied, **more}


LLAMAS = {
    "llama-1b": _llama(2048, 8192, 16, tied=True),  # Llama 3.2 1B
    "llama-8b": _llama(4096, 14_336, 32, tied=False),  # Llama 3.1 8B
    "tiny": _llama(
        *(64, 128, 2),
        tied=True,
        vocab_size=VOCABULARY_SIZE,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    ),
}
VOCABULARY, CONTEXT = 509, 512
_NARROW = {  # heads of 64, for kernels take no smaller ones
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,  # tied, such models mostly repeat the last token
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def random_model(model_type: str, **changes: Any) -> Any:
    """A decoder on the CPU whose weights are so large that its tokens vary."""
    config = AutoConfig.for_model(model_type, **{**_NARROW, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1, generator=generator)
    return model.eval()


def make_llama(shape: str, device: torch.device, spare_gib: float, **changes: Any) -> Any:
    """The model in bfloat16 on its device. Raises MemoryError where the device has no room for it
    and ``spare_gib`` more.
    """
    config = LlamaConfig(**{**LLAMAS[shape], **changes})
    with torch.device("meta"):
        needed = _num_bytes(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
    needed_gib, free = needed / GIB + spare_gib, free_gib(device)
    if free < needed_gib:
        raise MemoryError(f"{shape} needs {needed_gib:.1f} GiB of {device}, {free:.1f} are free")
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        model.lm_head.weight[:NUM_SPECIAL_TOKENS] = 0
        model.lm_head.weight[VOCABULARY_SIZE:] = 0
    return model


def _num_bytes(model: Any) -> int:
    return sum(int(weight.numel() * weight.itemsize) for weight in model.parameters())


def bytes_per_step(model: Any) -> int:
    """Weights that a decode step reads: all but an embedding table that is no output layer too."""
    is_read = model.config.tie_word_embeddings
    return _num_bytes(model) - (0 if is_read else _num_bytes(model.get_input_embeddings()))


def free_gib(device: torch.device) -> float:
    """Free memory of the device, in GiB, with what torch keeps but does not use given back."""
    gc.collect()  # an engine and its threads refer to each other
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    return free_bytes(device) / GIB
