"""The port with its fake Triton is that of OpenAI's API."""

from tests.unit.openai_api.conftest import loop, starter

__all__ = ["loop", "starter"]
