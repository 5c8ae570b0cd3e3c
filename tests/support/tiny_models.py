"""Tiny models with random weights, one for each architecture, and greedy references for them.

The weights are large, so that greedy tokens vary and have no ties; a reference refuses near ties,
so that no test depends on the last bit of a sum.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from hf_triton.text_generation.sequence.source import Source
from tests.support.architectures.configurations import tiny_config

VOCAB_SIZE = 97
CONTEXT = 128
WINDOW = 8
_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,  # tied, such models mostly repeat the last token
}
_GPT2_SHAPE = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": CONTEXT}
_GROUPED = {"num_key_value_heads": 2}
_SLIDING = {"sliding_window": WINDOW}
# name -> (transformers' model type, what differs from _SHAPE)
PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GROUPED),
    "mistral": ("mistral", {**_GROUPED, **_SLIDING}),
    "qwen2": ("qwen2", _GROUPED),
    "qwen2-sliding": (
        "qwen2",
        {**_GROUPED, **_SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 8}),
    "gemma2": (
        "gemma2",
        {
            **_GROUPED,
            **_SLIDING,
            "head_dim": 8,
            "attn_logit_softcapping": 1.0,
            "attn_implementation": "eager",  # before 5.21, sdpa leaves the soft cap out
        },
    ),
    "gemma3": ("gemma3_text", {**_GROUPED, **_SLIDING, "head_dim": 8, "num_hidden_layers": 6}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {**_GROUPED, "pad_token_id": 0}),
    "gpt2": ("gpt2", _GPT2_SHAPE),
    "gpt-neox": ("gpt_neox", {}),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "persimmon": ("persimmon", {}),
    "falcon-rotary": ("falcon", {"alibi": False}),
    "falcon-new": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    ),
    "gptj": ("gptj", {**_GPT2_SHAPE, "rotary_dim": 4}),
    "stablelm": ("stablelm", _GROUPED),
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 4}),
}
CACHED: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon-alibi": ("falcon", {"alibi": True}),
    "bloom": ("bloom", {"n_head": 4, "n_layer": 2}),
    "gpt_neox_japanese": ("gpt_neox_japanese", {}),  # views rows and heads of its cache as one
    "deepseek": (  # keeps latents
        "deepseek_v3",
        {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
    ),
}
_FULL, _LINEAR = "full_attention", "linear_attention"
STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"state_size": 8}),
    "mamba2": (
        "mamba2",
        {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "qwen3-next": (
        "qwen3_next",
        {
            **_GROUPED,
            "head_dim": 8,
            "layer_types": [_LINEAR, _FULL],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "lfm2": ("lfm2", {**_GROUPED, "layer_types": ["conv", _FULL], "block_multiple_of": 16}),
    "falcon-h1": (  # states and keys in one layer
        "falcon_h1",
        {
            **_GROUPED,
            "head_dim": 8,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    "jamba": (
        "jamba",
        {
            **_GROUPED,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
    ),
}
# Its tokens see each other within chunks, in every second layer; the others scale by position.
LLAMA4 = {
    **_SHAPE,
    **_GROUPED,
    "head_dim": 8,
    "intermediate_size_mlp": 64,
    "num_local_experts": 2,
    "attention_chunk_size": 24,
    "no_rope_layers": [1, 0],
    "floor_scale": 8,
}
GPT_NEO = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_position_embeddings": CONTEXT,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 24,  # longer than what is tried at load
}
# Attends to the best blocks of 128 tokens, once there are more than two.
MINIMAX_M3 = {
    **_SHAPE,
    **_GROUPED,
    "head_dim": 8,
    "layer_types": ["full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 128,
    "index_topk_blocks": 2,
}
# Its rotary embedding changes where the longest sequence of a batch passes 64 tokens.
PHI3_LONG = {
    **_SHAPE,
    **_GROUPED,
    "pad_token_id": 0,
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    },
}
T5_SHAPE = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 = {**T5_SHAPE, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART_SHAPE = {
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}
# The last token of every output is forced, as in BART's own checkpoints.
BART = {**BART_SHAPE, "bos_token_id": 3, "forced_eos_token_id": 1}


@dataclass(frozen=True)
class Asked:
    """A prompt, what an encoder reads beside it, how many tokens are asked for, and an adapter."""

    prompt: list[int]
    max_tokens: int
    source: Source | None = None
    lora_name: str | None = None


def tiny_values(name: str) -> tuple[str, dict[str, Any]]:
    """The model type and configuration of an entry of PACKED, CACHED or STATES."""
    model_type, differences = {**PACKED, **CACHED, **STATES}[name]
    return model_type, {**_SHAPE, **differences}


def tiny_model(name: str, **changes: Any) -> Any:
    """The model of an entry, float32, in evaluation mode."""
    model_type, values = tiny_values(name)
    return random_model(model_type, **{**values, **changes})


def random_model(model_type: str, **config: Any) -> Any:
    """A decoder with normal weights of a standard deviation of 0.3, without special tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    special = {"bos_token_id": None, "eos_token_id": None}
    config_of = AutoConfig.for_model(model_type, **{**special, **config})
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some biases are drawn
        model = AutoModelForCausalLM.from_config(config_of)
    return with_large_weights(model)


def random_encoder_decoder(model_type: str, **config: Any) -> Any:
    """An encoder-decoder of the same kind, with pad 0, end 1 and start 2."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    return with_large_weights(
        AutoModelForSeq2SeqLM.from_config(
            AutoConfig.for_model(model_type, **{"vocab_size": VOCAB_SIZE, **special, **config})
        )
    )


def shrunk_model(model_type: str) -> Any:
    """A decoder of the tiny configuration of a model type."""
    from transformers import AutoModelForCausalLM

    return with_large_weights(AutoModelForCausalLM.from_config(tiny_config(model_type)))


def with_large_weights(model: Any) -> Any:
    """The model with normal weights of a standard deviation of 0.3, in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def mixed_load(count: int, seed: int = 3) -> list[Asked]:
    """Prompts of 1 to 40 tokens (longer than WINDOW, and shorter), 1 to 14 tokens asked."""
    rnd = random.Random(seed)
    lengths = [(3, 9, 40, 1, 14, 25)[index % 6] for index in range(count)]
    return [
        Asked([rnd.randrange(1, VOCAB_SIZE) for _ in range(length)], rnd.choice([1, 5, 9, 14]))
        for length in lengths
    ]


@torch.inference_mode()
def reference(model: Any, asked: list[Asked], min_gap: float = 1e-4) -> list[tuple[int, ...]]:
    """``model.generate``'s greedy tokens of each prompt; an assertion fails on a near tie."""
    config = model.generation_config
    # A last token may be forced by the number of tokens: then only equal ones are together.
    is_forced = config.forced_eos_token_id is not None
    ends = torch.tensor(_listed(config.eos_token_id))
    alike = defaultdict[tuple[int, int], list[int]](list)
    for index, one in enumerate(asked):
        alike[len(one.prompt), one.max_tokens if is_forced else 0].append(index)
    tokens: list[tuple[int, ...]] = [()] * len(asked)
    for indexes in alike.values():
        prompts = torch.tensor([asked[index].prompt for index in indexes])
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=max(asked[index].max_tokens for index in indexes),
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        skipped = 0 if model.config.is_encoder_decoder else prompts.shape[1]
        best = torch.stack(output.logits, dim=1).topk(2, dim=-1).values
        gaps = best[..., 0] - best[..., 1]
        for index, row, gap in zip(indexes, output.sequences[:, skipped:], gaps, strict=True):
            num_first = len(row) - len(gap)  # of a decoder, not generated
            num_tokens = asked[index].max_tokens
            ended = torch.isin(row[num_first:], ends).nonzero()
            if len(ended):
                num_tokens = min(num_tokens, int(ended[0]) + 1)
            assert float(gap[:num_tokens].min()) > min_gap, "a near tie: change the seed"
            tokens[index] = tuple(row[: num_first + num_tokens].tolist())
    return tokens


@torch.inference_mode()
def own_tokens(model: Any, prompt: list[int], max_tokens: int, **asked: Any) -> tuple[int, ...]:
    """``model.generate``'s tokens of one prompt, without it or a decoder's start."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=max_tokens,
        **{"do_sample": False, "pad_token_id": 0, **asked},
    )
    skipped = 1 if model.config.is_encoder_decoder else len(prompt)
    return tuple(output[0, skipped:].tolist())


def _listed(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
