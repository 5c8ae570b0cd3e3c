"""Records one forward of a model: the inputs and the outputs of each module.

The attention function gives each token its own value, whatever the scores are: what reaches it are
the queries, keys and values that a runner has to compute, and what it gives reaches the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from hf_triton.runtime.attention import OwnAttention, attending, register
from hf_triton.runtime.errors import reason

from ..parts import Norm, UnsupportedLayersError

NUM_TOKENS = 5
ROWS = 2  # of tokens: all of one at the first position, all of the other at the last
_EPS = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_DEFAULT_EPS = 1e-5  # OLMo's has no attribute
_TIMES_EPS = 8  # of the dtype's last bit, which a norm may differ by
_SAME = 8 * torch.finfo(torch.float32).eps  # a sum in another order


@dataclass
class Attended:
    """A layer's call of its attention function; tensors are (ROWS, heads, NUM_TOKENS, dim)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    given: dict[str, Any]


@dataclass
class Call:
    """A module's call: the tensors it was given, the first that it gave back, and all of them;
    and the calls within. Copies, for modules that change tensors in place.
    """

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor] = field(default_factory=list)
    inner: list[Call] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)
    parent: Call | None = None

    @property
    def input(self) -> torch.Tensor:
        """The first tensor of numbers."""
        floats = [tensor for tensor in self.inputs if tensor.is_floating_point()]
        return floats[0] if floats else torch.empty(0)

    @property
    def output(self) -> torch.Tensor:
        return self.outputs[0] if self.outputs else torch.empty(0)

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    @property
    def changes_nothing(self) -> bool:
        """A dropout does not, but for training."""
        is_bare = not any(True for _ in self.module.parameters())
        return is_bare and same(self.input, self.output)

    def unsupported(self) -> UnsupportedLayersError:
        parts = sorted({call.kind for call in self.inner or [self]})
        return UnsupportedLayersError(f"{self.kind} is made of {', '.join(parts)}")

    def walk(self) -> Iterator[Call]:
        yield self
        for call in self.inner:
            yield from call.walk()

    def leaves(self) -> list[Call]:
        """The calls within that call no other. A layer with adapters is one."""
        if not self.inner or getattr(self.module, "is_one_layer", False):
            return [] if self.changes_nothing else [self]
        return [leaf for call in self.inner for leaf in call.leaves()]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if both hold the same numbers, in whatever shape."""
    return a.numel() == b.numel() > 0 and torch.equal(a.reshape(-1), b.reshape(-1))


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if both hold nearly the same numbers: a sum in another order."""
    if a.numel() != b.numel():
        return False
    error = (a.reshape(-1).float() - b.reshape(-1).float()).abs().max()
    return bool(error <= 4 * torch.finfo(b.dtype).eps * b.float().abs().max())


def record(model: Any, ends: tuple[int, int], **inputs: torch.Tensor | bool) -> Call:
    """The call of the model on a few tokens at each of two positions, its first and its last.
    ``inputs``: what else it is given. Raises UnsupportedLayersError: the model takes no positions,
    or no such attention function.
    """
    token_ids = torch.arange(NUM_TOKENS, device=model.device).repeat(ROWS, 1)
    stack = [Call(None, (), {}, [])]

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        call = Call(module, args, kwargs, _tensors([*args, *kwargs.values()]), parent=stack[-1])
        stack[-1].inner.append(call)
        stack.append(call)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        stack.pop().outputs = _tensors([output])

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **given: Any,
    ) -> tuple[torch.Tensor, None]:
        stack[-1].attended.append(Attended(query.clone(), key.clone(), value.clone(), given))
        groups = query.shape[1] // value.shape[1]
        return value.repeat_interleave(groups, dim=1).transpose(1, 2).contiguous(), None

    own_attention = OwnAttention(model)
    with ExitStack() as hooks, attending(attend):
        for module in model.modules():
            entering = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
            hooks.callback(entering.remove)
            hooks.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        model.set_attn_implementation(register())
        hooks.callback(own_attention.restore)
        positions = torch.tensor(ends, device=model.device).unsqueeze(1).expand(ROWS, NUM_TOKENS)
        try:
            model(input_ids=token_ids, position_ids=positions, **inputs)
        except Exception as error:  # whatever an unknown architecture raises
            raise UnsupportedLayersError(f"{type(error).__name__}: {reason(error)}") from error
    (call,) = stack[0].inner
    return call


def _tensors(values: Any) -> list[torch.Tensor]:
    """Copies of the tensors in a list, tuple or output of a model."""
    return [leaf.clone() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def read_norm(call: Call) -> Norm | None:
    """The norm of the last dimension that the call computed, None where it computed anything else.
    Among forms that agree, Llama's. Raises UnsupportedLayersError: its weight is not as large as
    what it norms.
    """
    x, y = call.input, call.output
    if x.shape != y.shape or not x.numel():
        return None
    forms = _forms(call.module, x)
    errors = [max(_error(norm, x, y), _SAME) for norm in forms]
    if not forms or min(errors) > _TIMES_EPS * torch.finfo(y.dtype).eps:
        return None
    return forms[errors.index(min(errors))]


def _forms(module: Any, x: torch.Tensor) -> list[Norm]:
    parameters = dict(module.named_parameters(recurse=False))
    weight, bias = parameters.pop("weight", None), parameters.pop("bias", None)
    if parameters or any(True for _ in module.children()):
        return []
    eps = next((e for name in _EPS if isinstance(e := getattr(module, name, None), float)), None)
    if eps is None and weight is not None:
        return []
    weight = x.new_ones(x.shape[-1]) if weight is None else weight.detach()
    if x.shape[-weight.dim() :] != weight.shape:
        if weight.dim() > 1:
            return []
        raise UnsupportedLayersError(f"a norm of {tuple(weight.shape)} for {x.shape[-1]} numbers")
    eps = _DEFAULT_EPS if eps is None else eps
    forms = []
    if bias is None and weight.dtype == x.dtype:
        forms.append(Norm(weight.float().contiguous(), eps))
    wide_bias = None if bias is None else bias.detach().float().contiguous()
    for offset, has_mean in itertools.product((0, 1), (False, True)):
        wide = (weight.float() + offset).contiguous()
        forms.append(Norm(wide, eps, wide_bias, has_mean, is_wide=True))
    return forms


def _error(norm: Norm, x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference of ``y`` from what the kernels compute of x (..., size), as a share of
    the largest number.
    """
    normalised: Any = F.layer_norm if norm.has_mean else F.rms_norm
    made = normalised(x.float(), x.shape[-1:], eps=norm.eps)
    made = (made if norm.is_wide else made.to(x.dtype)) * norm.weight
    made = made if norm.bias is None else made + norm.bias
    error = (made.to(x.dtype).float() - y.float()).abs().max()
    return float(error / y.float().abs().max().clamp(min=1e-30))
