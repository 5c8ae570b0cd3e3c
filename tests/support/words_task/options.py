"""Tells the arms of a test apart; answers count as deterministic for tests of the cache."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options:
    STREAMS = DETERMINISTIC = True

    answers: str = option("", "what every answer begins with")
    answer_s: float = option(0.0, "time to answer", unit="s")
