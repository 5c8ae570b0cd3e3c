"""Adapters on a GPU: steps with them copy and wait as others do, steps without pay nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from hf_triton.text_generation.engines.in_flight import engine as in_flight
from hf_triton.text_generation.lora.linear import Adapter, Adapters
from hf_triton.text_generation.lora.rows import LowRank
from tests.model.gpu.fake.engine import FakeEngine, engine_on
from tests.model.gpu.fake.events import Log
from tests.model.gpu.fake.gpu import GIB, FakeGpu
from tests.model.gpu.tiny_models import tiny_on_gpu

NUM_ADAPTED = 5  # layers: two projections in each of two, and the head


@contextmanager
def adapted_engine(*, has_adapters: bool = True) -> Iterator[FakeEngine]:
    with FakeGpu(total_bytes=2 * GIB) as gpu:
        model = tiny_on_gpu("llama", num_hidden_layers=2)
        names = [f"model.layers.{i}.self_attn.{part}_proj" for i in range(2) for part in "qv"]
        linears = {name: model.get_submodule(name) for name in (*names, "lm_head")}
        parts = {
            name: LowRank(torch.zeros(8, one.in_features), torch.zeros(one.out_features, 8))
            for name, one in linears.items()
        }
        adapters = Adapters([Adapter(name, parts) for name in ("polite", "sql")])
        given = adapters if has_adapters else None
        with engine_on(gpu, model, given, max_num_batched_tokens=16) as engine:
            yield engine


def decode_step(fake: FakeEngine, *names: str | None) -> Log:
    sequences = [fake.sequence(10) for _ in names]
    for sequence, name in zip(sequences, names, strict=True):
        sequence.lora_name = name
    return fake.decode_step(*sequences)


def test_steps_with_adapters_copy_and_wait_no_more_than_others() -> None:
    with adapted_engine() as fake:
        plain = decode_step(fake, None, None, None)
        mixed = decode_step(fake, "polite", None, "sql")
        for kind in ("replay", "h2d", "d2h", "wait"):
            assert mixed.count(kind) == plain.count(kind), mixed.told(kind)
        assert (mixed.count("replay"), fake.gpu.problems) == (1, [])


def test_an_adapted_layer_adds_two_products_and_a_mask_where_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_flight, "with_cuda_graphs", lambda runner, *_: runner)
    with adapted_engine(has_adapters=False) as fake:
        without = decode_step(fake, None, None, None).count("kernel")
    with adapted_engine() as fake:
        plain = decode_step(fake, None, None, None).count("kernel")
        mixed = decode_step(fake, "polite", None, "sql").count("kernel")
    assert plain == without
    # And once a step: the sampled tokens' numbers; a mask for the layers, one for the head.
    assert mixed == plain + 3 * NUM_ADAPTED + 1 + 2
