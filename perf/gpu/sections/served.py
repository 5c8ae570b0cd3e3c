"""The tutorial-style model and ours, one after the other on a real tritonserver, the same load."""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from generator.errors import ServerError
from perf.baselines.servers.repositories import (
    MODEL_FOLDER,
    lay_out_in_flight,
    lay_out_tutorial,
)
from perf.gpu.results import Context, SkippedError, Target
from perf.gpu.sections.ceilings import GIB
from perf.gpu.sections.shapes import llama_bytes, make_llama
from perf.load.figures import measurement_of
from perf.load.http import Target as Served
from perf.load.levels import LevelArguments
from perf.load.measure import Policy
from perf.load.process import http_command, records_of
from perf.load.targets import IN_FLIGHT, TUTORIAL
from perf.model import write_tokenizer
from perf.report.head import now
from perf.report.schema import Load, Measurement
from perf.serving import serving

CLIENTS, TINY_CLIENTS = (1, 8, 64), (1, 2)
TIMES_TARGET = {64: 20.0}  # clients -> times the tutorial's useful tokens/s
_SPARE_GIB = {"llama-8b": 8.0, "llama-1b": 4.0, "tiny": 0.1}


def measure(context: Context) -> None:
    """The tutorial's levels, ours, and the ratios."""
    device = torch.device(context.device)
    _check_room(context)
    _save(context, device)
    clients = TINY_CLIENTS if context.is_fake else CLIENTS
    repository = lay_out_tutorial(context.folder)
    tutorial = _levels(context, repository, TUTORIAL, "tutorial model", clients)
    in_flight = _in_flight_levels(context, device, clients)
    for theirs, own in zip(tutorial, in_flight, strict=True):
        _emit_ratio(context, theirs, own)


def _check_room(context: Context) -> None:
    """Raises SkippedError where the checkpoint fits neither the disk nor the memory."""
    size = llama_bytes(context.shape) / GIB
    rooms = {
        f"disk at {context.folder}": (shutil.disk_usage(context.folder).free / GIB, size * 1.05),
        "memory": (psutil.virtual_memory().available / GIB, size * 1.5 + 2),
    }
    for name, (free, needed) in rooms.items():
        if free < needed:
            raise SkippedError(
                f"{context.shape} needs {needed:.1f} GiB of {name}, {free:.1f} GiB are free"
            )


def _save(context: Context, device: torch.device) -> None:
    """Writes the model's files, and gives its room on the device back."""
    context.say(f"{context.shape}: writing {llama_bytes(context.shape) / GIB:.1f} GiB of weights")
    folder = context.folder / MODEL_FOLDER
    model: Any = make_llama(context.shape, device, _SPARE_GIB[context.shape], context.seed)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _in_flight_levels(
    context: Context, device: torch.device, clients: Sequence[int]
) -> list[Measurement]:
    """Ours; where the server can't tell which GPUs there are, the model finds its own."""
    kinds = ("CPU",) if device.type == "cpu" else ("GPU", "MODEL")
    for kind in kinds:
        ours = lay_out_in_flight(context.folder, "bfloat16", kind=kind)
        try:
            return _levels(context, ours, IN_FLIGHT, "in-flight engine", clients)
        except ServerError as error:
            if kind == kinds[-1]:
                raise
            context.say(f"KIND_{kind}: {error}")
    raise AssertionError


def _levels(
    context: Context, repository: Path, served: Served, label: str, clients: Sequence[int]
) -> list[Measurement]:
    """One level for each number of clients."""
    context.say(f"{label}: starting")
    levels = []
    with serving(repository, served.name) as server:
        command = http_command(served, server.listen.http_port)
        for number in (0, *clients):
            arguments = _arguments(context, number)
            load, records = Load(label, "", arguments.clients), records_of(command, arguments)
            level = measurement_of(records, load, 0, now())
            if number:
                levels.append(level)
                _emit_level(context, label, level)
    return levels


def _arguments(context: Context, clients: int) -> LevelArguments:
    """How much is sent; to warm up, for 0 clients, a few requests of other prompts."""
    if not clients:
        return LevelArguments.warm_up(context.seed)
    policy = Policy(4 * clients, 2, 20) if context.is_fake else Policy(4 * clients, 12, 60)
    return LevelArguments(clients, context.seed, policy)


def _emit_level(context: Context, label: str, level: Measurement) -> None:
    context.emit(
        "mixed load",
        {
            "clients": level.load.concurrency,
            "served_by": label,
            "useful_tokens_per_s": level.output_tokens_per_s or 0.0,
            "p50_s": level.latency.p50_ms / 1e3 if level.latency else math.nan,
            "p99_s": level.latency.p99_ms / 1e3 if level.latency else math.nan,
            "requests": level.num_requests,
            "wrong_answers": level.num_errors,
        },
    )
    if level.num_errors:
        problem = json.dumps(level.first_error)
        raise RuntimeError(f"{label}: {level.num_errors} wrong answers, the first: {problem}")


def _emit_ratio(context: Context, theirs: Measurement, ours: Measurement) -> None:
    clients = ours.load.concurrency or 0
    times = (ours.output_tokens_per_s or 0.0) / (theirs.output_tokens_per_s or math.nan)
    least = TIMES_TARGET.get(clients)
    what = f"at least {least:g} times the tutorial model's tokens/s" if least else ""
    context.emit(
        "ratio",
        {"clients": clients, "times_the_tutorial": times},
        Target(what, times, least) if least else None,
    )
