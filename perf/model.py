"""Makes the measured model: a Llama of 42 M random weights in float16, and its tokenizer. It has no
end-of-sequence token: an answer is exactly as long as asked.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from perf.load.requests import NUM_SPECIAL_TOKENS, VOCABULARY_SIZE, word

MAX_MODEL_LEN = 512
SPECIAL_TOKENS = ("<pad>", "<unk>")


def llama_config() -> LlamaConfig:
    """8 layers of 512, 8 query heads over 4 key heads: 42 M parameters, 34 M in linears."""
    return LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def write_tokenizer(folder: Path) -> None:
    """Every word of the load is one token, which carries the space before it, as in GPT-2."""
    vocabulary = {text: token_id for token_id, text in enumerate(SPECIAL_TOKENS)}
    vocabulary |= {"Ġ" + word(i): i for i in range(NUM_SPECIAL_TOKENS, VOCABULARY_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL_TOKENS[0],
        "unk_token": SPECIAL_TOKENS[1],
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def make_model(folder: Path, seed: int) -> None:
    disable_progress_bar()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config())
    with torch.no_grad():
        # A zero row's logit is 0, never the largest of 16,384: special tokens are not generated,
        # and the number of words in an answer is its number of tokens.
        model.lm_head.weight[:NUM_SPECIAL_TOKENS] = 0
    torch.nn.Module.half(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
