"""Tiny configurations of transformers' model types: its own defaults with smaller sizes.

A configuration keeps a layer of each kind that the default has. Windows, chunks, and the numbers of
tokens that sparse attention keeps lie between the longest prompt that is tried at load (20 tokens)
and the longest that is asked (60), so that what begins later than the trial shows.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

CONTEXT = 256
HIDDEN, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16
WINDOW = 20
# Sizes, and the fields that get them where the default is not None.
_FIELDS: dict[int, str] = {
    0: "pad_token_id num_kv_shared_layers num_mtp_layers num_nextn_predict_layers",
    1: "bos_token_id topk_group n_shared_experts num_shared_experts moe_num_shared_experts "
    "first_k_dense_replace num_dense_layers moe_layer_start_index max_window_layers",
    2: "decoder_start_token_id num_experts_per_tok moe_topk moe_k top_k_experts n_group "
    "zero_expert_num o_groups linear_num_key_heads mamba_n_groups mamba_ngroups n_groups "
    "type_vocab_size task_type_vocab_size num_layers encoder_layers decoder_layers depth "
    "num_decoder_layers num_encoder_layers n_layer n_layers num_key_value_heads num_kv_heads "
    "swa_num_key_value_heads layers num_filters",
    4: "num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
    "swa_num_attention_heads indexer_n_heads linear_num_value_heads linear_num_heads",
    8: "num_experts n_routed_experts num_local_experts moe_num_experts qk_rope_head_dim "
    "mamba_n_heads mamba_num_heads mamba_dt_rank time_step_rank laurel_rank rotary_dim d_rel "
    "patch_size latent_query_num",
    12: "v_head_dim",
    # Fewer heads of an indexer, and all scores of a token are often 0: a tie.
    16: "head_dim d_kv d_head dim_head kv_channels attention_head_size swa_head_dim kv_lora_rank "
    "o_lora_rank qk_nope_head_dim index_head_dim index_n_heads indexer_head_dim floor_scale "
    "log_scaling_n_floor linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_state "
    "mamba_d_head mamba_chunk_size mamba_head_dim ssm_state_size state_size chunk_size "
    "hidden_size_per_layer_input num_mel_bins head_dim_vision",
    WINDOW: "sliding_window sliding_window_size attention_window_size window_size local_attention "
    "attention_chunk_size",
    24: "q_lora_rank qk_head_dim index_topk",
    32: "expert_ffn_hidden_size moe_intermediate_size shared_expert_intermediate_size "
    "shared_experts_intermediate_size moe_shared_expert_intermediate_size moe_latent_size "
    "shared_intermediate_size router_hidden_size rel_extent image_size projection_dim "
    "projector_hidden_size",
    64: "hidden_size d_model n_embd emb_dim embedding_size input_embedding_size embedding_dim "
    "output_embedding_size word_embed_proj_dim backbone_hidden_size attention_hidden_size "
    "lru_width out_hidden_size embed_dim encoder_hash_byte_group_vocab",
    96: "intermediate_size ffn_dim n_inner d_ff dff dim_ff d_inner encoder_ffn_dim "
    "decoder_ffn_dim ffn_hidden_size intermediate_size_mlp dense_intermediate_size "
    "prefix_dense_intermediate_size feed_forward_size",
    128: "mamba_d_ssm",
    200: "vocab_size vocab_size_per_layer_input decoder_vocab_size src_vocab_size tgt_vocab_size "
    "unpadded_vocab_size",
    CONTEXT: "max_position_embeddings n_positions n_ctx max_seq_len max_source_positions "
    "max_target_positions max_encoder_position_embeddings max_decoder_position_embeddings "
    "context_length seq_length",
}
_SIZES = {name: size for size, names in _FIELDS.items() for name in names.split()}
_SET_ALWAYS = {"num_key_value_heads"}  # where the default is None too
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_FEWEST_LAYERS, _MOST_KINDS = 3, 6

_DROP = object()  # a field that keeps the default
_FULL, _LINEAR, _SLIDING = "full_attention", "linear_attention", "sliding_attention"
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {**_ROPE, "mrope_section": [4, 2, 2]}
_HYBRID: dict[str, Any] = {"num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_d_head": 16}
_QWEN4: dict[str, Any] = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "hc_lowrank": 16,
    "ple_layer_ids": [1],
    "ple_embed_dim": HIDDEN,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 1000,
    "split_ngram_parts": 1,
    "make_ngram_vocab_size_divisible_by": 8,
    "eos_token_id": 2,
}
_DOTS3: dict[str, Any] = {
    "head_dim": 24,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 24,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 12,
    "rope_parameters": _DROP,
    "per_layer_config": _DROP,
}
_GRANITE_SPEECH: dict[str, Any] = {
    "encoder_config": {"hidden_dim": HIDDEN},
    "projector_config": {"encoder_hidden_size": HIDDEN},
    "text_config": {"embedding_multiplier": 12.0},
}
_COMPASS = {"rope_parameters": {_FULL: _MROPE, _SLIDING: _MROPE}}
_QWEN_VL: dict[str, Any] = {
    "text_config": {"rope_parameters": _MROPE},
    "vision_config": {
        "hidden_size": HIDDEN,
        "embed_dim": HIDDEN,
        "out_hidden_size": HIDDEN,
        "depth": 2,
        "num_heads": 4,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    },
}
_GEMMA4_VISION: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "patch_size": 8,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}
# Settings beside sizes, by model type.
_OTHERS: dict[str, dict[str, Any]] = {
    "bamba": {**_HYBRID, "attn_layer_indices": [1]},
    "blt": {"global_config": {"encoder_cross_output_size": None}},
    "cohere_compass": {"text_config": _COMPASS},
    "cohere_compass_text": _COMPASS,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    "doge": {"keep_window_size": 16},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {"adapter_in_dim": HIDDEN, "adapter_out_dim": HIDDEN},
        "audio_config": {"adapter_input_size": HIDDEN, "adapter_out_dim": HIDDEN},
    },
    "dots3_note_text": _DOTS3,
    "encoder-decoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}},
    "gemma3n_text": {
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "num_hidden_layers": 4,
        "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
        "num_kv_shared_layers": 2,
        "intermediate_size": [96, 96, 96, 96],
    },
    "glm4v_moe": {
        "text_config": {
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
        }
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {
        **_HYBRID,
        "layer_types": [_LINEAR, _FULL, _LINEAR],
        "position_embedding_type": "rope",
    },
    # With more cycles, random weights make another text of each rounding.
    "hrm_text": {"H_cycles": 1, "L_cycles": 2, "L_bp_cycles": [1], "num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "hunyuan_v1_moe": {"head_dim": HEAD},
    "hunyuan_vl": {"text_config": {"rope_parameters": _MROPE, "head_dim": HEAD}},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "led": {"attention_window": 16},
    "lfm2": {
        "layer_types": ["conv", _FULL, "conv"],
        "num_hidden_layers": 3,
        "block_multiple_of": 16,
    },
    "lfm2_moe": {"layer_types": ["conv", _FULL, "conv"], "num_hidden_layers": 3},
    "longcat_flash": {
        "num_key_value_heads": HEADS,
        "head_dim": 8,
        "num_layers": 2,
        "num_hidden_layers": _DROP,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "minimax_m3_vl_text": {
        "layer_types": [_FULL, "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_hidden_layers": 3,
        "index_n_heads": KV_HEADS,
        "index_block_size": 8,
        "index_topk_blocks": 2,
    },
    "ministral": {"head_dim": HEAD},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "axial_pos_shape": [16, 16],
        "axial_pos_embds_dim": [32, 32],
        "lsh_attn_chunk_length": 16,
        "local_attn_chunk_length": 16,
        "num_buckets": 4,
        "attn_layers": ["local", "lsh"],
        "num_hidden_layers": 2,
    },
    "glmasr": {"audio_config": {"intermediate_size": 4 * HIDDEN}},
    "granite_speech": _GRANITE_SPEECH,
    "granite_speech_plus": _GRANITE_SPEECH,
    "qwen3_asr": {
        "eos_token_id": _DROP,
        "audio_config": {"output_dim": HIDDEN, "downsample_hidden_size": 32},
    },
    "voxtral": {"audio_token_id": 199, "audio_config": {"intermediate_size": 4 * HIDDEN}},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "autocast_kernel_dtype": "float32"},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
        "layers_block_type": [_LINEAR, "hybrid", _LINEAR],
        "num_hidden_layers": 3,
    },
    "zaya": {
        "num_experts_per_tok": 1,
        "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
    },
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), _QWEN_VL),
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    **{name: {"mm_tokens_per_image": 4} for name in ("gemma3", "shieldgemma2", "t5gemma2")},
    "gemma4": {"vision_config": _GEMMA4_VISION},
    "gemma4_unified": {
        "vision_config": {
            **_GEMMA4_VISION,
            "mm_embed_dim": HIDDEN,
            "mm_posemb_size": 64,
            "output_proj_dims": HIDDEN,
        }
    },
    **{name: {"vision_config": {"image_size": [32, 32]}} for name in ("internvl", "qianfan_ocr")},
    "kimi_k25": {"projection_hidden_size": HIDDEN},
    "llama4": {
        "vision_config": {
            "vision_output_dim": HIDDEN,
            "intermediate_size": 4 * HIDDEN,
            "projector_input_dim": HIDDEN,
            "projector_output_dim": HIDDEN,
        }
    },
    **{
        name: {"image_grid_pinpoints": [[32, 32], [32, 64]]}
        for name in ("llava_next", "llava_next_video", "llava_onevision")
    },
    **{name: {"image_token_id": 199} for name in ("minicpm_ocr", "minicpmv4_6")},
    "vipllava": {"vision_feature_layer": [-1, -2]},
    **{
        name: {
            "text_config": {"rope_parameters": _MROPE},
            "vision_start_token_id": 190,
            "audio_start_token_id": 189,
        }
        for name in ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
    },
    **{name: {"out_hidden_size": 4 * HIDDEN} for name in ("muse_glimmer", "muse_spark")},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [3, 3, 2]}}},
    "inkling2": {"vision_config": {"text_hidden_size": HIDDEN}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "nemotron_h_omni": {
        "vision_config": {"video_temporal_patch_size": 2},
        "vit_hidden_size": HIDDEN,
        "image_token_id": 199,
    },
    "deepseek_vl_hybrid": {
        "high_res_vision_config": {"global_attn_indexes": [0, 1], "output_channels": 16}
    },
    "granite4_vision": {
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "1/2",
        "image_grid_pinpoints": [[32, 32], [32, 64]],
    },
    "chameleon": {
        "vocabulary_map": {
            "<image>": 199,
            **{f"IMGIMG{'ABCDEFGHIJ'[code]}Z": 180 + code for code in range(10)},
        },
        "vq_config": {
            "embed_dim": 16,
            "num_embeddings": 10,
            "latent_channels": 16,
            "resolution": 32,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
        },
    },
    "step3p7": {"text_config": {"sliding_window": WINDOW}},
    **{
        name: {"text_config": {"rope_parameters": _MROPE}}
        for name in ("glm4v", "glm46v", "glmga", "glm_ocr", "paddleocr_vl")
    },
    "minicpmv4_7": {"text_config": {"rope_parameters": _MROPE}, "image_token_id": 199},
}
# More of what one type can be: "type:variant" -> what differs.
VARIANTS: dict[str, dict[str, Any]] = {
    "falcon:alibi": {"alibi": True},
    "falcon:new": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gpt_neo:global": {"attention_types": [[["global"], 2]]},
    "llama:dynamic": {
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0},
    },
    "mistral:all-full": {"sliding_window": None},
    "phi3:longrope": {
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
        },
    },
    "qwen2:sliding": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "num_hidden_layers": 2,
        "layer_types": [_FULL, _SLIDING],
    },
}


def tiny_config(name: str) -> Any:
    """The configuration of a model type, or of a variant of one."""
    from transformers import CONFIG_MAPPING

    model_type = name.split(":")[0]
    config_class = CONFIG_MAPPING[model_type]
    try:
        fields = _shrunk(config_class())
    except Exception:  # noqa: BLE001 - a default that is not valid: what _OTHERS says has to do
        fields = {}
    _merge(fields, _OTHERS.get(model_type, {}))
    _merge(fields, VARIANTS.get(name, {}))
    return config_class(**fields)


def _shrunk(config: Any) -> dict[str, Any]:
    """The fields of a small configuration like ``config``."""
    names = [field.name for field in dataclasses.fields(type(config))]
    parts = getattr(type(config), "sub_configs", {})
    fields: dict[str, Any] = {}
    for name in parts:
        part = _value(config, name)
        if part is not None:
            fields[name] = {**_shrunk(part), "model_type": part.model_type}
    for name in names:
        value = _value(config, name)
        is_size = name in _SIZES and name not in parts and not isinstance(value, list | tuple)
        if is_size and (value is not None or name in _SET_ALWAYS):
            fields[name] = _SIZES[name]
    if "kv_lora_rank" in names and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = HEADS  # latent attention has as many keys as queries
    if "num_hidden_layers" in names:
        fields.update(_layers(config, names))
    rope = _value(config, "rope_parameters")
    if isinstance(rope, dict):
        head = fields.get("qk_rope_head_dim") or fields.get("head_dim") or HIDDEN // HEADS
        fields["rope_parameters"] = _rope(copy.deepcopy(rope), head)
    return {**fields, **_tokens(config, names, fields)}


def _tokens(config: Any, names: list[str], fields: dict[str, Any]) -> dict[str, Any]:
    """No token ends a text; the special ones are the last of the vocabulary."""
    set_to: dict[str, Any] = {}
    number = _SIZES["vocab_size"] - 1
    for name in names:
        if name in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"):
            set_to[name] = None
        elif (
            name.endswith(("_token_id", "_token_index"))
            and name not in fields
            and isinstance(_value(config, name), int)
        ):
            set_to[name], number = number, number - 1
    if "tie_word_embeddings" in names:
        set_to["tie_word_embeddings"] = False
    if "is_decoder" in names and "is_encoder_decoder" not in fields:
        set_to["is_decoder"] = True
    return set_to


def _layers(config: Any, names: list[str]) -> dict[str, Any]:
    """The number of layers, and the type of each if the default lists them."""
    counts = (_value(config, name) for name in _LAYER_COUNTS)
    count = next((value for value in counts if isinstance(value, int)), 0)
    values = {name: _value(config, name) for name in names}
    lists = {
        name: list(value)
        for name, value in values.items()
        if count and isinstance(value, list | tuple) and len(value) == count
    }
    if not lists:
        return {"num_hidden_layers": 2}
    firsts: dict[str, int] = {}
    for index in range(count):
        firsts.setdefault(repr([value[index] for value in lists.values()]), index)
    chosen = sorted(firsts.values())[:_MOST_KINDS]
    rest = [index for index in range(count) if index not in chosen]
    chosen = sorted(chosen + rest[: max(0, _FEWEST_LAYERS - len(chosen))])
    fields: dict[str, Any] = {name: [value[i] for i in chosen] for name, value in lists.items()}
    return {"num_hidden_layers": len(chosen), **fields}


def _rope(value: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Rotary parameters for a smaller head and an earlier original context."""
    new = {
        key: _rope(item, head_dim) if isinstance(item, dict) else item
        for key, item in value.items()
    }
    is_long = value.get("rope_type") == "longrope"
    if isinstance(value.get("original_max_position_embeddings"), int):
        new["original_max_position_embeddings"] = 128 if is_long else 32
    if "mrope_section" in value:
        half = int(head_dim * value.get("partial_rotary_factor", 1.0)) // 2
        new["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    if is_long:
        new["short_factor"], new["long_factor"] = [1.0] * (head_dim // 2), [2.0] * (head_dim // 2)
    return new


def _value(config: Any, name: str) -> Any:
    """A field's value, of a configuration whose layers differ in it too."""
    try:
        return getattr(config, name, None)
    except Exception:  # noqa: BLE001 - configurations compute fields and raise what they like
        getter = getattr(config, "_getattr_without_heterogeneous_validation", None)
        return getter(name) if getter else None


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if value is _DROP:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict) and "rope" not in key:
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)
