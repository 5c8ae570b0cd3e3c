"""A tiny Whisper with random weights and windows of two seconds, saved as a user's would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.tiny_models import with_large_weights

RATE = 16_000
WINDOW_S = 2
LANGUAGES = ("en", "de", "fr")
_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
_IDS = {token: 256 + number for number, token in enumerate(_SPECIAL)}
END = _IDS["<|endoftext|>"]
TIMESTAMP_BEGIN = 256 + len(_SPECIAL)
_NUM_TIMES = WINDOW_S * 50 + 1
VOCAB_SIZE = TIMESTAMP_BEGIN + _NUM_TIMES
MAX_LENGTH = 64


def tiny_whisper(folder: Path, *, multilingual: bool = True) -> Path:
    """Saves the model, its tokenizer of bytes, and its processor."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCAB_SIZE,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=WINDOW_S * 50,
        max_target_positions=MAX_LENGTH,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=_IDS["<|startoftranscript|>"],
    )
    model = with_large_weights(WhisperForConditionalGeneration(config))
    with torch.no_grad():
        for layer in model.model.decoder.layers:  # what is heard counts
            layer.encoder_attn.q_proj.weight *= 4
            layer.encoder_attn.out_proj.weight *= 4
    for name, value in _generation(multilingual=multilingual).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    _processor(folder).save_pretrained(folder)
    return folder


def speech(seconds: float, seed: int = 0) -> Any:
    """(num_samples,) float32: tones that change, and noise."""
    draw = np.random.default_rng(seed)
    times = np.arange(int(seconds * RATE)) / RATE
    pitch = 200 + 100 * np.sin(2 * np.pi * times * draw.uniform(0.5, 2))
    tone = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * draw.uniform(0.1, 0.5)
    return (tone + draw.normal(0, 0.02, len(times))).astype(np.float32)


def _generation(*, multilingual: bool) -> dict[str, Any]:
    own: dict[str, Any] = {
        "_from_model_config": False,
        "max_length": MAX_LENGTH,
        "no_timestamps_token_id": _IDS["<|notimestamps|>"],
        "max_initial_timestamp_index": 25,
        "prev_sot_token_id": _IDS["<|startofprev|>"],
        "suppress_tokens": [7, 8, 9, _IDS["<|startoflm|>"], _IDS["<|nospeech|>"]],
        "begin_suppress_tokens": [32, END],
        "is_multilingual": multilingual,
    }
    if multilingual:
        own["lang_to_id"] = {f"<|{code}|>": _IDS[f"<|{code}|>"] for code in LANGUAGES}
        own["task_to_id"] = {name: _IDS[f"<|{name}|>"] for name in ("transcribe", "translate")}
        own["forced_decoder_ids"] = [[1, None], [2, _IDS["<|transcribe|>"]]]
    else:
        own["forced_decoder_ids"] = [[1, _IDS["<|notimestamps|>"]]]
    return own


def _processor(folder: Path) -> Any:
    from tokenizers import AddedToken
    from transformers import WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    vocabulary = {character: n for n, character in enumerate(sorted(vocabulary))}
    tokenizer = WhisperTokenizer(vocabulary, [])
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL[1:])})
    times = (f"<|{number * 0.02:.2f}|>" for number in range(_NUM_TIMES))
    tokenizer.add_tokens([AddedToken(time, special=False, normalized=False) for time in times])
    assert tokenizer.convert_tokens_to_ids("<|0.00|>") == TIMESTAMP_BEGIN
    assert len(tokenizer) == VOCAB_SIZE
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=WINDOW_S)
    return WhisperProcessor(extractor, tokenizer)
