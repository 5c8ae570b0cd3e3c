"""Rotary embeddings that look at the longest sequence of a batch: made to look no more."""

from __future__ import annotations

from typing import Any

from .runner_selection import UnsupportedModelError


def settle_rotary(model: Any, max_model_len: int) -> None:
    """Dynamic scaling (rope_type ``dynamic``) changes its frequencies where a sequence passes the
    length that the model was made for, and asks the device at every step whether one does: twice
    the host waits, and no graph can hold it. No sequence that fits in here passes that length, so
    the frequencies stay as they are.

    Raises:
        UnsupportedModelError: sequences may pass it: one of them would change all others.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and "dynamic" in kinds:
            _check_length(module, max_model_len)
            module.rope_type = "default"
        elif isinstance(kinds, dict) and any("dynamic" in kind for kind in kinds.values()):
            _check_length(module, max_model_len)  # by the kind of layer
            module.rope_type = {
                layer: "default" if "dynamic" in kind else kind for layer, kind in kinds.items()
            }


def _check_length(module: Any, max_model_len: int) -> None:
    longest = getattr(module, "original_max_seq_len", 0)
    if max_model_len > longest:
        raise UnsupportedModelError(
            f"one sequence of more than {longest} tokens changes the dynamic rotary embedding of "
            f"all; with max_model_len {longest} or less it can"
        )
