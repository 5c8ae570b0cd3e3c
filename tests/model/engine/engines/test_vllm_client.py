"""Requests to vLLM, in the words of its releases."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.served_model import ServedAdapter
from hf_triton.text_generation.engines.vllm import client
from hf_triton.text_generation.engines.vllm.arguments import AdapterFile


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
    prompt = client.prompt_maker()
    assert prompt([1, 2], "salt") == {"prompt_token_ids": [1, 2], "cache_salt": "salt"}
    assert prompt([1, 2], None) == {"prompt_token_ids": [1, 2]}


CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(max_model_len=64),
    scheduler_config=SimpleNamespace(max_num_seqs=2),
    cache_config=SimpleNamespace(num_gpu_blocks=4, block_size=16),
)


@dataclass
class Llm:
    """An AsyncLLM's adapters; one in a folder ``bad`` is refused."""

    loaded: dict[int, tuple[str, str]] = field(default_factory=dict)
    vllm_config: Any = field(default_factory=lambda: CONFIG)

    async def add_lora(self, request: tuple[str, int, str]) -> None:
        name, number, folder = request
        if folder.endswith("bad"):
            raise ValueError("no LoRA")
        self.loaded[number] = (name, folder)

    async def remove_lora(self, number: int) -> None:
        del self.loaded[number]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> client.AsyncVllm:
    modules(monkeypatch, tokens_input=tokens_input, SamplingParams=object, __version__="0")
    params, lora = ModuleType("vllm.sampling_params"), ModuleType("vllm.lora.request")
    params.__dict__.update(RequestOutputKind=Kind, StructuredOutputsParams=object)
    lora.__dict__["LoRARequest"] = lambda *values: values
    monkeypatch.setattr(sys.modules["vllm"], "SamplingParams", Params)
    for module in (params, ModuleType("vllm.lora"), lora):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return client.AsyncVllm(Llm())


class Kind:
    DELTA = 1


class Params:
    __struct_fields__ = ()


class ShutDownMeanwhile(client.AsyncVllm):
    """Another thread shuts it down after the first look at its AsyncLLM."""

    def __init__(self) -> None:
        self.llm = SimpleNamespace(errored=False)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "llm":
            self.llm = None
        return found


def test_whether_vllm_died_may_be_asked_while_it_is_shut_down() -> None:
    vllm = ShutDownMeanwhile()
    assert not vllm.is_dead
    assert not vllm.is_dead


def files(**folders: str) -> list[AdapterFile]:
    return [
        AdapterFile(ServedAdapter(name, folder, local=True, revision=None), Path(folder))
        for name, folder in folders.items()
    ]


def test_vllm_knows_an_adapter_that_takes_anothers_name_as_another(vllm: client.AsyncVllm) -> None:
    async def run() -> None:
        await vllm.load_adapters(files(a="/a", b="/b"))
        assert vllm.adapter_keys == {"a": 1, "b": 2}
        vllm.name_adapters(await vllm.read(files(b="/b", a="/other")))
        assert vllm.adapter_keys == {"b": 2, "a": 3}
        loaded = vllm.llm.loaded
        assert len({name for name, _ in loaded.values()}) == 3
        assert vllm.removed_adapters == {1}
        await vllm.forget({1, 2})
        assert sorted(loaded) == [1, 2, 3]
        await vllm.forget({2})
        assert sorted(loaded) == [2, 3]

    asyncio.run(run())


def test_where_vllm_refuses_an_adapter_those_before_stay(vllm: client.AsyncVllm) -> None:
    async def run() -> None:
        await vllm.load_adapters(files(a="/a"))
        with pytest.raises(LoadError, match=r"^adapter c: vLLM refuses it: no LoRA"):
            await vllm.read(files(b="/b", c="/bad"))
        assert vllm.adapter_keys == {"a": 1}
        assert vllm.removed_adapters == {2}
        await vllm.forget(())
        assert sorted(vllm.llm.loaded) == [1]
        (bad,) = files(d="/bad")
        by_request = bad._replace(adapter=replace(bad.adapter, loaded_at=1.0))
        await vllm.load_adapters([by_request, *files(e="/e")])
        assert vllm.adapter_keys.keys() == {"e"}
        with pytest.raises(LoadError):
            await vllm.load_adapters(files(d="/bad"))

    asyncio.run(run())
