"""How attention is chosen: what is tried in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import attention

from hf_triton.text_generation.forward.gpu import backends
from hf_triton.text_generation.forward.gpu.backends import (
    AttentionCase,
    flash_attention,
    select_attention,
)
from hf_triton.text_generation.forward.paged.attention import Attend
from hf_triton.text_generation.forward.paged.plain_attention import plain_attention
from hf_triton.text_generation.forward.transformers.packed_attention import AttentionRule

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
PLAIN = AttentionCase(4, 2, 64, 64, torch.float32, AttentionRule(0.125), has_sinks=False)
CASES = {
    "plain": PLAIN,
    "window": replace(PLAIN, rule=AttentionRule(0.125, window=4)),
    "softcap": replace(PLAIN, rule=AttentionRule(0.125, softcap=2.0)),
    "sinks": replace(PLAIN, rule=AttentionRule(0.125, window=4), has_sinks=True),
    "bfloat16": replace(PLAIN, dtype=torch.bfloat16, kv_heads=1, key_dim=80),
}


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends for a GPU are checked here."""
    check = backends._check
    monkeypatch.setattr(backends, "_check", lambda attend, case, _: check(attend, case, CPU))


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    window_size: tuple[int, int],
    causal: bool,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, None]:
    """As FlashAttention computes it: token by token, from the block table."""
    assert causal
    assert block_table.shape[1] * 16 >= max_seqlen_k
    out = torch.empty(*q.shape[:2], v.shape[-1])
    for sequence, length in enumerate(seqused_k.tolist()):
        first, last = cu_seqlens_q[sequence : sequence + 2].tolist()
        assert last - first <= max_seqlen_q
        keys, values = (x[block_table[sequence].long()].flatten(0, 1) for x in (k, v))
        for token in range(first, last):
            end = length - (last - token) + 1
            start = max(0, end - 1 - window_size[0]) if window_size[0] >= 0 else 0
            group = q.shape[1] // k.shape[2]
            seen = keys[start:end].repeat_interleave(group, 1)
            scores = torch.einsum("hd,nhd->hn", q[token], seen) * softmax_scale
            scores = softcap * torch.tanh(scores / softcap) if softcap else scores
            seen = values[start:end].repeat_interleave(group, 1)
            out[token] = torch.einsum("hn,nhd->hd", scores.softmax(-1), seen)
    return out, None


@pytest.mark.parametrize("name", ["plain", "window", "softcap"])
def test_flash_attention_is_given_what_it_takes(name: str) -> None:
    backends._check(flash_attention(flash), CASES[name], CPU)


def test_what_a_function_does_not_take_is_not_left_out() -> None:
    with pytest.raises(NotImplementedError, match="it takes no s_aux"):
        backends._check(flash_attention(flash), CASES["sinks"], CPU)


@pytest.mark.parametrize("name", CASES)
def test_our_kernel_agrees_with_plain_attention(name: str) -> None:
    pytest.importorskip("triton")
    backends._check(backends._own_kernel(), CASES[name], CPU)


def without_windows(q: Any, keys: Any, values: Any, step: Any, rule: AttentionRule) -> Any:
    return plain_attention(q, keys, values, step, AttentionRule(rule.scale))


def not_installed() -> Attend:
    raise ImportError("the package is not installed")


@pytest.mark.usefixtures("on_the_cpu")
def test_the_first_that_agrees_in_all_cases_is_taken(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    def tried(_: torch.device) -> Iterator[tuple[str, Callable[[], Attend]]]:
        yield "first", not_installed
        yield "second", lambda: without_windows
        yield "third", lambda: flash_attention(flash)
        yield "fourth", lambda: plain_attention

    monkeypatch.setattr(backends, "backends", tried)
    found = select_attention(lambda: {CASES["plain"], CASES["window"]}, CUDA)
    assert "flash_attention" in found.__qualname__  # type: ignore[attr-defined]
    (line,) = log_lines
    assert line.startswith(
        "I attention by third; not first: ImportError: the package is not installed; not second: "
        "ValueError: differs by 0."
    )


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("attend, active", [(without_windows, None), (plain_attention, "tried")])
def test_what_torch_was_given_for_a_backend_goes_where_that_is_refused(
    attend: Attend, active: str | None, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    def load() -> Attend:
        attention.activate_flash_attention_impl("tried")
        return attend

    handle: Any = SimpleNamespace(remove=lambda: None)
    attention.register_flash_attention_impl("tried", register_fn=lambda: handle)
    monkeypatch.setattr(backends, "backends", lambda _: iter([("first", load)]))
    try:
        select_attention(lambda: {CASES["window"]}, CUDA)
        assert attention.current_flash_attention_impl() == active
    finally:
        attention.restore_flash_attention_impl()


@pytest.mark.usefixtures("on_the_cpu")
def test_where_none_agrees_attention_is_plain(
    monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(backends, "backends", lambda _: iter([("first", not_installed)]))
    assert select_attention(lambda: {PLAIN}, CUDA) is plain_attention
    (line,) = log_lines
    assert line.startswith("W attention by torch's operators, slowly; first: ImportError")


def test_on_a_cpu_nothing_is_tried(log_lines: list[str]) -> None:
    assert select_attention(lambda: pytest.fail("tried"), CPU) is plain_attention
    assert log_lines == []
