"""What tells the arms of a test apart."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    STREAMS = True

    answers: str = field(default="", metadata={"help": "what every answer begins with"})
    answer_s: float = field(default=0.0, metadata={"help": "time to answer", "unit": "s"})
