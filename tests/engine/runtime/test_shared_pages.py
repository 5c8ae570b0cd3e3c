"""Copies of one model share the memory of their weights, and each computes what it did."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hf_runtime import log
from hf_runtime.devices import shared_pages
from hf_runtime.devices.linear_layouts import Float16StoredLinear, PrepackedLinear
from hf_runtime.devices.weight_files import remove_unused
from hf_runtime.heartbeat import VARIABLE
from torch import nn


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are, as of a server that `hf-triton serve` has started."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "hf_triton_beat_"))
    return tmp_path


def copy(seed: int = 0) -> list[nn.Module]:
    """A copy of a model: a layer as it is, one of each layout."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(1024, 1024, generator=generator).half().float()
    plain = nn.Linear(1024, 1024, bias=False)
    plain.weight.data.copy_(weight)
    shared_pages.note_weights(plain)
    return [plain, PrepackedLinear(weight, None), Float16StoredLinear(weight, None)]


def mapped(folder: Path) -> set[str]:
    """The files of that folder that this process maps."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if f"{folder}/hf_triton_weights_" in line}


def files(folder: Path) -> set[Path]:
    """Those of weights."""
    return {path for path in folder.iterdir() if not path.name.endswith("_lock")}


@torch.inference_mode()
def outputs(layers: list[nn.Module]) -> list[torch.Tensor]:
    x = torch.ones(3, 1024)
    return [layer(x) for layer in layers]


def in_a_fresh_process(check: Callable[[Path], None], folder: Path) -> None:
    """Another one's heap may have room for weights, which are not shared then."""
    process = multiprocessing.get_context("spawn").Process(target=check, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0


def share_and_write(folder: Path) -> None:
    """Two copies map one file for each weight; what one writes is its own."""
    with shared_pages.sharing(2):
        first, second = copy(), copy()
        before = outputs(first)
        freed: list[torch.Tensor] = []  # before the end, as by another thread
        shared_pages.noting(first[0], 2**20, lambda: freed.append(torch.ones(2**21)))
        freed.clear()
    assert len(mapped(folder)) == 6
    # By the names that remain: others hold what is mapped under no name for left behind.
    assert {Path(line.split()[-1]) for line in mapped(folder)} == files(folder)
    assert len(files(folder)) == 3
    for layers in (first, second):
        for own, expected in zip(outputs(layers), before, strict=True):
            assert torch.equal(own, expected)
    with torch.no_grad():
        first[0].weight.zero_()  # type: ignore[operator]
    assert torch.equal(outputs(second)[0], before[0])


def remove_and_refuse(folder: Path) -> None:
    """What no copy holds is removed, and a file of other bytes is not mapped."""
    with shared_pages.sharing(2):
        layers = copy()
    left = files(folder)
    with shared_pages.sharing(2):
        layers = copy(seed=1)
    assert len(files(folder) - left) == 3  # those of the first were still mapped
    with shared_pages.sharing(2):
        layers += copy(seed=1)
    remove_unused(os.environ[VARIABLE])
    assert len(files(folder) - left) == len(files(folder)) == 3
    for path in files(folder):
        with path.open("r+b") as file:  # in a page by which no file is named
            file.seek(5000)
            file.write(b"other")
    before = mapped(folder)
    with shared_pages.sharing(2):
        layers += copy(seed=1)
    assert mapped(folder) == before


def fill_the_disk(folder: Path) -> None:
    """Weights stay as they are, and a warning says why."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as monkeypatch:
        said: list[str] = []
        monkeypatch.setattr(log, "warn", said.append)
        monkeypatch.setattr(os, "write", full)
        with shared_pages.sharing(2):
            layers = copy()
    assert not mapped(folder)
    assert all(torch.isfinite(one).all() for one in outputs(layers))
    assert any("No space left" in line for line in said)


def leave_others_files(folder: Path) -> None:
    """Who wrote them may change them later."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        said: list[str] = []
        monkeypatch.setattr(log, "warn", said.append)
        monkeypatch.setattr(os, "getuid", lambda: -1)
        with shared_pages.sharing(2):
            layers = copy()
    assert not mapped(folder)
    assert len(layers) == 3
    assert any("is another user's" in line for line in said)
    remove_unused(os.environ[VARIABLE])


def leave_room(folder: Path) -> None:
    """Of 64 MiB, a container's usual, half: a model whose memory of requests finds none fails. What
    is small enough is shared.
    """
    for num_left, num_files in ((2**13, 0), (2**13 + 2**9 + 8, 1)):
        there = os.statvfs_result((4096, 4096, 2**14, num_left, num_left, 0, 0, 0, 0, 255))
        with pytest.MonkeyPatch.context() as monkeypatch:
            said: list[str] = []
            monkeypatch.setattr(log, "warn", said.append)
            monkeypatch.setattr(os, "statvfs", lambda _, there=there: there)
            with shared_pages.sharing(2):
                layers = copy()
        assert len(files(folder)) == num_files
        assert len(layers) == 3
        assert any(f"leave too little of {folder} to Triton" in line for line in said)


def refuse(folder: Path) -> None:
    fill_the_disk(folder)
    leave_others_files(folder)
    leave_room(folder)


def test_copies_map_one_file_for_each_weight_and_compute_the_same(folder: Path) -> None:
    in_a_fresh_process(share_and_write, folder)


def test_unused_files_are_removed_and_others_bytes_are_not_mapped(folder: Path) -> None:
    in_a_fresh_process(remove_and_refuse, folder)


def test_weights_stay_as_they_are_where_files_have_no_room_or_another_owner(folder: Path) -> None:
    in_a_fresh_process(refuse, folder)


def test_the_only_copy_shares_nothing(folder: Path) -> None:
    with shared_pages.sharing(1):
        copy()
    assert not [*folder.iterdir()]


def test_a_small_number_where_a_size_would_be_is_none() -> None:
    memory = torch.zeros(3 * mmap.PAGESIZE, dtype=torch.uint8)
    page = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    ctypes.c_size_t.from_address(page + 8).value = 2  # the flag alone
    assert next(shared_pages._pieces(page, page + mmap.PAGESIZE), None) is None
