"""Updates states in a packed forward on the CPU by compiled convolutions and recurrences. Unlike
transformers' own, these scans go on from a state, so prompts are computed in chunks.

Each function has the name and arguments of transformers' own (which come from causal-conv1d,
mamba-ssm and flash-linear-attention), with a batch of one row. It knows from the step where
sequences end and where their states are; what transformers gives and wants back is nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from hf_triton.runtime.kernels.compiled_loops import ThreadTeam, bits_of, load_kernel
from hf_triton.runtime.kernels.layout import CHANNELS
from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.step import PagedStep
from .row import NO_LIMIT, RowFunctions, Run, UnsupportedStatesError, runs_of

_DTYPES = (torch.float32, torch.bfloat16)
_SILU = ("silu", "swish")


class CompiledFunctions(RowFunctions):
    """``runs`` (count, 6) int64 are the first numbers of each ``Run`` of the step."""

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        self.runs, self.num_decodes = torch.empty(0, 6, dtype=torch.int64), 0
        self._team = ThreadTeam(torch.get_num_threads())

    def begin(self, step: PagedStep) -> None:
        self.num_decodes = num = step.num_decodes
        decodes = [Run(row, 1, slot) for row, slot in enumerate(step.slots[:num].tolist())]
        self.runs = torch.tensor([run[:6] for run in (*decodes, *runs_of(step.chunks, num))])
        super().begin(step)

    def _sized(self, kind: str, *sizes: int) -> torch.Tensor:
        """The state of the call, (slots, ...), which has to be (slots, *sizes, ...)."""
        stored = self._state(kind)
        if stored.shape[1 : 1 + len(sizes)] != sizes:
            raise UnsupportedStatesError(
                f"a {kind} state of {tuple(stored.shape[1:])}, not {sizes}"
            )
        return stored

    def causal_conv1d_fn(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """hidden_states (1, channels, tokens), weight (channels, kernel size) -> like the first."""
        channels, size = weight.shape
        x = _rows(hidden_states[0].t())
        stored = self._sized("conv", channels)
        length = stored[0].numel() // channels
        if activation not in (None, *_SILU):
            raise UnsupportedStatesError(f"its convolution's activation is {activation}")
        _check_dtype(x.dtype, stored)
        out = x.new_empty(x.shape)
        taps, offsets = weight.float().t().contiguous(), None if bias is None else bias.float()
        self._run(
            "conv",
            x.dtype,
            CHANNELS,
            *(channels, size, x.data_ptr(), x.stride(0), stored.data_ptr(), length),
            *(taps.data_ptr(), 0 if offsets is None else offsets.data_ptr(), out.data_ptr()),
            activation is not None,
        )
        return out.t().unsqueeze(0)

    def torch_chunk_gated_delta_rule(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """query and key (1, tokens, key heads, key dim), value (1, tokens, heads, dim), g and beta
        (1, tokens, heads) -> like value. g may be (1, tokens, heads, key dim).
        """
        q, k, v = (_headed(states[0]) for states in (query, key, value))
        (tokens, key_heads, size), (heads, dim) = k.shape, v.shape[1:]
        stored = self._sized("recurrent", heads, size, dim)
        q, k = q.to(v.dtype), k.to(v.dtype)
        gates, rates = g[0].float().contiguous(), beta[0].to(v.dtype).float().contiguous()
        _check_dtype(torch.float32, stored)
        out = torch.empty(tokens, heads, dim)
        self._run(
            "recurrence",
            v.dtype,
            4 * size,
            *(heads, dim, size, heads // key_heads, 1, v.data_ptr(), k.data_ptr(), q.data_ptr()),
            *(v.stride(0), k.stride(0), q.stride(0), use_qk_l2norm_in_kernel, bits_of(size**-0.5)),
            *(rates.data_ptr(), gates.data_ptr(), gates.dim() == 3, True, stored.data_ptr()),
            *(0, out.data_ptr(), 0, 0),
        )
        out = out.to(v.dtype)
        return out.unsqueeze(0), out

    chunk_kimi_delta_attention = torch_chunk_gated_delta_rule

    def mamba2_chunk_scan(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        decays: torch.Tensor,
        into: torch.Tensor,
        out_of: torch.Tensor,
        dt_bias: torch.Tensor,
        dt_limit: tuple[float, float] = NO_LIMIT,
        **given: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden_states (1, tokens, heads, dim), dt (1, tokens, heads), A, D and dt_bias (heads,),
        B and C (1, tokens, groups, state size) -> (1, tokens, heads, dim) float32.
        """
        x, b, c = (_headed(states[0]) for states in (hidden_states, into, out_of))
        (tokens, heads, dim), (groups, size) = x.shape, b.shape[1:]
        stored = self._sized("recurrent", heads, dim, size)
        _check_dtype(x.dtype, b, c)
        _check_dtype(torch.float32, stored)
        steps = F.softplus(dt[0] + dt_bias.to(dt.dtype)).float().contiguous()
        if tuple(dt_limit) != NO_LIMIT:  # generate clamps its prompt's alone
            self.clamps_prompts = True
            steps[self.num_decodes :].clamp_(*dt_limit)
        decays, skips = decays.float().contiguous(), given["D"].float().contiguous()
        out = torch.empty(tokens, heads, dim)
        self._run(
            "recurrence",
            x.dtype,
            4 * size,
            *(heads, dim, size, heads // groups, 1, x.data_ptr(), b.data_ptr(), c.data_ptr()),
            *(x.stride(0), b.stride(0), c.stride(0), False, bits_of(1), steps.data_ptr()),
            *(decays.data_ptr(), False, False, stored.data_ptr(), skips.data_ptr()),
            *(out.data_ptr(), 0, 0),
        )
        return out.unsqueeze(0), out

    def mamba_selective_scan(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        decays: torch.Tensor,
        into: torch.Tensor,
        out_of: torch.Tensor,
        z: torch.Tensor,
        delta_bias: torch.Tensor,
        **given: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden_states, dt and z (1, channels, tokens), A (channels, state size), B and C
        (1, state size, tokens), D and delta_bias (channels,) -> (1, channels, tokens).
        """
        x, b, c, gate = (_rows(states[0].t()) for states in (hidden_states, into, out_of, z))
        (tokens, channels), size = x.shape, b.shape[1]
        stored = self._sized("recurrent", channels, size)
        _check_dtype(x.dtype, b, c, gate)
        _check_dtype(torch.float32, stored)
        steps = F.softplus(dt[0].t() + delta_bias.to(dt.dtype)).float().contiguous()
        decays, skips = decays.float().contiguous(), given["D"].float().contiguous()
        out = x.new_empty(tokens, channels)
        self._run(
            "recurrence",
            x.dtype,
            4 * size,
            *(channels, 1, size, channels, CHANNELS, x.data_ptr(), b.data_ptr(), c.data_ptr()),
            *(x.stride(0), b.stride(0), c.stride(0), False, bits_of(1), steps.data_ptr()),
            *(decays.data_ptr(), True, False, stored.data_ptr(), skips.data_ptr()),
            *(out.data_ptr(), gate.data_ptr(), gate.stride(0)),
        )
        return out.t().unsqueeze(0), out

    def _run(self, name: str, dtype: torch.dtype, scratch: int, *arguments: int) -> None:
        """``scratch`` float32 of each thread are the kernel's last argument."""
        if dtype not in _DTYPES:
            raise UnsupportedStatesError(f"it is {dtype}")
        kernel = load_kernel(name, dtype)
        last = self._team.scratch(scratch).data_ptr()
        self._team.run(kernel, self.runs.data_ptr(), len(self.runs), *arguments, last)


def _check_dtype(dtype: torch.dtype, *tensors: torch.Tensor) -> None:
    if any(tensor.dtype != dtype for tensor in tensors):
        raise UnsupportedStatesError(f"{[tensor.dtype for tensor in tensors]} beside {dtype}")


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x (tokens, size) with contiguous rows."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _headed(x: torch.Tensor) -> torch.Tensor:
    """x (tokens, heads, dim) with contiguous rows of heads."""
    return x if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1] else x.contiguous()
