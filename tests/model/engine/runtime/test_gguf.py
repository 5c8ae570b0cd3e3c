"""Models of one .gguf file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.own_environment import lacks
from hf_triton.text_generation.generation_loading import load_parts
from tests.support.served_models import served_model
from tests.support.triton import DEMO_MODEL

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

    config = {**json.loads((DEMO_MODEL / "config.json").read_text()), **changes}
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
    for name, weights in load_file(DEMO_MODEL / "model.safetensors").items():
        whole = _permuted(name, weights, config)
        one = gguf.GGMLQuantizationType.F32 if whole.ndim == 1 else kind
        writer.add_tensor(_name(name), gguf.quantize(whole, one), raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, config: dict[str, Any]) -> None:
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
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


def parts_of(path: Path, **keys: Any) -> Any:
    name = path.name
    served = served_model(path.parent / "m", model=str(path), local=True, gguf_file=name, **keys)
    return load_parts(served, Placement("cpu", {"": "cpu"}))


@pytest.mark.parametrize(
    "quantization, dtype, difference", [("F32", "auto", 1e-4), ("Q8_0", "bfloat16", 1.0)]
)
def test_a_file_computes_what_the_model_does_that_it_was_made_of(
    tmp_path: Path, quantization: str, dtype: str, difference: float
) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "demo.gguf"
    write_demo(path, quantization)
    (tmp_path / "tokenizer.json").write_text("of another model")  # nothing beside it is read
    parts = parts_of(path, dtype=dtype)
    text = "Once upon a time"
    ids = parts.tokenizer(text, return_tensors="pt").input_ids
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    assert ids.tolist() == tokenizer(text, return_tensors="pt").input_ids.tolist()
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    with torch.no_grad():
        expected, got = model(ids).logits, parts.model(ids).logits
    assert parts.model.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    assert (got.float() - expected).abs().max() < difference
    assert parts.model.hf_quantizer is None


@pytest.mark.threat("oversized-configurations")
def test_a_head_that_describes_far_more_layers_than_the_file_has_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    write_demo(tmp_path / "demo.gguf", num_hidden_layers=100_000)
    with pytest.raises(LoadError, match=r"demo\.gguf: the model that it describes is many times"):
        parts_of(tmp_path / "demo.gguf")


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModuleNotFoundError) as raised:
        parts_of(tmp_path / "a.gguf")
    assert lacks(tmp_path, raised.value).endswith(": pip install 'gguf>=0.17,<0.20'")


@pytest.mark.parametrize(
    "begin, share, told",
    [(b"PKPK", 1.0, "not a GGUF file"), (b"GGUF", 0.5, "cannot reshape")],
)
def test_a_file_that_can_not_be_read_is_one_line(
    tmp_path: Path, begin: bytes, share: float, told: str
) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "a.gguf"
    write_demo(path)
    content = path.read_bytes()
    path.write_bytes(begin + content[4 : int(share * len(content))])
    with pytest.raises(LoadError, match=rf"^{path}: ValueError: .*{told}"):
        parts_of(path)
    path.unlink()
    with pytest.raises(LoadError, match="No such file"):
        parts_of(path)
