"""Chooses attention over pages on a GPU: the first of torch's ``varlen_attn``, FlashAttention of
the ``kernels`` package and plain attention that agrees with the last for the layers of the model.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import torch

from hf_triton.runtime import log
from hf_triton.runtime.trial import first_agreeing
from hf_triton.text_generation.engine.step import PrefillChunk, Step
from hf_triton.text_generation.memory.pages import PAGE_SIZES, num_pages_of
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence

from .attention import Attend, AttentionRule, plain_attention
from .step import PagedStep, lay_out_pages

_FLASH_ATTENTION = {  # of the kernels package
    "FlashAttention 3": "kernels-community/vllm-flash-attn3",
    "FlashAttention 2": "kernels-community/flash-attn2",
}
# The largest difference from plain attention, as a share of the whole.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
# Steps that are tried, as (tokens of a sequence, how many it attends to) each: decodes alone, and
# decodes with chunks. Some end in a page's middle, some at its end.
_DECODES = ((1, 5), (1, 700), (1, 256), (1, 300))
_MIXED = ((1, 5), (1, 300), (20, 270), (3, 3), (40, 512))


@dataclass(frozen=True)
class AttentionCase:
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    rule: AttentionRule
    has_sinks: bool


def noting(cases: set[AttentionCase]) -> Attend:
    """Plain attention that adds each layer's case to ``cases``."""

    def attend(
        q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *given: Any
    ) -> torch.Tensor:
        rule = given[-1]
        sizes = (q.shape[1], keys.shape[2], keys.shape[3], values.shape[3])
        case = AttentionCase(*sizes, q.dtype, replace(rule, sinks=None), rule.sinks is not None)
        cases.add(case)
        return plain_attention(q, keys, values, *given)

    return attend


def select_attention(cases: Callable[[], set[AttentionCase]], device: torch.device) -> Attend:
    """The first that agrees with plain attention in all cases; logs which, and why earlier ones
    don't. Plain attention on a CPU and without cases.
    """
    tried = cases() if device.type == "cuda" else set()
    if not tried:
        return plain_attention
    loaded: Callable[[Callable[[], Attend]], Attend] = cache(lambda load: load())

    def differs(load: Callable[[], Attend]) -> float:
        return max(difference(loaded(load), case, device) for case in tried)

    found, refusals = first_agreeing(
        candidates(device),
        differs,
        min(TOLERANCE[case.dtype] for case in tried),
        taken="attention by",
        told="differs by {:.2g} from plain attention",
        names_first=True,
    )
    if found is None:
        log.warn(f"attention gathers pages, slowly and without CUDA graphs; {refusals}")
        return plain_attention
    return loaded(found)


def candidates(device: torch.device) -> Iterator[tuple[str, Callable[[], Attend]]]:
    """Names and loaders, which may raise anything."""
    yield "varlen_attn", lambda: varlen_attention
    for name, repo in _FLASH_ATTENTION.items():
        yield name, partial(_from_kernels, repo, device)


def varlen_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PagedStep, rule: AttentionRule
) -> torch.Tensor:
    """See ``Attend``. Raises for rules that it does not take. FlashAttention 2, which torch has,
    wants the sums of key lengths too. It splits a sequence's keys over thread blocks where decodes
    have more heads than keys and no window; for others that writes wrong rows
    (https://github.com/pytorch/pytorch/issues/194167), so they get one block each.
    """
    from torch.nn.attention import varlen

    if rule.softcap or rule.chunk or rule.sinks is not None:
        raise NotImplementedError("it takes no soft caps, no chunks and no sinks")
    is_shared = step.max_query_len == 1 and not rule.window and q.shape[1] > keys.shape[2]
    out = varlen.varlen_attn(
        *(q, keys, values, step.starts, step.key_starts, step.max_query_len, step.most_keys),
        scale=rule.scale,
        # To the left and to the right of a token, -1 for all; a decode is its sequence's last.
        window_size=(-1, -1) if is_shared else (rule.window - 1 if rule.window else -1, 0),
        enable_gqa=True,
        seqused_k=step.lengths,
        block_table=step.block_table,
        num_splits=None if is_shared else 1,
    )
    assert isinstance(out, torch.Tensor)
    return out


def _from_kernels(repo: str, device: torch.device) -> Attend:
    if find_spec("kernels") is None:
        raise ImportError("the package kernels is not installed")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise RuntimeError("it needs a GPU of compute capability 8.0 or more")
    from transformers.integrations.hub_kernels import get_kernel
    from transformers.modeling_flash_attention_utils import FLASH_ATTN_KERNEL_VERSIONS

    kernel = get_kernel(repo, version=FLASH_ATTN_KERNEL_VERSIONS[repo])
    return flash_attention(kernel.flash_attn_varlen_func)


def flash_attention(function: Callable[..., Any]) -> Attend:
    """Attention by a ``flash_attn_varlen_func``, whose arguments differ by version."""
    known = inspect.signature(function).parameters

    def attend(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: PagedStep,
        rule: AttentionRule,
    ) -> torch.Tensor:
        if rule.chunk:
            raise NotImplementedError("it takes no chunks")
        has_lengths = "seqused_k" in known
        arguments = {
            "cu_seqlens_q": step.starts,
            "max_seqlen_q": step.max_query_len,
            "max_seqlen_k": step.most_keys,
            **({"seqused_k": step.lengths} if has_lengths else {"cu_seqlens_k": step.key_starts}),
            "block_table": step.block_table,
            "softmax_scale": rule.scale,
            "causal": True,
            "window_size": (rule.window - 1, 0) if rule.window else (-1, -1),
            **({"softcap": rule.softcap} if rule.softcap else {}),
            **({"s_aux": rule.sinks} if rule.sinks is not None else {}),
        }
        if missing := arguments.keys() - known.keys():
            raise NotImplementedError(f"it takes no {', '.join(sorted(missing))}")
        out = function(q, keys, values, **arguments)
        found: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return found

    return attend


def difference(attend: Attend, case: AttentionCase, device: torch.device) -> float:
    """The largest one from plain attention, as a share of the whole; infinite for NaN."""
    random, worst = torch.Generator().manual_seed(0), 0.0

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(device, case.dtype)

    for sequences in (_DECODES, _MIXED):
        step = _small_step(sequences, device)
        num_pages, page_size = step.cache.size.num_pages, step.cache.size.page_size
        q = normal(step.num_tokens, case.heads, case.key_dim)
        keys = normal(num_pages, page_size, case.kv_heads, case.key_dim)
        values = normal(num_pages, page_size, case.kv_heads, case.value_dim)
        for stored in (keys, values):
            _leave_nan(stored, step)
        rule = case.rule
        if case.has_sinks:
            rule = replace(rule, sinks=normal(case.heads))
        expected = plain_attention(q, keys, values, step, rule).float()
        got = attend(q, keys, values, step, rule).float()
        share = float(((got - expected).norm() / expected.norm()).item())
        worst = max(worst, float("inf") if share != share else share)
    return worst


def _leave_nan(stored: torch.Tensor, step: PagedStep) -> None:
    """Puts NaN where no token is."""
    stored[0] = torch.nan
    size = stored.shape[1]
    for pages, length in zip(step.block_table, step.lengths.tolist(), strict=True):
        stored[pages[(length - 1) // size], (length - 1) % size + 1 :] = torch.nan


def _small_step(counts: Items[tuple[int, int]], device: torch.device) -> PagedStep:
    """A step of sequences of (tokens, length) each, with pages out of order."""
    page_size, step, nobody = PAGE_SIZES[device.type], Step(), cast(Any, None)
    num_pages = page = sum(num_pages_of(length, page_size) for _, length in counts)
    for num_tokens, length in counts:
        sequence = Sequence([0] * length, SamplingParams(1), nobody, nobody, token_ids=[0])
        sequence.num_computed_tokens = length
        last, page = page, page - num_pages_of(length, page_size)
        sequence.pages = array("i", range(last, page, -1))
        if num_tokens == 1:
            step.decodes.append(sequence)
        else:
            step.prefills.append(PrefillChunk(sequence, length - num_tokens, length))
    size = SimpleNamespace(num_pages=num_pages + 1, page_size=page_size)
    return lay_out_pages(step, cast(Any, SimpleNamespace(size=size)), device)
