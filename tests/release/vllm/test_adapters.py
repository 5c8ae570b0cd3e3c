"""A real vLLM takes other adapters beside streams that go on."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release.vllm.conftest import START_S, in_environment
from tests.support.demo_adapter import write_adapter
from tests.support.triton import DEMO_MODEL, Triton, serving
from tests.system.server.test_adapters_while_serving import (
    LONG,
    PROMPT,
    engines,
    sent,
    streams,
    text,
)
from tests.unit.openai_api.conftest import openai_port

MODELS_YAML = """\
models:
  - name: demo
    task: text-generation
    model: {model}
    adapters: [{{name: one, model: {folder}/a}}]
    adapters_from: [{folder}]
    options:
      engine: vllm
      kv_cache_gib: 0.25
      max_model_len: 512
      vllm: {{enforce_eager: true, max_loras: 1}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate("abc"):
        write_adapter(found / name, seed)
    write_adapter(found / "large", r=64)
    (found / "broken").mkdir()
    (found / "broken" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 3}')
    return found


@pytest.fixture(scope="module")
def adapted(
    environment: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Triton]:
    models_yaml = MODELS_YAML.format(model=DEMO_MODEL, folder=folder)
    served = tmp_path_factory.mktemp("adapted")
    with serving(models_yaml, served, START_S, in_environment(environment)) as running:
        yield running


def test_requests_load_and_unload_adapters_beside_streams(adapted: Triton, folder: Path) -> None:
    processes = engines(adapted)
    plain, first, long = text(adapted, None), text(adapted, "one"), text(adapted, "one", LONG)
    with openai_port(adapted, None) as url, streams(adapted, "one") as texts:

        def load(name: str, path: Path) -> str:
            return sent(f"{url}/v1/load_lora_adapter", lora_name=name, lora_path=str(path))

        assert load("two", folder / "b") == "Success: LoRA adapter 'two' added successfully."
        second = text(adapted, "two")
        asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = json.loads(sent(f"{url}/v1/completions", model="two", **asked))
        assert answer["choices"][0]["text"] == second
        sent(f"{url}/v1/unload_lora_adapter", lora_name="two")
        load("two", folder / "c")
        third = text(adapted, "two")
        sent(f"{url}/v1/unload_lora_adapter", lora_name="two")
        assert "lora_name: got two, allowed: one" in text(adapted, "two")
        for number in range(8):
            load(f"many{number}", folder / "abc"[number % 3])
        many = [text(adapted, f"many{number}") for number in range(8)]
        for name, why in (("large", "LoRA rank 64"), ("broken", "adapter no: "), ("none", "404")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                load("no", folder / name)
            assert why in f"{refused.value.code} {refused.value.read().decode()}"
    assert len({plain, first, second, third}) == 4
    assert many == [(first, second, third)[number % 3] for number in range(8)]
    assert texts() == {long}
    assert engines(adapted) == processes
