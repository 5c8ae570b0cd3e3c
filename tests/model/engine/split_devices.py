"""Several GPUs on a machine without any: tensors compute on the CPU and each remembers which GPU it
would be on.

Within ``pretended_gpus()`` an operation on tensors of two devices fails as torch's own does, so a
model that is split over two GPUs runs, with its numbers, and whatever forgets to move a tensor
shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
_DEVICE_OF = torch.Tensor.device.__get__
_COPIES = {torch.Tensor.copy_}


class _PretendedGpus(TorchFunctionMode):
    """Keeps each tensor's device in an attribute of it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == _DEVICE_OF:  # a new object at each look
            return _device(args[0])
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.to:
            return _moved(*args, **kwargs)
        asked = kwargs.pop("device", None)
        device = _common_device(func, list(_tensors((args, kwargs))))
        result = func(*args, **kwargs)
        return _marked(result, device if asked is None else torch.device(asked))


@contextmanager
def pretended_gpus() -> Iterator[None]:
    """Tensors made inside may say ``device="cuda:1"``."""
    with _PretendedGpus():
        yield


def split_in_two(model: Any) -> None:
    """Puts the first half of a model's layers on one GPU, the others and what follows them on the
    next, with the hooks that ``device_map: auto`` gives them.
    """
    inner, skipped = model.model, model._skip_keys_device_placement
    half = len(inner.layers) // 2
    last = [*inner.layers[half:], inner.norm, model.lm_head]
    first = [part for part in inner.children() if part not in (inner.layers, inner.norm)]
    for device, parts in ((FIRST, [*first, *inner.layers[:half]]), (SECOND, last)):
        for part in parts:
            _marked([*part.parameters(), *part.buffers()], device)
            add_hook_to_module(part, _hook(device, skipped))
    add_hook_to_module(model, _hook(FIRST, skipped, is_whole=True))


def _hook(device: torch.device, skipped: Any, *, is_whole: bool = False) -> Any:
    return AlignDevicesHook(
        execution_device=device,
        io_same_device=is_whole,
        place_submodules=False,
        skip_keys=skipped,
    )


def _device(tensor: torch.Tensor) -> torch.device:
    found: torch.device = tensor.__dict__.get("pretended", CPU)
    return found


def _marked(result: Any, device: torch.device) -> Any:
    for tensor in _tensors(result):
        tensor.__dict__["pretended"] = device
    return result


def _moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``tensor.to(...)``: a copy where it goes to another device."""
    places = [arg for arg in args if isinstance(arg, torch.device | str)]
    device = kwargs.pop("device", None) or (places[0] if places else _device(tensor))
    with torch._C.DisableTorchFunction():
        moved = tensor.to(*(arg for arg in args if arg not in places), **kwargs)
        if torch.device(device) != _device(tensor) and moved is tensor:
            moved = tensor.clone()
    return _marked(moved, torch.device(device)) if moved is not tensor else tensor


def _common_device(func: Any, tensors: list[torch.Tensor]) -> torch.device:
    """The one that all are on. On the CPU, numbers and indices may be of any."""
    devices = {_device(tensor) for tensor in tensors if tensor.dim()}
    gpus = devices - {CPU}
    mixed = CPU in devices and func is not torch.Tensor.__getitem__
    if func not in _COPIES and (len(gpus) > 1 or (gpus and mixed)):
        found = ", ".join(sorted(map(str, devices)))
        name = getattr(func, "__name__", func)
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, got {found}")
    return _device(tensors[0]) if tensors and tensors[0].dim() else next(iter(gpus), CPU)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
