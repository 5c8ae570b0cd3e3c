"""Triton's instance kinds become devices; threads and memory are what the machine leaves."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import PretrainedConfig

from hf_triton.runtime.devices import device
from hf_triton.runtime.devices.device import (
    Placement,
    cpu_threads,
    free_bytes,
    placement,
    trim_heap,
)
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.weight_loading import load_model
from tests.support.served_models import served_model

GIB = 2**30
CPU = torch.device("cpu")


@pytest.mark.parametrize("prefix", ["", "KIND_"])
@pytest.mark.parametrize(
    "kind, device_id, device_map, num_gpus, expected",
    [
        ("CPU", "0", None, 0, Placement("cpu", {"": "cpu"})),
        ("CPU", "0", "auto", 2, Placement("cpu", {"": "cpu"})),
        ("GPU", "1", None, 2, Placement("cuda:1", {"": "cuda:1"})),
        ("GPU", "0", "auto", 2, Placement("cuda:0", "auto")),
        ("MODEL", "0", None, 2, Placement("cuda:0", "auto")),
        ("MODEL", "0", "balanced", 2, Placement("cuda:0", "balanced")),
        ("MODEL", "0", None, 0, Placement("cpu", {"": "cpu"})),
        ("MODEL", "0", "balanced", 0, Placement("cpu", {"": "cpu"})),
    ],
)
def test_kinds_become_placements(
    prefix: str,
    kind: str,
    device_id: str,
    device_map: str | None,
    num_gpus: int,
    expected: Placement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert placement(prefix + kind, device_id, device_map) == expected


@pytest.mark.parametrize(
    "num_gpus, expected",
    [
        (0, f"torch {torch.__version__} sees none: install a CUDA build of torch, or use kind: K"),
        (1, "torch sees GPU 0: name those in gpus, or give the server more (CUDA_VISIBLE_DEVICES"),
        (3, "torch sees 3 GPUs, 0 to 2: name those in gpus"),
    ],
)
def test_a_gpu_that_torch_does_not_see_is_an_error(
    num_gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(LoadError) as raised:
        placement("GPU", "3", None)
    assert str(raised.value).startswith(f"instance_group: got GPU 3, but {expected}")


@pytest.mark.parametrize(
    "groups, expected",
    [
        (None, 8),
        ([], 8),
        ([{"count": 1}], 8),
        ([{"count": 2}], 4),
        ([{"count": 2}, {"count": 1}], 2),
        ([{"count": 20}], 1),
        ([{}], 8),
    ],
)
def test_instances_share_the_cores(
    groups: list[dict[str, Any]] | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cpu_threads({"instance_group": groups}) == expected


def test_omp_num_threads_is_the_most_where_it_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cpu_threads({"instance_group": [{"count": 4}]}) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "30")
    assert cpu_threads({}) == 8
    for not_a_number in ("", "0", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", not_a_number)
        assert cpu_threads({}) == 8


@pytest.mark.parametrize(
    "limit, used, expected",
    [
        ("max\n", f"{3 * GIB}\n", 10 * GIB),
        (f"{8 * GIB}\n", f"{3 * GIB}\n", 5 * GIB),
        (f"{64 * GIB}\n", f"{3 * GIB}\n", 10 * GIB),
        (f"{2 * GIB}\n", f"{3 * GIB}\n", 0),
        (None, None, 10 * GIB),
    ],
)
def test_free_memory_is_the_machines_or_what_the_container_leaves(
    limit: str | None,
    used: str | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in (("CGROUP_LIMIT", limit), ("CGROUP_USED", used), ("CGROUP_STAT", None)):
        monkeypatch.setattr(device, name, tmp_path / name)
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))
    assert free_bytes(CPU) == expected


def test_page_cache_that_a_container_can_give_up_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"CGROUP_LIMIT": f"{8 * GIB}", "CGROUP_USED": f"{7 * GIB}"}
    files["CGROUP_STAT"] = f"anon 5\ninactive_file {2 * GIB}\nactive_file {GIB}\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(device, name, tmp_path / name)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))
    assert free_bytes(CPU) == 3 * GIB


def test_a_gpus_free_memory_is_its_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda which: (7 * which.index, 80))
    assert free_bytes(torch.device("cuda:3")) == 21


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what is freed")
def test_freed_memory_is_given_back() -> None:
    blocks = [torch.ones(100_000, dtype=torch.uint8) for _ in range(2_000)]
    held = psutil.Process().memory_info().rss
    del blocks[:-1]  # the last lies above the others, so glibc does not by itself
    trim_heap()
    assert held - psutil.Process().memory_info().rss > 100_000_000


class OneLayer:
    """An auto class whose model is one layer."""

    @staticmethod
    def from_pretrained(files: Path, **_: Any) -> tuple[torch.nn.Module, dict[str, set[str]]]:
        report = ("missing_keys", "mismatched_keys", "unexpected_keys")
        return torch.nn.Linear(2, 2), {key: set() for key in report}


@pytest.mark.parametrize("name, is_on", [("cuda:0", False), ("cpu", True)])
def test_cudnn_attention_is_off_once_a_model_is_on_a_gpu(
    tmp_path: Path, name: str, is_on: bool
) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        config, where = PretrainedConfig(), Placement(name, {"": name})
        load_model(served_model(tmp_path), tmp_path, OneLayer, config, where)
        assert torch.backends.cuda.cudnn_sdp_enabled() == is_on
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
