"""What vLLM is asked, in the words of its releases."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from hf_triton.text_generation.engines.vllm import client


def modules(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """A vLLM that has no more than these, by the module that has them."""
    for name in ("vllm", "vllm.inputs", "vllm.inputs.engine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, function in functions.items():
        module = "vllm.inputs.engine" if name == "tokens_input" else "vllm"
        monkeypatch.setattr(sys.modules[module], name, function, raising=False)


def tokens_input(token_ids: list[int], *, cache_salt: str | None = None) -> dict[str, Any]:
    """As vLLM 0.32's."""
    salted = {} if cache_salt is None else {"cache_salt": cache_salt}
    return {"prompt_token_ids": token_ids, **salted}


@pytest.mark.parametrize("release", [{"tokens_input": tokens_input}, {"TokensPrompt": dict}])
def test_vllm_is_told_who_may_share(
    monkeypatch: pytest.MonkeyPatch, release: dict[str, Any]
) -> None:
    modules(monkeypatch, **release)
    prompt = client._prompt_maker()
    assert prompt([1, 2], "salt") == {"prompt_token_ids": [1, 2], "cache_salt": "salt"}
    assert prompt([1, 2], None) == {"prompt_token_ids": [1, 2]}
