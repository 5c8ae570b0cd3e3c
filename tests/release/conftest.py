"""The OpenAI port in front of the fake Triton of the unit tests."""

from __future__ import annotations

from tests.unit.openai_api.conftest import api, loop, starter

__all__ = ["api", "loop", "starter"]
