"""A model whose layers ``device_map`` has spread over two GPUs: what meets is on one device, and
the tokens are the model's own.

The GPUs are pretended ones: tensors compute on the CPU and each remembers which GPU it would be
on. Within ``pretended_gpus()`` an operation on tensors of two devices fails as torch's own does, so
that whatever forgets to move a tensor shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.overrides import TorchFunctionMode

from hf_triton.runtime.devices import device
from hf_triton.text_generation.engines.in_flight import plan, runner_selection
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.runner_selection import (
    CACHE,
    UnsupportedModelError,
    select_runner,
)
from hf_triton.text_generation.forward.paged.attention import plain_attention
from hf_triton.text_generation.forward.paged.graphs import with_cuda_graphs
from hf_triton.text_generation.forward.paged.page_runner import PagedRunner
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PagedSize
from tests.support.driving import Answers, setup
from tests.support.tiny_models import Asked, mixed_load, reference, tiny_model

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
    for gpu, parts in ((FIRST, [*first, *inner.layers[:half]]), (SECOND, last)):
        for part in parts:
            _marked([*part.parameters(), *part.buffers()], gpu)
            add_hook_to_module(part, _hook(gpu, skipped))
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


MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2-sliding": {},
    "gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
}
OPTIONS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64}


def split(name: str = "llama") -> Any:
    model = tiny_model(name, **MODELS[name])
    split_in_two(model)
    return model


def prepared(model: Any) -> InFlightEngine:
    """An engine that steps in the test's own thread, which is the one that pretends."""
    given = dataclasses.replace(setup(model, **OPTIONS), device=FIRST, compiled=False)
    engine = InFlightEngine(given)
    engine.prepare()
    return engine


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretended GPUs count no memory."""
    monkeypatch.setattr(plan, "free_beside_steps", lambda setup, *_, **__: setup.free_bytes)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_generates_its_own_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_selection, "select_attention", lambda *_: plain_attention)
    asked = [Asked(one.prompt, min(one.max_tokens, 6)) for one in mixed_load(3)]
    expected = reference(tiny_model(name, **MODELS[name]), asked)
    with pretended_gpus():
        engine = prepared(split(name))
        assert engine.runner.name == "packed"
        answers = Answers()
        sequences = answers.of(asked)
        engine.add(sequences)
        while engine.has_work():
            engine.step()
    assert [tuple(sequence.token_ids) for sequence in sequences] == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_can_go_through_transformers_cache(name: str) -> None:
    with pretended_gpus():
        model = split(name)
        model._can_set_attn_implementation = lambda: False
        assert select_runner(model, layer_shapes(model, FIRST), FIRST, compiled=False) is CACHE


def test_a_tensor_that_is_left_behind_shows() -> None:
    with pretended_gpus():
        model = split()
        shapes = layer_shapes(model, FIRST)
        shapes[1] = shapes[0]  # the second layer's keys and values on the first GPU
        with pytest.raises(UnsupportedModelError, match="same device"):
            select_runner(model, shapes, FIRST, compiled=False)


def test_keys_and_values_lie_with_their_layers() -> None:
    with pretended_gpus():
        model = split()
        shapes = layer_shapes(model, FIRST)
        cache = PagedCache(shapes, PagedSize(3, 16, 2, 0))
        assert [shape.device for shape in shapes] == [FIRST, SECOND]
        assert [keys.device for keys in cache.keys] == [FIRST, SECOND]
        assert device.devices_of(model) == [FIRST, SECOND]


def test_no_cuda_graph_is_captured_over_two_gpus() -> None:
    with pretended_gpus():
        model = split()
        cache = PagedCache(layer_shapes(model, FIRST), PagedSize(3, 16, 2, 0))
        runner = PagedRunner(model, cache, FIRST)
        assert with_cuda_graphs(runner, FIRST) is runner


def test_each_gpu_of_a_split_model_is_asked_whether_it_still_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(device, "check_device_works", asked.append)
    with pretended_gpus():
        device.check_devices_work(split())
    assert asked == [FIRST, SECOND]
