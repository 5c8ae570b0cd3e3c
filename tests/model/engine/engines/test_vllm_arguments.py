"""The arguments of vLLM's engine and of its requests; no vLLM is needed to test them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, T5Config

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.text_generation.engines.vllm import arguments, processes
from hf_triton.text_generation.engines.vllm import vllm_loading as loading
from hf_triton.text_generation.engines.vllm.arguments import adapter_arguments
from hf_triton.text_generation.engines.vllm.sampling import bad_words, sampling_arguments
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from tests.support.served_models import served_model
from tests.support.triton import DEMO_MODEL, eventually

CPU = Placement("cpu", {"": "cpu"})
SECOND_GPU = Placement("cuda:1", {"": "cuda:1"})
ALL_GPUS = Placement("cuda:0", "auto")
KNOWN = ("tensor_parallel_size", "enforce_eager", "max_num_batched_tokens")


def served(tmp_path: Path, **options: Any) -> ServedModel:
    return served_model(
        tmp_path,
        name="demo",
        model=str(DEMO_MODEL),
        local=True,
        dtype="float32",
        options={"engine": "vllm", **options},
        public_name="demo",
        decoupled=True,
    )


def started_with(tmp_path: Path, cache: int | None = None, **options: Any) -> dict[str, Any]:
    files = Path("/files")
    model = served(tmp_path, **options)
    return arguments.engine_arguments(model, Options(**model.options), files, "float32", cache)


def test_our_options_are_said_in_vllms_names(tmp_path: Path) -> None:
    found = started_with(
        tmp_path, 2**30, max_model_len=256, max_num_seqs=8, vllm={"enforce_eager": True}
    )
    assert found == {
        "model": "/files",
        "dtype": "float32",
        "trust_remote_code": False,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 2**30,
        "tokenizer_mode": "hf",
        "structured_outputs_config": {"backend": "guidance"},
        "generation_config": "vllm",
        "disable_log_stats": True,
        "enforce_eager": True,
    }


def test_a_step_has_the_tokens_that_somebody_asked_for(tmp_path: Path) -> None:
    name = "max_num_batched_tokens"
    assert name not in started_with(tmp_path)
    assert started_with(tmp_path, max_num_batched_tokens=1024)[name] == 1024
    assert started_with(tmp_path, vllm={name: 64})[name] == 64
    with pytest.raises(LoadError, match=f"^options.vllm.{name}: got 64, but options.{name} is 9"):
        started_with(tmp_path, max_num_batched_tokens=9, vllm={name: 64})


def test_prompts_share_nothing_where_that_is_refused(tmp_path: Path) -> None:
    name = "enable_prefix_caching"
    assert name not in started_with(tmp_path)
    assert started_with(tmp_path, vllm={name: True})[name] is True
    assert started_with(tmp_path, prefix_cache=False)[name] is False
    problems = Options(engine="vllm", prefix_cache=False, vllm={name: True}).problems()
    assert problems == [("prefix_cache", f"got false, but vllm has {name}")]


def test_an_argument_that_this_vllm_lacks_is_named_with_the_nearest() -> None:
    with pytest.raises(LoadError) as error:
        arguments.require_known({"tensor_paralel_size": 2}, KNOWN, "vLLM 1")
    assert str(error.value) == (
        "options.vllm.tensor_paralel_size: vLLM 1 has no such argument; "
        "did you mean tensor_parallel_size?"
    )
    arguments.require_known({"enforce_eager": True}, KNOWN, "vLLM 1")


RAY = {"tensor_parallel_size": 16, "distributed_executor_backend": "ray"}
BOTH = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}


@pytest.mark.parametrize(
    "given, placement, device, message",
    [
        ({}, CPU, "cuda", "built for cuda, this instance is on cpu"),
        ({}, SECOND_GPU, "cpu", "built for cpu, this instance is on cuda"),
        ({"tensor_parallel_size": 2}, SECOND_GPU, "cuda", "KIND_MODEL"),
        ({"tensor_parallel_size": 8}, ALL_GPUS, "cuda", "asks for 8 GPUs, this machine shows 4"),
        (BOTH, ALL_GPUS, "cuda", "asks for 8 GPUs"),
        ({}, CPU, "cpu", ""),
        ({"tensor_parallel_size": 2}, CPU, "cpu", ""),
        ({}, SECOND_GPU, "cuda", ""),
        ({"tensor_parallel_size": 4}, ALL_GPUS, "cuda", ""),
        (RAY, ALL_GPUS, "cuda", ""),
    ],
)
def test_devices_that_are_not_there_are_named(
    given: dict[str, Any], placement: Placement, device: str, message: str
) -> None:
    expected = pytest.raises(LoadError, match=message) if message else contextlib.nullcontext()
    with expected:
        arguments.require_devices(given, placement, device, num_gpus=4)
    assert arguments.gpu_index(placement) == (1 if placement is SECOND_GPU else None)


def test_a_cache_on_a_cpu_holds_the_sequences_or_half_of_what_is_free() -> None:
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    options = Options(engine="vllm", max_model_len=100, max_num_seqs=3)
    needed = 2 * 2 * 2 * 16 * 4 * 256 * 3  # keys and values x layers x heads x size x bytes x ...
    assert arguments.default_cache_bytes(options, config, 4, 2**40) == needed
    assert arguments.default_cache_bytes(options, config, 4, 1000) == 500


def test_every_sampling_option_has_its_place_in_vllm() -> None:
    alike: dict[str, Any] = {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "seed": 2**64 - 1,
    }
    params = SamplingParams(
        **alike,
        stop_token_ids=(7, 5),
        num_logprobs=2,
        num_prompt_logprobs=1,
        allowed_token_ids=(4, 6),
        logit_bias=((4, -1.0),),
    )
    assert sampling_arguments(params, [0]) == {
        **alike,
        "stop_token_ids": [0, 5, 7],
        "ignore_eos": True,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "allowed_token_ids": [4, 6],
        "logit_bias": {4: -1.0},
        "detokenize": False,
    }


@pytest.mark.parametrize("greedy", [{}, {"temperature": 0.7, "top_k": 1, "top_p": 0.5}])
def test_greedy_is_temperature_0_and_no_filters(greedy: dict[str, Any]) -> None:
    found = sampling_arguments(SamplingParams(max_tokens=1, **greedy), ())
    assert (found["temperature"], found["top_k"], found["top_p"]) == (0, 0, 1)


def test_extreme_numbers_are_within_what_vllm_takes() -> None:
    tiny = SamplingParams(max_tokens=1, temperature=1e-9, top_k=-1, repetition_penalty=1e300)
    found = sampling_arguments(tiny, ())
    assert (found["temperature"], found["top_k"]) == (0.01, 0)
    assert found["repetition_penalty"] == 1e30
    ignoring = SamplingParams(max_tokens=1, ignore_eos=True, stop_token_ids=(3,))
    assert sampling_arguments(ignoring, [0])["stop_token_ids"] == [3]


def test_a_bad_word_that_is_an_end_is_none() -> None:
    params = SamplingParams(max_tokens=1, bad_token_ids=((0,), (3,), (4, 0)))
    assert bad_words(params, frozenset({0})) == [[3], [4, 0]]


@pytest.mark.skipif("vllm" in sys.modules, reason="vLLM is here")
def test_a_python_without_vllm_is_told_of_in_one_line(tmp_path: Path) -> None:
    model = served(tmp_path)
    with pytest.raises(LoadError, match=r"vLLM is not installed .* python_env"):
        loading.make_engine(model, Options(**model.options), CPU, 1)


def adapter_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapters_fit_into_one_step_at_the_largest_rank(tmp_path: Path) -> None:
    folders = {
        "a": adapter_folder(tmp_path / "a", r=3),
        "b": adapter_folder(tmp_path / "b", r=4, rank_pattern={"down_proj": 20}),
    }
    expected = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 512, "max_lora_rank": 32}
    assert adapter_arguments(folders, {}) == expected
    assert adapter_arguments(folders, {"max_loras": 1}) == {**expected, "max_loras": 1}
    assert adapter_arguments({}, {}) == {**expected, "max_loras": 4, "max_lora_rank": 16}


def test_an_adapter_that_vllm_has_no_room_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^adapter a: got rank 600, vLLM takes at most 512"):
        adapter_arguments({"a": adapter_folder(tmp_path / "a", r=600)}, {})
    with pytest.raises(LoadError, match=r"^adapter b: adapter_config\.json can't be read"):
        adapter_arguments({"b": adapter_folder(tmp_path / "b", rank=2)}, {})


def test_grammars_have_one_library(tmp_path: Path) -> None:
    name = "structured_outputs_config"
    own = {name: {"enable_in_reasoning": True}}
    assert started_with(tmp_path, vllm=own)[name] == {**own[name], "backend": "guidance"}
    with pytest.raises(LoadError, match=f"^options.vllm.{name}: got backend xgrammar, allowed"):
        started_with(tmp_path, vllm={name: {"backend": "xgrammar"}})


def test_an_encoder_decoder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    T5Config(d_model=8, num_layers=1, num_heads=1).save_pretrained(tmp_path)
    model = replace(served(tmp_path), model=str(tmp_path))
    with pytest.raises(LoadError, match="encoder-decoder models can't run on it"):
        loading.make_engine(model, Options(**model.options), CPU, 1)


@pytest.mark.parametrize(
    "cores, num_threads, num_ranks, expected",
    [
        ([0, 1], 2, 1, "0,1"),
        ([0, 1, 2, 5], 4, 2, "0,1|2,5"),
        ([0, 1], 1, 1, "nobind"),  # the other is another instance's
        ([0], 1, 2, "nobind"),
    ],
)
def test_threads_are_bound_to_all_cores_unless_they_are_shared(
    cores: list[int], num_threads: int, num_ranks: int, expected: str
) -> None:
    assert processes.binding(cores, num_threads, num_ranks) == expected


def test_a_gpu_is_found_among_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert processes.visible_gpu(2) == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-abc")
    assert processes.visible_gpu(1) == "GPU-abc"


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*processes.VARIABLES, "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"}
    for name in names:
        monkeypatch.setenv(name, "mine")
    processes.set_variables(gpu_index=None, num_threads=1, num_ranks=1, is_cpu=True)
    assert {os.environ[name] for name in names} == {"mine"}


_SPAWN = """\
import multiprocessing, os, sys, threading, time
sys.path[:0] = {path!r}
from hf_triton.text_generation.engines.vllm.processes import children_die_with_parent
def child():
    time.sleep(600)
if __name__ == "__main__":
    with children_die_with_parent():
        process = multiprocessing.get_context("spawn").Process(target=child)
        process.start()
        print(process.pid, flush=True)
        time.sleep(600)
"""


def test_processes_that_were_spawned_die_with_the_one_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(_SPAWN.format(path=sys.path), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert eventually(lambda: not _lives(pid), 120)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
