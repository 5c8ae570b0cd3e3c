"""The compiled loops against torch's operators, and where they are compiled and kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM

from hf_triton.runtime.devices.prepacked_linear import prepack
from hf_triton.runtime.disk_cache import is_made_private
from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.runtime.kernels import compiled_loops
from hf_triton.runtime.kernels.compiled_loops import ThreadTeam, load_kernel
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engines.in_flight import runner_selection
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.forward.fused.fused_runner import FusedRunner
from hf_triton.text_generation.forward.transformers.attention_interface import (
    use_attention_interface,
)
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PagedSize
from tests.support.architectures.configurations import tiny_config
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import (
    Asked,
    mixed_load,
    random_model,
    reference,
    tiny_model,
    with_large_weights,
)

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 2], ids=["alone", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[ThreadTeam]:
    torch.set_num_threads(request.param)
    yield ThreadTeam(request.param)
    torch.set_num_threads(1)


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    dtype: torch.dtype = request.param
    return dtype


def run(threads: ThreadTeam, name: str, dtype: torch.dtype, *arguments: int) -> None:
    threads.run(load_kernel(name, dtype), *arguments)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Float32 to its last bits; bfloat16 to one step of its own."""
    rtol, atol = (1e-5, 1e-5) if got.dtype == torch.float32 else (8e-3, 1e-2)
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "name, activation",
    [("silu_mul", F.silu), ("gelu_tanh_mul", partial(F.gelu, approximate="tanh"))],
)
def test_gated_activations_also_at_the_ends_of_exp(
    name: str, activation: Any, threads: ThreadTeam, dtype: torch.dtype
) -> None:
    gates = torch.cat([torch.randn(3, 30) * 5, torch.tensor([[-1e4, -100.0, -88, 0, 88, 100] * 5])])
    gate, up = gates.to(dtype), torch.randn(4, 30).to(dtype)
    both, out = torch.cat([gate, up], dim=-1), torch.empty(4, 30, dtype=dtype)
    run(threads, name, dtype, 4, 60, both.data_ptr(), out.data_ptr())
    assert_close(out, activation(gate) * up)


def test_argmax_is_the_first_of_the_largest(threads: ThreadTeam, dtype: torch.dtype) -> None:
    logits = torch.randn(10, 3001).to(dtype)
    logits[1, 7] = logits[1, 2999] = 50
    logits[2] = float("-inf")
    logits[3] = float("-inf")
    logits[3, 2050] = -1e30
    logits[4, 0] = float("inf")
    logits[5, 2047] = logits[5, 2900] = torch.nan
    logits[6, 1030] = -torch.tensor(torch.nan)
    logits[7, 9], logits[7, 10] = float("inf"), torch.nan
    logits[8] = torch.nan
    logits[9, 1], logits[9, 3000] = 50, torch.nan
    out = torch.full((10,), -1)
    scratch = threads.scratch(3001)
    run(threads, "argmax", dtype, *logits.shape, *(t.data_ptr() for t in (logits, out, scratch)))
    assert torch.equal(out, logits.argmax(dim=-1))


@pytest.mark.parametrize("value", [torch.nan, -torch.tensor(torch.nan), torch.inf, -torch.inf])
def test_what_is_no_number_stays_in_its_own_row(
    value: float, threads: ThreadTeam, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(5, 60).to(dtype), torch.ones(60)
    x[1, 7] = value
    out = torch.empty_like(x)
    read = x.data_ptr(), 0, weight.data_ptr(), 0
    run(threads, "norm", dtype, 5, 1, 60, 60, *read, out.data_ptr(), 0, 0, 0, 0, 0)
    assert out.isfinite().all(1).tolist() == [True, False, True, True, True]
    for name in ("silu_mul", "gelu_tanh_mul"):
        out = torch.empty(5, 30, dtype=dtype)
        run(threads, name, dtype, 5, 60, x.data_ptr(), out.data_ptr())
        assert out.isfinite().all(1).tolist() == [True, False, True, True, True]


def test_tokens_are_the_models_own_while_the_number_of_threads_changes(
    changing_threads: list[int],
) -> None:
    model, asked = tiny_model("mistral"), [*mixed_load(6), Asked(list(range(1, 60)), 5)]
    expected = reference(model, asked)
    options = setup(model, max_num_seqs=4, max_num_batched_tokens=24)
    engine = InFlightEngine(replace(options, num_threads=2, prepare=prepack))
    with running(engine):
        assert generate_all(engine, asked, at_first=3) == expected
    assert len(changing_threads) > 10, "steps with one thread and with two"


def test_a_team_is_as_large_as_torchs_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    kernel = load_kernel("silu_mul", torch.float32)
    monkeypatch.setattr(
        compiled_loops, "gomp_parallel", lambda _: lambda *args: sizes.append(args[2])
    )
    team = ThreadTeam(4)
    for count in (1, 3, 8):
        monkeypatch.setattr(torch, "get_num_threads", partial(int, count))
        team.run(kernel, 0, 8, 0, 0)
    assert sizes == [3, 4]


def fused(model: Any, max_model_len: int = 32) -> FusedRunner:
    return FusedRunner(
        model, PagedCache(layer_shapes(model, CPU), PagedSize(9, max_model_len, 2, 0)), CPU
    )


SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_GPT2 = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}
_FALCON = {"alibi": False, "head_dim": None}  # its configuration takes no head_dim
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
_SMALL_EXPERTS = {**_EXPERTS, "moe_intermediate_size": 16}
_CAPS = {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 8.0}
_SCALES = {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0}
# The differences of each from Llama's shape.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt-bigcode": ("gpt_bigcode", _GPT2),
    "gpt-neox": ("gpt_neox", {}),
    "gpt-neox in sequence": ("gpt_neox", {"use_parallel_residual": False}),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "phi": ("phi", {}),
    "phi with head norms": ("phi", {"qk_layernorm": True, "num_key_value_heads": 4}),
    "phi3": ("phi3", {}),
    "gemma2": ("gemma2", {"sliding_window": 8, **_CAPS}),
    "gemma3": ("gemma3_text", {"sliding_window": 8, "num_hidden_layers": 6}),
    "cohere": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"sliding_window": 8}),
    "granite": ("granite", _SCALES),
    "olmo2": ("olmo2", {}),
    "starcoder2": ("starcoder2", {}),
    "persimmon": ("persimmon", {"num_key_value_heads": 4}),
    "falcon": ("falcon", _FALCON),
    "falcon of 40 B": (
        "falcon",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "smollm3": ("smollm3", {}),  # layers without rotary embedding
    "helium": ("helium", {}),
    "ernie4_5": ("ernie4_5", {}),
    "mixtral": ("mixtral", _EXPERTS),
    "qwen2-moe": ("qwen2_moe", {**_SMALL_EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3-moe": ("qwen3_moe", _SMALL_EXPERTS),
    "gpt-oss": ("gpt_oss", {**_EXPERTS, "sliding_window": 8}),
}
MIXTURES = ("mixtral", "-moe", "-oss")


def family(name: str, *, tamed: bool = False) -> Any:
    """A tiny model whose norms have weights and biases that tell one from another. ``tamed``, its
    rounding in bfloat16 grows less from layer to layer.
    """
    model_type, changes = FAMILIES[name]
    given = {key: value for key, value in {**SHAPE, **changes}.items() if value is not None}
    model = random_model(model_type, **given)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
            elif tamed:
                parameter.mul_(0.4)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_families_give_generates_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_triton.text_generation.forward.paged.step.LONG_CHUNK", 4)
    monkeypatch.setattr("hf_triton.text_generation.forward.paged.step.LONG_PREFIX", 6)
    model = family(name)
    asked = mixed_load(7)
    expected = reference(model, asked)
    engine = InFlightEngine(setup(model, max_num_seqs=3, max_num_batched_tokens=12))
    with running(engine):
        assert engine.runner.name == "fused"
        assert generate_all(engine, asked, at_first=4) == expected


# A mixture's rounding chooses other experts in a model as wild as these.
@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.endswith(MIXTURES)])
def test_families_are_held_in_bfloat16(name: str) -> None:
    model = family(name, tamed=True).to(torch.bfloat16)
    use_attention_interface(model)
    chosen = runner_selection.select_runner(model, layer_shapes(model, CPU), CPU, compiled=True)
    assert chosen is runner_selection.FUSED


def test_the_decoder_of_a_model_of_sounds_is_held() -> None:
    """It scales its embeddings, and for a sound's placeholder takes another token's."""
    config = tiny_config("granite_speech")
    assert config.audio_token_id < config.text_config.vocab_size
    model = with_large_weights(AutoModelForSeq2SeqLM.from_config(config))
    use_attention_interface(model)
    chosen = runner_selection.select_runner(model, layer_shapes(model, CPU), CPU, compiled=True)
    assert chosen is runner_selection.FUSED


@pytest.mark.parametrize("name", ["bloom", "gptj", "falcon-alibi"])
def test_what_calls_no_attention_function_is_named(name: str) -> None:
    with pytest.raises(UnsupportedLayersError, match="computes attention in its own way"):
        fused(tiny_model(name))


def ministral() -> Any:
    """Scales its queries from position 64 on."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    changes = {"rope_theta": 10000.0, "llama_4_scaling_beta": 0.1}
    return random_model("ministral3", **SHAPE, rope_parameters={**rope, **changes})


def test_queries_scaled_at_far_positions_are_named(dtype: torch.dtype) -> None:
    """A short scene in bfloat16 holds them for Llama's where their weights are small."""
    model = ministral().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)
    fused(model, 64)
    with pytest.raises(UnsupportedLayersError, match="more than rotation"):
        fused(model, 65)


@pytest.mark.parametrize("max_model_len, name", [(64, "fused"), (65, "packed")])
def test_layers_are_tried_at_the_positions_that_are_served(
    max_model_len: int, name: str, log_lines: list[str]
) -> None:
    engine = InFlightEngine(setup(ministral(), max_num_seqs=2, max_model_len=max_model_len))
    with running(engine):
        assert engine.runner.name == name
    why = "not fused: UnsupportedLayersError: more than rotation"
    assert any(why in line for line in log_lines) == (name == "packed")


def test_scaled_angles_are_rotations(dtype: torch.dtype) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    for rope_parameters in (rope, {"rope_type": "linear", "factor": 4.0}):
        changes = {"rope_parameters": {"rope_theta": 10000.0, **rope_parameters}}
        fused(random_model("llama", **SHAPE, **changes).to(dtype))


def test_weights_of_another_size_are_never_read() -> None:
    """The loops would read beyond them."""
    short = torch.nn.Parameter(torch.ones(1))  # which torch spreads over all numbers
    for name in ("input_layernorm", "self_attn.q_norm"):
        model = tiny_model("qwen3")
        model.model.layers[1].get_submodule(name).weight = short
        with pytest.raises(UnsupportedLayersError, match=r"a norm of \(1,\)"):
            fused(model)
    model = tiny_model("llama")
    model.model.layers[1].self_attn.register_parameter("sinks", short)
    with pytest.raises(UnsupportedLayersError, match="has weights of its own: sinks"):
        fused(model)


@pytest.mark.parametrize(
    "error, said",
    [
        (
            ModuleNotFoundError("No module named 'numba'"),
            "run by packed; not fused: ModuleNotFoundError: No module named 'numba'",
        ),
        (OSError("libllvmlite.so"), "run by packed; not fused: OSError: libllvmlite.so"),
    ],
)
def test_without_numba_the_engine_says_so_and_serves(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    def missing(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(runner_selection, "FUSED", RunnerSpec("fused", missing))
    engine = InFlightEngine(setup(tiny_model("llama"), max_num_seqs=2))
    with running(engine):
        assert engine.runner.name == "packed"
    (line,) = log_lines
    assert line == f"I {said}"


def test_a_team_without_libgomp_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_loops, "gomp_parallel", lambda _: None)
    assert ThreadTeam(8).num_threads == 1


@pytest.mark.parametrize("name", ["torch/lib/libgomp.so.1", "torch.libs/libgomp-98b21ff3.so.1.0.0"])
def test_torchs_libgomp_is_found_where_wheels_have_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if not own.exists():
        pytest.skip("this torch has no libgomp of its own")
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).symlink_to(own)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    (tmp_path / "torch").mkdir(exist_ok=True)
    assert ThreadTeam(2).num_threads == 2


def test_no_kernel_reads_numbers_of_another_dtype_as_bfloat16() -> None:
    with pytest.raises(KeyError, match="float16"):
        load_kernel("argmax", torch.float16)


def test_copies_that_load_at_once_compile_a_kernel_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled, cfunc = [], numba.cfunc

    def counted(signature: str) -> Any:
        compiled.append(signature)
        return cfunc(signature)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(numba, "cfunc", counted)
    with ThreadPoolExecutor() as copies:
        list(copies.map(load_kernel.__wrapped__, ["argmax"] * 3, [torch.float32] * 3))
    assert len(compiled) == 1


def test_a_folder_that_others_can_write_to_is_not_run_from(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    assert not is_made_private(folder / "0")
    before = os.umask(0o002)  # where others of a group may write
    try:
        assert is_made_private(tmp_path / "new" / "kernels" / "0")
    finally:
        os.umask(before)


def test_without_home_or_folder_to_write_to_the_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    """As for a user without an entry, in a container that is read-only."""

    def nobody(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    def nowhere() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nobody)
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    compiled_loops.say_not_kept.cache_clear()
    for name in ("silu_mul", "argmax"):
        assert load_kernel.__wrapped__(name, torch.float32).address
    (line,) = log_lines
    assert "compiled kernels can't be cached" in line
    assert "XDG_CACHE_HOME" in line
