"""Faults of a model, as options: the echo task is there to be started and stopped."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options:
    STREAMS = ADAPTERS = True

    load_s: float = option(0.0, "time to load", unit="s")
    load_until: str | None = option(None, "load until this file exists")
    answer_s: float = option(0.0, "time to answer", unit="s")
    fail: str | None = option(None, "raise this while loading")
    needs: str | None = option(None, "import this while loading")
    die: bool = option(False, "die while loading")
    is_ready: bool = option(True, "what it says of itself, if asked")
    hold_interpreter: bool = option(False, "load and answer without ever releasing the GIL")
