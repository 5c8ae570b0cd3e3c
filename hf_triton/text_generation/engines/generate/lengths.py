"""The longest input and output of a model."""

from __future__ import annotations

from typing import Any

from hf_triton.runtime.errors import LoadError
from hf_triton.text_generation.memory.layer_shapes import context_length
from hf_triton.text_generation.memory.paged_cache import LEN_WITHOUT_LIMIT

_RELATIVE_POSITIONS = "relative_attention_num_buckets"


def max_lengths(config: Any, max_model_len: int | None) -> tuple[int, int]:
    """The most tokens of an encoder-decoder's input and of its output; of a decoder, twice what it
    holds of both together.

    Raises:
        LoadError: ``max_model_len`` is above the model's own limit.
    """
    if config.is_encoder_decoder:
        longest_input, longest_output = _limit_of(config, "encoder"), _limit_of(config, "decoder")
    else:
        longest_input = longest_output = context_length(config.get_text_config())
    if max_model_len is not None and longest_input is not None and max_model_len > longest_input:
        raise LoadError(
            f"max_model_len: got {max_model_len}, the model's own limit is {longest_input} tokens"
        )
    if max_model_len is not None:
        return max_model_len, min(max_model_len, longest_output or max_model_len)
    usual = getattr(config, "n_positions", None)
    if not isinstance(usual, int) or usual <= 0:
        usual = LEN_WITHOUT_LIMIT
    return longest_input or usual, longest_output or usual


def _limit_of(config: Any, side: str) -> int | None:
    """The longest input of an encoder-decoder, or output; None where there is no limit."""
    own = getattr(config, side, None)
    if own is not None:  # a configuration of each side (EncoderDecoderModel, T5Gemma)
        return context_length(own.get_text_config())
    if hasattr(config, _RELATIVE_POSITIONS):
        return None  # T5's n_positions is only how long its training's texts were
    of_decoder = ("max_target_positions",) if side == "decoder" else ()  # Whisper
    return context_length(config, f"max_{side}_position_embeddings", *of_decoder)  # LED
