"""The axes "models" and "torch-models": n models in one server, without work.

The first have nothing but Python and show what Triton and a process cost; each of the others
imports torch and transformers and holds a tiny Llama, as every generated model does.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from perf.growth.axes.axis import Axis, Chart, Cost, Measure, Place, Session, Step, doubled
from perf.growth.axes.llama import Shape, repository_of
from perf.growth.axes.server import asked, body, served
from perf.load.targets import ANY_INFER
from perf.usage import cpu_seconds, memory_gib

_IDLE_MODEL = Path(__file__).with_name("idle_model")
_TINY = Shape(max_model_len=64, max_num_seqs=4, hidden_size=64, num_layers=2)
_SETTLE_S, _IDLE_S = 2.0, 5.0
_NUM_ASKED = 20
_TEXT = "baba babe babi"
_CHARTS = (
    Chart("From the server's start to its last model", ("startup_s",)),
    Chart("Memory", ("memory_mib",)),
    Chart("Processors kept busy without requests", ("idle_cores",)),
    Chart("Time of a request to one of them", ("latency_p50_s",)),
)
LayOut = Callable[[Place, Sequence[str]], Path]


def plain_repository(place: Place, names: Sequence[str]) -> Path:
    """Copies of a model that needs nothing but Python."""
    repository = place.folder / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        shutil.copy(_IDLE_MODEL / "config.pbtxt", repository / name)
        shutil.copy(_IDLE_MODEL / "model.py", repository / name / "1")
    return repository


def torch_repository(place: Place, names: Sequence[str]) -> Path:
    """A tiny Llama under each of the names."""
    shutil.rmtree(place.folder / "repository", ignore_errors=True)
    return repository_of(place.folder, names, _TINY, place.seed)


def session_of(target: str, lay_out: LayOut, request: str) -> Session:
    """A server for every step: what grows is what it starts with."""

    @contextlib.contextmanager
    def session(place: Place) -> Iterator[Measure]:
        yield lambda step: [_cost(target, lay_out, request, place, step)]

    return session


def _cost(target: str, lay_out: LayOut, request: str, place: Place, step: Step) -> Cost:
    names = [f"model-{i:04d}" for i in range(step.value)]
    place.say("generating")
    repository = lay_out(place, names)
    place.say("starting the server")
    begin = time.perf_counter()
    with served(repository, names) as server:
        startup_s = time.perf_counter() - begin
        place.say("measuring")
        time.sleep(_SETTLE_S)
        before_s = cpu_seconds(server.pid)
        time.sleep(_IDLE_S)
        figures = {
            "startup_s": startup_s,
            "idle_cores": (cpu_seconds(server.pid) - before_s) / _IDLE_S,
            "memory_mib": memory_gib(server.pid) * 1024,
        }
        records = asked(server, ANY_INFER, names[0], 2 * _NUM_ASKED * [request])
        warm = [each.latency_s for each in records[_NUM_ASKED:]]
        figures["latency_p50_s"] = statistics.median(warm)
        place.say("stopping the server")
    return Cost(target, figures, time.perf_counter() - begin, _NUM_ASKED)


PLAIN = Axis(
    name="models",
    title="Models in one server",
    unit="models",
    points=doubled(1, 32),
    quick_points=(1, 4, 16),
    highest=1000,
    targets=("plain Python",),
    charts=_CHARTS,
    session=session_of("plain Python", plain_repository, body(_TEXT)),
    note="Models of a dozen lines of Python, each a process: what Triton itself takes. A server is "
    f"started for every point, and left alone for {_IDLE_S:g} s before the first request.",
    memory_gib=lambda value: 0.3 + 0.03 * value,
)

TORCH = replace(
    PLAIN,
    name="torch-models",
    title="Generated models in one server",
    quick_points=(1, 2, 4),
    targets=("tiny Llama",),
    session=session_of("tiny Llama", torch_repository, body(_TEXT, max_tokens=8)),
    note="The same with models that hf-triton generates: a Llama of two layers of 64, in a process "
    "of its own that imports torch and transformers. The request asks for 8 tokens.",
    repeats=1,
    memory_gib=lambda value: 0.5 + 0.5 * value,
)
