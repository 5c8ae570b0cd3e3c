"""What each operator is to a GPU: a kernel, a copy, a wait, or nothing but another view."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.model.gpu.fake.recording import Recording

# What the host learns of a tensor, and waits for.
_READS = {
    getattr(torch.Tensor, name): name
    for name in ("tolist", "item", "__bool__", "__float__", "__int__", "__index__")
}
_LAUNCH_NOTHING = {
    "view",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "t",
    "slice",
    "select",
    "expand",
    "split",
    "split_with_sizes",
    "unbind",
    "detach",
    "alias",
    "as_strided",
    "lift_fresh",
    "_reshape_alias",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "unfold",
    "diagonal",
    "narrow",
    "view_as_real",
    "view_as_complex",
    "device",
    "detach_",
    "is_same_size",
    "sym_size",
}
_WHOLE = {"lift_fresh", "linear"}  # not taken apart further
# The size of their output is known on the device alone.
_SIZED_BY_VALUES = set(
    "nonzero masked_select _unique2 unique_consecutive unique_dim bincount".split()  # noqa: SIM905
)


def on_gpu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """The tensors of arguments: as pytree finds them, ten times as fast."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(*value)
        elif isinstance(value, dict):
            found += tensors_in(*value.values())
    return found


class Functions(TorchFunctionMode):
    """What must be seen before it falls apart into operators: reads, attention, pinned memory."""

    def __init__(self, gpu: Recording) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _READS and on_gpu(args[0]):
            return read(self.gpu, _READS[func], args[0])
        if func is F.scaled_dot_product_attention and on_gpu(args[0]):
            with self:
                return self.gpu.attended(*args, **kwargs)
        if func is torch.Tensor.is_pinned:
            return args[0].untyped_storage().data_ptr() in self.gpu.pinned
        if func is torch.Tensor.pin_memory:
            return self._pin(args[0].clone())
        if kwargs.pop("pin_memory", False):
            return self._pin(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.gpu.pinned.add(storage.data_ptr())
        weakref.finalize(storage, self.gpu.pinned.discard, storage.data_ptr())
        return tensor


def read(gpu: Recording, name: str, tensor: torch.Tensor) -> Any:
    """A copy out and a wait; the number is made up."""
    gpu.note("d2h", name, tensor)
    gpu.note("wait", name)
    number = 0.0 if tensor.dtype.is_floating_point else 0
    if name == "tolist":
        return np.full(tuple(tensor.shape), number).tolist()
    return gpu.truth() if name == "__bool__" or tensor.dtype == torch.bool else number


class Operators(TorchDispatchMode):
    """Runs operators on the CPU as they are, and those on the GPU on FakeTensors, logged."""

    def __init__(self, gpu: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in(args, kwargs)
        if not any(map(on_gpu, inputs)) and "cuda" not in str(kwargs.get("device")):
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if func.namespace == "aten" and name not in _WHOLE:
            # In inference mode composite operators come here whole: what they are made of is
            # launched.
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        handle: Callable[..., Any] = _HANDLED.get(name, _plain)
        out = handle(self.gpu, func, args, kwargs)
        for tensor in tensors_in(out):
            if on_gpu(tensor):
                self.gpu.live.saw(tensor)
        return out


def _faked(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The operator's output on FakeTensors."""
    with gpu.fake:
        if not all(isinstance(tensor, FakeTensor) for tensor in tensors_in(args, kwargs)):
            args, kwargs = tree_map(_without_values, (args, kwargs))
        return func(*args, **kwargs)


def _without_values(value: Any) -> Any:
    """A FakeTensor for a real one: with values it would be computed where there is no CUDA."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _plain(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name.split("::")[1]
    out = _faked(gpu, func, args, kwargs)
    if name not in _LAUNCH_NOTHING:
        gpu.note("kernel", name, next(iter(tensors_in(out)), None))
    return out


def _linear(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """One product, its bias added by the same kernel."""
    states, weight = args[0], args[1]
    with gpu.fake:
        out = states.new_empty(*states.shape[:-1], weight.shape[0])
    gpu.note("kernel", "linear", out)
    return out


def _copied(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """``copy_(target, source)``."""
    target, source, *rest = args
    non_blocking = bool(rest[0]) if rest else bool(kwargs.get("non_blocking"))
    if target.device.type == source.device.type:
        return _plain(gpu, func, args, kwargs)
    _note_copy(gpu, "copy_", source, target, non_blocking)
    if on_gpu(target):
        return _faked(gpu, func, args, kwargs)
    return target.zero_()  # what the GPU wrote is made up


def _moved(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """``_to_copy(source)`` to another device, dtype or layout."""
    (source,) = args
    target = torch.device(kwargs.get("device") or source.device)
    if target.type == source.device.type:
        return _plain(gpu, func, args, kwargs)
    non_blocking = bool(kwargs.pop("non_blocking", False))
    kwargs.pop("pin_memory", None)
    if target.type == "cuda":
        out = _faked(gpu, func, args, kwargs)
    else:
        out = torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
    _note_copy(gpu, "to", source, out, non_blocking)
    return out


def _note_copy(
    gpu: Recording, op: str, source: torch.Tensor, target: torch.Tensor, non_blocking: bool
) -> None:
    """A copy between host and device. It waits unless it was asked not to and the host's memory is
    pinned: aten/src/ATen/native/cuda/Copy.cu.
    """
    host = source if on_gpu(target) else target
    if host.device.type == "meta" or not host.numel():
        return
    is_pinned = host.untyped_storage().data_ptr() in gpu.pinned
    gpu.note("h2d" if on_gpu(target) else "d2h", op, target)
    if not (non_blocking and is_pinned):
        gpu.note("wait", f"{op} that blocks" if is_pinned else f"{op}, not pinned")


def _indexed(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """``index`` and ``index_put_``: a mask's size is read, an index on the host is copied, and so
    is a number that is put (``_index_put_impl_``).
    """
    target, indices, *rest = args
    masks = [t for t in tensors_in(indices) if t.dtype in (torch.bool, torch.uint8)]
    if masks and rest and not on_gpu(rest[0]) and rest[0].numel() == 1:
        return _plain(gpu, func, args, kwargs)  # masked_fill: canDispatchToMaskedFill
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and not on_gpu(index):
            with Operators(gpu):
                index = index.to(target.device)
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            found += _sized_by_values(gpu, "nonzero", index).unbind(1)
        else:
            found.append(index)
    if rest and isinstance(rest[0], torch.Tensor) and not on_gpu(rest[0]):
        with Operators(gpu):
            rest[0] = rest[0].to(target.device)
    return _plain(gpu, func, (target, found, *rest), kwargs)


def _sized_by_values(gpu: Recording, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The largest output that there may be, after a wait for its size."""
    gpu.note("kernel", name, tensor)
    gpu.note("d2h", name)
    gpu.note("wait", name)
    size = tensor.numel()
    with gpu.fake:
        if name == "nonzero":
            return torch.empty(size, tensor.dim(), dtype=torch.int64, device=tensor.device)
        return tensor.new_empty(size)


def _counted(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    return _sized_by_values(gpu, func._schema.name.split("::")[1], args[0])


def _repeated(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """``repeat_interleave`` by a tensor reads how long its output is, unless it is told."""
    if kwargs.get("output_size") is None:
        gpu.note("d2h", "repeat_interleave")
        gpu.note("wait", "repeat_interleave")
    return _plain(gpu, func, args, kwargs)


def _scalar(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """``_local_scalar_dense``: ``item`` where no function of Python's was called, as in a slice."""
    return read(gpu, "item", args[0])


def _compared(gpu: Recording, func: Any, args: Any, kwargs: Any) -> bool:
    """``torch.equal``."""
    gpu.note("kernel", "equal")
    gpu.note("d2h", "equal")
    gpu.note("wait", "equal")
    return gpu.truth()


def _grouped(gpu: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """``_grouped_mm``: one kernel in bfloat16 on Hopper and data-centre Blackwell, else a product
    for each group, whose sizes the host reads: aten/src/ATen/native/cuda/GroupedBlas.cpp.
    """
    offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
    if gpu.capability[0] not in (9, 10) or args[0].dtype != torch.bfloat16:
        gpu.note("d2h", "_grouped_mm", offsets)
        gpu.note("wait", "_grouped_mm")
    return _plain(gpu, func, args, kwargs)


_HANDLED: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "copy_": _copied,
    "_to_copy": _moved,
    "index": _indexed,
    "index_put": _indexed,
    "index_put_": _indexed,
    "_index_put_impl_": _indexed,
    "repeat_interleave": _repeated,
    "equal": _compared,
    "_local_scalar_dense": _scalar,
    "_grouped_mm": _grouped,
    **dict.fromkeys(_SIZED_BY_VALUES, _counted),
}
