"""The keys of models.yaml for vLLM, and those for GPUs beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.errors import SpecError
from generator.models_yaml.reading import load
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import find_tasks
from tests.support.triton import DEMO_MODEL

_TASKS = find_tasks()


def read(folder: Path, options: str, *keys: str) -> ModelSpec:
    """The model that a YAML with these options, on one line, and these further keys describes."""
    lines = ["models:", "- name: m", "task: text-generation", f"model: {DEMO_MODEL}", *keys]
    text = "\n  ".join([*lines, f"options: {options}"])
    (folder / "models.yaml").write_text(text.replace("  - name", "- name", 1), encoding="utf-8")
    [spec] = load(folder / "models.yaml")
    return spec


def mistakes(folder: Path, options: str, *keys: str) -> str:
    with pytest.raises(SpecError) as error:
        read(folder, options, *keys)
    return str(error.value)


def test_defaults_may_have_options_for_other_engines(tmp_path: Path) -> None:
    defaults = "defaults:\n  options: {num_speculative_tokens: 9, kv_cache_gib: 2}\n"
    model = (
        f"{{name: m, task: text-generation, model: {DEMO_MODEL}, options: {{engine: generate}}}}"
    )
    (tmp_path / "models.yaml").write_text(f"{defaults}models:\n- {model}\n", encoding="utf-8")
    [spec] = load(tmp_path / "models.yaml")
    assert spec.options["engine"] == "generate"
    assert read(tmp_path, "{engine: generate, prefix_cache: false}").name == "m"
    for fine in ("num_speculative_tokens: 9", "max_num_seqs: 8, max_num_batched_tokens: 8"):
        assert read(tmp_path, f"{{engine: auto, {fine}}}").name == "m"


def test_vllms_own_arguments_are_passed_on_as_they_are(tmp_path: Path) -> None:
    given = "{tokenizer_mode: slow, hf_overrides: {rope_theta: 1e4}, plugins: [1, a, true, null]}"
    spec = read(tmp_path, f"{{engine: vllm, vllm: {given}}}")
    assert spec.options["vllm"] == {
        "tokenizer_mode": "slow",
        "hf_overrides": {"rope_theta": 1e4},
        "plugins": [1, "a", True, None],
    }
    assert read(tmp_path, "{engine: vllm}").options["vllm"] is None


REFUSED = {
    "{engine: vllm}, device_map: auto": (
        "device_map: got auto, expected null: tensor_parallel_size in options.vllm"
    ),
    "{engine: vllm}, quantization: int8": (
        "quantization: expected null: vLLM quantizes by its own arguments"
    ),
    "{engine: vllm, num_speculative_tokens: 9}": (
        "num_speculative_tokens: got 9, but engine is vllm: only engine in_flight has it"
    ),
    "{max_num_seqs: 9, max_num_batched_tokens: 8}": (
        "max_num_batched_tokens: got 8, expected at least max_num_seqs (9): a step computes one"
    ),
    "{max_step_ms: 9}": "max_step_ms: is no longer a key: lower max_num_batched_tokens",
    "{prompt_lookup_min: 5}": "prompt_lookup_min: is no longer a key: the last 2 to 4 tokens",
    "{prefix_cache_gib: 1}": "prefix_cache_gib: is no longer a key: raise kv_cache_gib",
    "{engine: generate, kv_cache_gib: 0.5}": (
        "kv_cache_gib: got 0.5, but engine is generate: only engine in_flight or vllm"
    ),
    "{engine: generate, prefix_cache: true}": "prefix_cache: got true, but engine is generate",
    "{engine: vllm, vllm: 3}": "vllm: got 3, expected a map",
    "{engine: vllm, vllm: {dtype: half}}": "vllm: dtype: set by the model's dtype",
    "{engine: vllm, vllm: {max_model_len: 9}}": (
        "vllm: max_model_len: set by options.max_model_len"
    ),
    "{engine: vllm, vllm: {hf_token: hf_x}}": "vllm: hf_token: set by HF_TOKEN in the environment",
    "{engine: vllm, vllm: {skip_tokenizer_init: false}}": (
        "vllm: skip_tokenizer_init: decided by the engine"
    ),
    "{engine: vllm, vllm: {tensor_parallel_size: two}}": (
        "tensor_parallel_size: got two, expected a whole number, at least 1"
    ),
    "{vllm: {}}": "vllm: got arguments for vLLM, but engine is auto; set engine: vllm",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: str) -> None:
    own, _, key = options.partition("}, ")
    told = mistakes(tmp_path, f"{own}}}" if key else own, *([key] if key else []))
    assert REFUSED[options] in told


def test_one_copy_over_several_gpus_is_one_instance(tmp_path: Path) -> None:
    over_two = "{engine: vllm, vllm: {tensor_parallel_size: 2}}"
    assert [g.kind for g in read(tmp_path, over_two).instance_groups] == ["KIND_MODEL"]
    assert [g.kind for g in read(tmp_path, "{engine: vllm}").instance_groups] == ["KIND_AUTO"]
    told = mistakes(tmp_path, over_two, "instance_group: [{kind: KIND_GPU, gpus: [0]}]")
    assert "got KIND_GPU, which is one instance for each GPU" in told
    assert "expected [{count: 1, kind: KIND_MODEL}]" in told
    on_model = read(tmp_path, over_two, "instance_group: [{kind: KIND_MODEL}]")
    assert [g.kind for g in on_model.instance_groups] == ["KIND_MODEL"]
