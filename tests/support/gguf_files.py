"""The demo model as a file of GGUF, as llama.cpp would write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

DEMO = Path(__file__).resolve().parents[2] / "demo" / "model"
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_demo(path: Path, quantization: str = "F32", **changes: int) -> None:
    """The demo model's weights and vocabulary in one file, ``changes`` in its configuration."""
    import gguf

    config = {**json.loads((DEMO / "config.json").read_text()), **changes}
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_name("demo")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_vocabulary(writer, config)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, weights in load_file(DEMO / "model.safetensors").items():
        whole = _permuted(name, weights, config)
        one = gguf.GGMLQuantizationType.F32 if whole.ndim == 1 else kind
        writer.add_tensor(_name(name), gguf.quantize(whole, one), raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, config: dict[str, Any]) -> None:
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    added = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    words = {**tokenizer["model"]["vocab"], **added}
    merges = [
        one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(words, key=words.__getitem__))
    writer.add_token_types(
        [3 if word in added else 1 for word in sorted(words, key=words.__getitem__)]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _name(name: str) -> str:
    """As llama.cpp calls a tensor."""
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    start, _, end = name.rpartition(".")
    if start in whole:
        return f"{whole[start]}.{end}"
    _, _, layer, part = start.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{end}"


def _permuted(name: str, weights: Any, config: dict[str, Any]) -> Any:
    """Rows of queries and keys in llama.cpp's order (convert_hf_to_gguf.py, permute)."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    found = next((config[key] for part, key in heads.items() if part in name), None)
    whole = np.asarray(weights, dtype=np.float32)
    if found is None:
        return whole
    rows = whole.reshape(found, 2, whole.shape[0] // found // 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(whole.shape))
