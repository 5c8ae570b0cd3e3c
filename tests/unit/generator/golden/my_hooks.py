"""Counts texts."""

from __future__ import annotations

from hf_triton.hooks import HookRequest, observe


def preprocess(request: HookRequest) -> None:
    """Counts one."""
    observe("texts_total", language="en")
