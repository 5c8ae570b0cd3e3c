"""Defaults from a model's generation config and task_specific_params, where neither models.yaml nor
a request sets a value.
"""

from __future__ import annotations

from typing import Any

from hf_triton.runtime.errors import LoadError, reason

_MAX_TOKENS = 128


def apply_task_params(model: Any, name: str | None) -> str:
    """Changes the model's settings for generation to those of its ``task_specific_params`` of that
    name; returns the prefix that goes with them, else the model's own, which may be empty.

    Raises:
        LoadError: the model has none of that name.
    """
    known = getattr(model.config, "task_specific_params", None) or {}
    if name is not None and name not in known:
        listed = ", ".join(sorted(known)) or "nothing, for the model has none"
        raise LoadError(f"task_specific_params: got {name!r}, allowed: {listed}")
    params = dict(known[name]) if name is not None else {}
    prefix = params.pop("prefix", None) or getattr(model.config, "prefix", None)
    try:
        model.generation_config.update(**params)
    except (ValueError, TypeError) as error:
        raise LoadError(f"task_specific_params: {name}: {reason(error)}") from error
    return str(prefix or "")


def default_max_tokens(own: Any) -> int:
    """The output length of a generation config; its max_length counts the decoder's start."""
    if own.max_new_tokens:
        return int(own.max_new_tokens)
    return max(1, int(own.max_length) - 1) if own.max_length else _MAX_TOKENS


def default_min_tokens(own: Any) -> int:
    """The shortest output of a generation config; its min_length counts the decoder's start."""
    return max(int(own.min_new_tokens or 0), int(own.min_length or 0) - 1, 0)
