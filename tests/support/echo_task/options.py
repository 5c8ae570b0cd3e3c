"""Faults of a model, as options: the echo task is there to be started and stopped."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    STREAMS = ADAPTERS = True

    load_s: float = field(default=0.0, metadata={"help": "time to load", "unit": "s"})
    load_until: str | None = field(default=None, metadata={"help": "load until this file exists"})
    answer_s: float = field(default=0.0, metadata={"help": "time to answer", "unit": "s"})
    fail: str | None = field(default=None, metadata={"help": "raise this while loading"})
    needs: str | None = field(default=None, metadata={"help": "import this while loading"})
    die: bool = field(default=False, metadata={"help": "die while loading"})
    is_ready: bool = field(default=True, metadata={"help": "what it says of itself, if asked"})
    hold_interpreter: bool = field(
        default=False, metadata={"help": "load and answer without ever releasing the GIL"}
    )
