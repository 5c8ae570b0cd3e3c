"""Requests with images wait only as long as memory holds them."""

from __future__ import annotations

import pytest

from hf_triton.runtime.errors import OverloadedError
from hf_triton.text_generation.request.source_memory import SourceMemory

MIB = 2**20


@pytest.mark.threat("too-many-requests")
def test_more_than_memory_holds_is_refused_and_taken_again_later() -> None:
    memory = SourceMemory(10 * MIB)
    memory.take(6 * MIB)
    memory.take(4 * MIB)
    with pytest.raises(OverloadedError, match="take 10 MiB, of 10 allowed: try again later"):
        memory.take(1)
    memory.give(4 * MIB)
    memory.take(3 * MIB)


def test_a_single_request_is_never_too_large() -> None:
    memory = SourceMemory(MIB)
    memory.take(5 * MIB)
    memory.take(0)  # and texts go on beside it
    with pytest.raises(OverloadedError):
        memory.take(1)
    memory.give(5 * MIB)
    memory.take(5 * MIB)
