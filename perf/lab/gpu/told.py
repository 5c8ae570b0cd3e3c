"""What a job's process does, and says: a line for each case, so that what it was cut off from is
told too.

``BAD`` is wrong; ``SLOW`` is right, by a slower runner than it should be; ``LOST``: a CUDA error
took the device, and what follows in the process says nothing.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil  # noqa: F401
import torch
import transformers.modeling_utils  # noqa: F401

import hf_triton.encoder.runners.runner
import hf_triton.text_generation.engines.in_flight.engine  # noqa: F401
from hf_triton.runtime.devices.device import choose_attention_kernels
from perf.lab.gpu.jobs import JOBS, Job

ALL_AGREE, SOME_DO_NOT, DEVICE_LOST = 0, 1, 3  # exit codes
_NUMBERS = ((100.0, ",.0f"), (10.0, ".1f"), (0.1, ".2f"))


class AbsentError(Exception):
    """What a case is about can't be had here."""


class Told:
    """Counts what is bad, on a device."""

    def __init__(self, device: str) -> None:
        self.device, self.num_good, self.num_bad = torch.device(device), 0, 0
        self._begun_s = time.perf_counter()

    @property
    def is_cpu(self) -> bool:
        """Whether models and cases are few and small, and no time means anything."""
        return self.device.type == "cpu"

    @property
    def exit_code(self) -> int:
        return SOME_DO_NOT if self.num_bad else ALL_AGREE

    def row(self, what: str, row: Mapping[str, Any], mark: str = "") -> None:
        """Says ``what: key value, key value``; units stand in the keys."""
        values = ", ".join(f"{name(key)} {cell(key, value)}" for key, value in row.items())
        took_s = time.perf_counter() - self._begun_s
        print(f"{mark}{what}: {values} [{took_s:.0f} s]", flush=True)

    @contextmanager
    def case(self, what: str, wanted: str = "") -> Iterator[dict[str, Any]]:
        """One case, whatever is raised inside: the others go on. Its row has ``agrees`` (None where
        AbsentError was raised) and ``run_by``, which on a GPU is to begin with ``wanted``.

        Raises:
            SystemExit: the device is lost.
        """
        row: dict[str, Any] = {"agrees": False}
        try:
            yield row
        except AbsentError as error:
            row |= {"agrees": None, "why": _first_line(error)}
        except Exception as error:  # noqa: BLE001
            # Whatever a kernel or a library raises is what was asked: it does not work here.
            traceback.print_exception(error, limit=-8)
            row |= {"agrees": False, "why": f"{type(error).__name__}: {_first_line(error)}"}
        is_bad = row["agrees"] is False
        self.num_bad += is_bad
        self.num_good += row["agrees"] is True
        self.row(what, row, "BAD " if is_bad else "")
        run_by = str(row.get("run_by", ""))
        if run_by and not self.is_cpu and not run_by.startswith(wanted):
            print(f"SLOW {what}: run by {run_by}, not by {wanted}", flush=True)
        if is_bad:
            self._check_device(what)

    def _check_device(self, what: str) -> None:
        try:
            (torch.ones(1, device=self.device) + 1).item()
        except Exception as error:  # noqa: BLE001
            print(f"LOST {what}: {self.device} answers no more: {_first_line(error)}", flush=True)
            raise SystemExit(DEVICE_LOST) from None


def work(job: Job, device: str) -> int:
    """Does a job in this process; returns the exit code."""
    show_log()
    told = Told(device)
    choose_attention_kernels(device)  # as the product loads models
    torch.manual_seed(0)
    module, *words = job.words
    importlib.import_module(f"perf.lab.gpu.{module}").measure(told, *words)
    print(f"{told.num_good} agree, {told.num_bad} do not", flush=True)
    return told.exit_code


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{'SLOW ' if 'without CUDA graphs run' in text else '    log: '}{text}"


def show_log() -> None:
    """What the product logs; steps that should be graphs, and are not, are slow."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Formatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("hf_triton").setLevel(logging.INFO)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def short(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def name(key: str) -> str:
    """``tokens_per_s`` as ``tokens/s``."""
    return key.replace("_per_", "/").replace("_", " ")


def cell(key: str, value: str | int | float | bool | None) -> str:
    """A value as people read it; what ends in ``share`` is a percentage."""
    if value is None:
        return "-"
    if isinstance(value, str | bool | int):
        return str(value)
    if key.endswith("share"):
        return f"{value:.0%}"
    form = next((form for least, form in _NUMBERS if abs(value) >= least), ".2g")
    return f"{value:{form}}"


if __name__ == "__main__":
    _jobs = {one.name: one for jobs in JOBS.values() for one in jobs}
    sys.exit(work(_jobs[sys.argv[1]], sys.argv[2]))
