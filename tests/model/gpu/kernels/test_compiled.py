"""The kernels, compiled for several cards as the product launches them: nothing spilled, and no
more shared memory than a program may have there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
import triton

from hf_triton.text_generation.forward.gpu import ops
from hf_triton.text_generation.forward.gpu.launching import Card, Launch, keep_compiled
from tests.model.gpu.kernels.compiling import Recorded, compiled, unaligned

# KiB of shared memory that a program may take: CUDA C Programming Guide, "Technical Specifications
# per Compute Capability".
SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ALL = (80, 86, 89, 90)
# heads, kv_heads, key_dim, value_dim, dtype, window, softcap, has sinks; the cards it is tried for,
# each kind of product on the least shared memory and on the newest instructions
LAYERS = {
    "llama-3-8b": ((32, 8, 128, 128, BF16, 0, 0.0, False), (86, 90)),
    "gemma-2": ((8, 4, 256, 256, BF16, 4096, 50.0, False), (86,)),
    "gpt-oss": ((64, 8, 64, 64, BF16, 128, 0.0, True), (90,)),
    "phi-2": ((32, 32, 80, 80, F16, 0, 0.0, False), (75, 89)),
    "deepseek": ((16, 16, 192, 128, BF16, 0, 0.0, False), (80,)),
    "falcon-7b": ((71, 1, 64, 64, BF16, 0, 0.0, False), (86,)),
    "float32": ((9, 3, 64, 64, F32, 0, 0.0, False), (86,)),
    "float32-wide": ((32, 8, 128, 128, F32, 4096, 0.0, False), (89,)),
    "float32-gemma-2": ((8, 4, 256, 256, F32, 4096, 50.0, False), (90,)),
}
CASES = [(name, card) for name, (_, cards) in LAYERS.items() for card in cards]
QUICK = [("llama-3-8b", 90), ("phi-2", 75), ("float32", 86)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        yield


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The launches that operators ask for, none of which runs."""
    launches: list[Recorded] = []

    def record(
        kernel: object, grid: object, how: Launch, *arguments: object, **more: object
    ) -> None:
        if "UPCAST" in more:
            more["UPCAST"] = False  # the interpreter's alone
        launches.append(Recorded(kernel, how, arguments, more))

    monkeypatch.setattr(ops, "launch", record)
    return launches


def check(launches: list[Recorded], capability: int) -> None:
    for launch in launches:
        arguments = zip(launch.kernel.arg_names, launch.arguments, strict=False)
        numbers = {n for n, one in arguments if getattr(one, "dtype", None) == torch.int32}
        assert numbers <= unaligned(launch.kernel)  # views of a step's buffer lie anywhere
        resources = compiled(launch, capability)
        assert (resources.stack, resources.local) == (0, 0), (launch, resources)
        assert resources.shared <= SHARED_KIB[capability] * 1024, (launch, resources)


@pytest.mark.parametrize("layer, capability", CASES)
def test_attention_compiles_without_spills(
    layer: str, capability: int, recorded: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(divmod(capability, 10), num_multiprocessors=100)
    monkeypatch.setattr(ops, "card_of", lambda _: card)
    heads, kv_heads, key_dim, value_dim, dtype, window, softcap, has_sinks = LAYERS[layer][0]
    qkv = torch.empty(1, (heads + 2 * kv_heads) * key_dim, dtype=dtype)
    q = qkv[:, : heads * key_dim].unflatten(1, (heads, key_dim))
    keys = torch.empty(1, 16, kv_heads, key_dim, dtype=dtype)
    values = torch.empty(1, 16, kv_heads, value_dim, dtype=dtype)
    numbers = torch.empty(1, dtype=torch.int32)
    sinks = torch.empty(heads, dtype=dtype) if has_sinks else None
    step = (numbers, numbers, numbers, numbers, 512)
    ops.paged_attention(q, keys, values, *step, key_dim**-0.5, window, softcap, sinks)
    names = [launch.kernel.__name__ for launch in recorded]
    assert names.count("paged_attention") == 2
    check(recorded, capability)


@pytest.mark.parametrize(
    "dtype, capability", [*((BF16, card) for card in ALL), (F32, 80), (F32, 90)], ids=str
)
def test_what_lies_between_products_compiles_without_spills(
    dtype: torch.dtype, capability: int, recorded: list[Recorded]
) -> None:
    heads, kv_heads, dim = 32, 8, 128
    hidden, norms = torch.empty(1, 8192, dtype=dtype), torch.empty(3, dim, dtype=dtype)
    qkv = torch.empty(1, (heads + 2 * kv_heads) * dim, dtype=dtype)
    stored = torch.empty(1, 16, kv_heads, dim, dtype=dtype)
    numbers, turns = torch.empty(1, dtype=torch.int32), torch.empty(1, 32, dtype=dtype)
    ops.add_rms_norm(hidden, hidden, hidden[0], 1e-5)
    where = (numbers, numbers, turns, turns)
    ops.rotate_and_store(qkv, stored, stored, *where, norms, 1e-5)
    ops.silu_mul(hidden)
    assert len(recorded) == 3
    check(recorded, capability)


@pytest.mark.parametrize(
    "dtype, capability", [*((BF16, card) for card in ALL), (F16, 80), (F32, 90)], ids=str
)
def test_draws_compile_without_spills(
    dtype: torch.dtype, capability: int, recorded: list[Recorded]
) -> None:
    ids = torch.empty(1, dtype=torch.int64)
    ops.draw(torch.empty(1, 128256, dtype=dtype), ids, torch.empty(4, 1), ids, ids)
    assert len(recorded) == 1
    check(recorded, capability)


def test_compiled_kernels_are_kept_with_the_other_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR")
    keep_compiled.__wrapped__()
    assert triton.knobs.cache.dir == str(tmp_path / "hf-triton/kernels/openai-triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    triton.knobs.cache.dir = "/elsewhere"
    keep_compiled.__wrapped__()
    assert triton.knobs.cache.dir == "/elsewhere"
