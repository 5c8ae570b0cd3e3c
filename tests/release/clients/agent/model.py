"""A tiny model with a long context, whose answers hooks.py beside it chooses."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

from tests.support.triton import DEMO_MODEL

HOOKS = Path(__file__).with_name("hooks.py")
NUM_POSITIONS = 2**17
_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def agent_model(folder: Path) -> Path:
    """The demo model's tokenizer and template, and next to no weights: agents' prompts are long."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=transformers.AutoConfig.from_pretrained(DEMO_MODEL).vocab_size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        max_position_embeddings=NUM_POSITIONS,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in _COPIED:
        shutil.copy(DEMO_MODEL / name, folder)
    return folder
