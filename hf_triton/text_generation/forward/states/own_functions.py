"""Updates states in a packed forward on any device by the model's own functions: the decodes are
one batch of what updates a state by a token, and each chunk is a call of what scans many.
transformers takes kernels of causal-conv1d, mamba-ssm or flash-linear-attention for them where
those are installed. Steps of decodes alone fit a CUDA graph: the host reads nothing, and what they
launch depends on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from hf_triton.text_generation.memory.paged_cache import PagedCache

from ..paged.step import PagedStep
from .row import NO_LIMIT, RowFunctions, Run, runs_of

# The functions that a model's source calls for one token, by those for many.
_UPDATES = {
    "causal_conv1d_fn": "causal_conv1d_update",
    "torch_chunk_gated_delta_rule": "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention": "recurrent_kimi_delta_attention",
    "mamba2_chunk_scan": "mamba2_selective_state_update",
    "mamba_selective_scan": "mamba_selective_state_update",
}
_OnState = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class _Own(NamedTuple):
    scan: Callable[..., Any]
    update: Callable[..., Any]


class OwnFunctions(RowFunctions):
    """Calls the model's own functions, decodes together and each chunk by itself. Arguments and
    results are those of CompiledFunctions (compiled_functions.py).
    """

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        self._step: PagedStep | None = None
        self._chunks: list[Run] = []
        self._in_prompt = False

    def begin(self, step: PagedStep) -> None:
        self._step, self._chunks = step, runs_of(step.chunks, step.num_decodes)
        super().begin(step)

    def in_place_of(self, name: str, source: dict[str, Any]) -> Callable[..., Any]:
        own = _Own(source[name], source[_UPDATES[name]])
        return partial(getattr(self, name), own)

    def causal_conv1d_fn(
        self,
        own: _Own,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **given: Any,
    ) -> torch.Tensor:

        def update(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return own.update(x, state, weight, bias, activation=activation), state

        def scan(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            whole = torch.cat([state, x], dim=-1)
            out = own.scan(whole, weight, bias, activation=activation, **given)
            return out[:, :, state.shape[-1] :], whole[:, :, -state.shape[-1] :]

        return self._over_row("conv", 2, update, scan, hidden_states)

    def torch_chunk_gated_delta_rule(
        self,
        own: _Own,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        **given: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:

        def by(function: Callable[..., Any]) -> _OnState:
            def go_on(state: torch.Tensor, *row: torch.Tensor) -> Any:
                q, k, v, decay, rate = row
                more = {**given, "initial_state": state, "output_final_state": True}
                return function(q, k, v, g=decay, beta=rate, **more)

            return go_on

        row = query, key, value, g, beta
        out = self._over_row("recurrent", 1, by(own.update), by(own.scan), *row)
        return out, out

    chunk_kimi_delta_attention = torch_chunk_gated_delta_rule

    def mamba2_chunk_scan(
        self,
        own: _Own,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        decays: torch.Tensor,
        into: torch.Tensor,
        out_of: torch.Tensor,
        dt_bias: torch.Tensor,
        dt_limit: tuple[float, float] = NO_LIMIT,
        **given: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.clamps_prompts = tuple(dt_limit) != NO_LIMIT  # generate clamps its prompt's alone
        more = {**given, "dt_bias": dt_bias, "return_final_states": True}

        def update(state: torch.Tensor, *row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, steps, b, c = (one[:, 0] for one in row)  # (rows, heads or groups, ...)
            dim, size = state.shape[2:]
            wide = decays[:, None, None].expand(-1, dim, size)
            steps, bias, skips = (
                one.unsqueeze(-1).expand(*one.shape, dim) for one in (steps, dt_bias, given["D"])
            )
            ways = {"z": None, "dt_bias": bias, "dt_softplus": True}
            return own.update(state, x, steps, wide, b, c, skips, **ways).unsqueeze(1), state

        def scan(state: torch.Tensor, *row: torch.Tensor) -> Any:
            x, steps, b, c = row
            limit = dt_limit if self._in_prompt else NO_LIMIT
            ways = {**more, "initial_states": state, "dt_limit": limit}
            return own.scan(x, steps, decays, b, c, **ways)

        out = self._over_row("recurrent", 1, update, scan, hidden_states, dt, into, out_of)
        return out, out

    def mamba_selective_scan(
        self,
        own: _Own,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        decays: torch.Tensor,
        into: torch.Tensor,
        out_of: torch.Tensor,
        z: torch.Tensor,
        delta_bias: torch.Tensor,
        **given: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        more = {**given, "delta_bias": delta_bias, "return_last_state": True}

        def update(state: torch.Tensor, *row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, steps, b, c, gate = (one[:, :, 0] for one in row)
            ways = {"z": gate, "dt_bias": delta_bias, "dt_softplus": True}
            return own.update(state, x, steps, decays, b, c, given["D"], **ways).unsqueeze(
                -1
            ), state

        def scan(state: torch.Tensor, *row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, steps, b, c, gate = row
            out, last = own.scan(x, steps, decays, b, c, z=gate, **more)
            # It begins with zeros; what the state before adds to each token is linear in it.
            sums = F.softplus(steps + delta_bias.to(steps.dtype)[:, None]).float().cumsum(-1)
            left = torch.exp(decays[:, None] * sums[0].unsqueeze(-1))  # (channels, tokens, size)
            left = left * state[0].float().unsqueeze(1)
            added = torch.einsum("cts,st->ct", left, c[0].float()) * F.silu(gate[0].float())
            return out + added.to(out.dtype), last + left[:, -1]

        row = hidden_states, dt, into, out_of, z
        out = self._over_row("recurrent", 2, update, scan, *row)
        return out, out

    def _over_row(
        self, kind: str, dim: int, update: _OnState, scan: _OnState, *row: torch.Tensor
    ) -> torch.Tensor:
        """Runs ``update`` for the batch of decodes, then ``scan`` for each chunk -> the outputs in
        a row. The tokens of ``row`` lie along ``dim``.
        """
        assert self._step is not None
        stored, outputs = self._state(kind), []
        step = self._step.on(stored.device)
        num_decodes = self._chunks[0].first if self._chunks else row[0].shape[dim]
        if num_decodes:
            batch = (one.narrow(dim, 0, num_decodes).transpose(0, dim) for one in row)
            rows = step.long_slots[:num_decodes]
            begins = step.begins[:num_decodes].view(-1, *[1] * (stored.dim() - 1))
            states = stored.index_select(0, rows).masked_fill_(begins, 0)
            out, states = update(states, *batch)
            stored.index_copy_(0, rows, states.to(stored.dtype))
            outputs.append(out.transpose(0, dim))
        for run in self._chunks:
            own = stored[run.slot].unsqueeze(0)
            state = torch.zeros_like(own) if run.begins else own
            start = 0
            for end in sorted({run.num_copied, run.num_prompt, run.num_tokens} - {0}):
                self._in_prompt = end <= run.num_prompt
                part = (one.narrow(dim, run.first + start, end - start) for one in row)
                out, state = scan(state, *part)
                outputs.append(out)
                if end == run.num_copied:
                    stored[run.copy].copy_(state[0])
                start = end
            own.copy_(state)
        return torch.cat(outputs, dim) if len(outputs) > 1 else outputs[0]
