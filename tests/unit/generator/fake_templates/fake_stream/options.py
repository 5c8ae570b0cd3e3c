"""The options of a task that streams, and exists only in tests."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options:
    STREAMS = ADAPTERS = QUANTIZES = True

    limit: int = option(8, "a limit", unit="tokens", least=1)
