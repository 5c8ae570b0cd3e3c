"""The tutorial-style model and ours, one after the other on a real tritonserver, the same load."""

from __future__ import annotations

import gc
import json
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
from perf.load.http import Target as Served
from perf.load.levels import LevelArguments
from perf.load.measure import Level, Policy, summarize
from perf.load.process import http_command, records_of
from perf.load.targets import IN_FLIGHT, TUTORIAL
from perf.model import write_tokenizer
from perf.serving import serving

CLIENTS, TINY_CLIENTS = (1, 8, 64), (1, 2)
TIMES_TARGET = {64: 20.0}  # clients -> times the tutorial's useful tokens/s
_SPARE_GIB = {"llama-8b": 8.0, "llama-1b": 4.0, "tiny": 0.1}


def measure(context: Context) -> None:
    """The tutorial's levels, ours, and the ratios."""
    device = torch.device(context.device)
    _check_room(context)
    _save(context, device)
    clients = TINY_CLIENTS if context.tiny else CLIENTS
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
) -> list[Level]:
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
) -> list[Level]:
    """One level for each number of clients."""
    context.say(f"{label}: starting")
    levels = []
    with serving(repository, served.name) as server:
        command = http_command(served, server.listen.http_port)
        for number in (0, *clients):
            arguments = _arguments(context, number)
            level = summarize(records_of(command, arguments), arguments.clients)
            if number:
                levels.append(level)
                _emit_level(context, label, level)
    return levels


def _arguments(context: Context, clients: int) -> LevelArguments:
    """How much is sent; to warm up, for 0 clients, a few requests of other prompts."""
    if not clients:
        return LevelArguments.warm_up(context.seed)
    policy = Policy(4 * clients, 2, 20) if context.tiny else Policy(4 * clients, 12, 60)
    return LevelArguments(clients, context.seed, policy)


def _emit_level(context: Context, label: str, level: Level) -> None:
    context.emit(
        "mixed load",
        {
            "clients": level.clients,
            "served_by": label,
            "useful_tokens_per_s": level.useful_tokens_per_s,
            "p50_s": level.p50_s,
            "p99_s": level.p99_s,
            "requests": level.num_requests,
            "wrong_answers": level.num_problems,
        },
    )
    if level.num_problems:
        problem = json.dumps(level.first_problem)
        raise RuntimeError(f"{label}: {level.num_problems} wrong answers, the first: {problem}")


def _emit_ratio(context: Context, theirs: Level, ours: Level) -> None:
    times = ours.useful_tokens_per_s / theirs.useful_tokens_per_s
    least = TIMES_TARGET.get(ours.clients)
    what = f"at least {least:g} times the tutorial model's tokens/s" if least else ""
    context.emit(
        "ratio",
        {"clients": ours.clients, "times_the_tutorial": times},
        Target(what, times, least) if least else None,
    )
