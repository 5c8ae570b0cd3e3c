"""Starts each target, as people start it; knows nothing of loads and of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from generator.server import TritonServer
from perf.baselines import targets
from perf.baselines.environments import Environment
from perf.baselines.launches import LAUNCHES, Launch
from perf.baselines.mlserver import HuggingFaceModel, mlserver
from perf.baselines.packages import environment_of
from perf.baselines.ports import HOST, Ports
from perf.baselines.processes import running, tail, wait_ready
from perf.baselines.repositories import (
    MODEL_FOLDER,
    lay_out_in_flight,
    lay_out_on_vllm,
    lay_out_tutorial,
)
from perf.baselines.targets import Variant
from perf.load import targets as asked
from perf.load.levels import LevelArguments
from perf.load.measure import Record
from perf.load.process import generator, http_command, in_process_command, records_of
from perf.serving import serving

# Nobody is asked for a model, and nobody is told of the run.
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

RecordsOf = Callable[[LevelArguments, Callable[[int], object]], list[Record]]


@dataclass(frozen=True)
class Service:
    """One that is up: how a level is run on it, whose processes it is, and its last lines."""

    records_of: RecordsOf
    pid: int
    last_words: Callable[[], str] = str
    streams_of: RecordsOf | None = None  # the same with answers that come in pieces


@dataclass(frozen=True)
class Places:
    """``folder`` is temporary and holds the model; ``environments`` are kept."""

    folder: Path
    environments: Path
    ports: Ports

    @property
    def model(self) -> Path:
        return self.folder / MODEL_FOLDER

    def environment(self, variant: Variant) -> Environment:
        """The peer's own."""
        assert variant.target.environment is not None
        return environment_of(variant.target.environment, self.environments)

    def log(self, variant: Variant) -> Path:
        """What it prints."""
        return self.folder / f"{variant.name}-{variant.dtype}.log"


def started(
    places: Places, variant: Variant, *, streaming: bool = False
) -> AbstractContextManager[Service]:
    """``variant``, answering; ours streams only where it is ``streaming``, others just do.

    Entering it raises ``PeerError``, ``PerfError``, ``LevelError``, ``ServerError``, and
    ``subprocess.CalledProcessError`` of the generator.
    """
    if variant.name in targets.OURS_ON_TRITON:
        return ours_streaming(places, variant) if streaming else ours(places, variant)
    if variant.name in LAUNCHES:
        return listening(places, variant, LAUNCHES[variant.name])
    return OTHERS[variant.name](places, variant)


@contextmanager
def in_process(places: Places, variant: Variant) -> Iterator[Service]:
    """The engine with its callers."""
    repository = lay_out_in_flight(places.folder, variant.dtype)
    with generator(in_process_command(repository / asked.IN_FLIGHT.name)) as engine:
        yield Service(engine.records_of, engine.pid)


@contextmanager
def ours(places: Places, variant: Variant) -> Iterator[Service]:
    """The engine, served directly."""
    repository = laid_out(places, variant, streaming=False)
    with on_triton(places, repository, asked.IN_FLIGHT.name) as server:
        command = http_command(asked.IN_FLIGHT, server.listen.http_port)
        yield triton_service(server, partial(records_of, command))


@contextmanager
def ours_streaming(places: Places, variant: Variant) -> Iterator[Service]:
    """The engine behind ``/generate_stream``, and the front that it is always served with."""
    repository = laid_out(places, variant, streaming=True)
    front = asked.IN_FLIGHT.name
    with on_triton(places, repository, f"{front}_stream", front) as server:
        port = server.listen.http_port
        streams = partial(records_of, http_command(asked.SSE, port, f"{front}_stream"))
        yield triton_service(server, streams, streams)


def laid_out(places: Places, variant: Variant, *, streaming: bool) -> Path:
    """The repository of one of ours."""
    if variant.name == targets.OURS:
        return lay_out_in_flight(places.folder, variant.dtype, streaming=streaming)
    environment = places.environment(variant).folder.absolute()
    return lay_out_on_vllm(places.folder, variant.dtype, environment, streaming=streaming)


@contextmanager
def tutorial(places: Places, _: Variant) -> Iterator[Service]:
    """The tutorial's model."""
    repository = lay_out_tutorial(places.folder)
    with on_triton(places, repository, asked.TUTORIAL.name) as server:
        command = http_command(asked.TUTORIAL, server.listen.http_port)
        yield triton_service(server, partial(records_of, command))


@contextmanager
def on_triton(places: Places, repository: Path, *models: str) -> Iterator[TritonServer]:
    """A tritonserver of its own, whose log is a file."""
    with (
        repository.with_suffix(".log").open("a", encoding="utf-8") as log,
        serving(
            repository,
            *models,
            listen=places.ports.listen(),
            write_log=lambda line: print(line, file=log, flush=True),
        ) as server,
    ):
        yield server


def triton_service(
    server: TritonServer, records: RecordsOf, streams: RecordsOf | None = None
) -> Service:
    """One whose last lines are tritonserver's."""
    return Service(records, server.pid, lambda: "\n".join(server.log_tail()), streams)


@contextmanager
def on_mlserver(places: Places, variant: Variant) -> Iterator[Service]:
    """MLServer."""
    model = HuggingFaceModel(asked.MLSERVER.name, "text-generation", places.model)
    listen, log = places.ports.listen(), places.log(variant)
    command = http_command(asked.MLSERVER, listen.http_port)
    with mlserver(places.environment(variant), model, listen, log) as process:
        yield Service(partial(records_of, command), process.pid, lambda: tail(log))


@contextmanager
def listening(places: Places, variant: Variant, launch: Launch) -> Iterator[Service]:
    """A peer that is one command."""
    port, log = places.ports.listen().http_port, places.log(variant)
    program, *arguments = launch.command(str(places.model), variant.dtype, port)
    variables = {**OFFLINE, **launch.variables(str(places.model), variant.dtype)}
    command = [places.environment(variant).program(program), *arguments]
    streamed = variant.target.streamed
    streams = partial(records_of, http_command(streamed, port)) if streamed else None
    records = partial(records_of, http_command(launch.asked, port))
    with running(command, variables, log) as process:
        wait_ready(process, f"http://{HOST}:{port}{launch.health}", log)
        yield Service(records, process.pid, lambda: tail(log), streams)


OTHERS: Mapping[str, Callable[[Places, Variant], AbstractContextManager[Service]]] = {
    targets.IN_PROCESS: in_process,
    targets.TUTORIAL: tutorial,
    targets.MLSERVER: on_mlserver,
}
