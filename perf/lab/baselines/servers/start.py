"""Starts each target, as people start it; knows nothing of loads and of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perf.environments import Environment
from perf.lab.baselines import targets
from perf.lab.baselines.servers.launches import LAUNCHES, Launch, Setting, write_mlserver_settings
from perf.lab.baselines.servers.packages import environment_of
from perf.lab.baselines.servers.processes import HOST, Ports, running, tail, wait_ready
from perf.lab.baselines.servers.repositories import (
    MODEL_FOLDER,
    lay_out_in_flight,
    lay_out_tutorial,
)
from perf.lab.baselines.targets import Variant
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

    def run(self, streams: bool) -> RecordsOf:
        """What runs a level of whole answers, or of streams."""
        found = self.streams_of if streams else self.records_of
        assert found is not None
        return found


@dataclass(frozen=True)
class Places:
    """``folder`` is temporary and holds the model; ``environments`` are kept."""

    folder: Path
    environments: Path
    ports: Ports

    def environment(self, variant: Variant) -> Environment:
        """The peer's own."""
        assert variant.target.environment is not None
        return environment_of(variant.target.environment, self.environments)


def started(
    places: Places, variant: Variant, *, streaming: bool = False
) -> AbstractContextManager[Service]:
    """``variant``, answering; ours streams only where it is ``streaming``, others just do.

    Entering it raises ``PeerError``, ``PerfError``, ``LevelError``, ``ServerError``, and
    ``subprocess.CalledProcessError`` of the generator.
    """
    if variant.name in LAUNCHES:
        return listening(places, variant, LAUNCHES[variant.name])
    if variant.name == targets.IN_PROCESS:
        return in_process(places, variant)
    return on_triton(places, variant, streaming=streaming)


@contextmanager
def in_process(places: Places, variant: Variant) -> Iterator[Service]:
    """The engine with its callers."""
    repository = lay_out_in_flight(places.folder, variant.dtype)
    with generator(in_process_command(repository / asked.IN_FLIGHT.name)) as engine:
        yield Service(engine.records_of, engine.pid)


@contextmanager
def on_triton(places: Places, variant: Variant, *, streaming: bool) -> Iterator[Service]:
    """The tutorial's model, or ours: the engine, served directly or behind ``/generate_stream``,
    then with the front that it is always served with. The server's log is a file.
    """
    if variant.name == targets.TUTORIAL:
        repository, sent = lay_out_tutorial(places.folder), asked.TUTORIAL
    else:
        is_ours = variant.name == targets.OURS
        on_vllm = None if is_ours else places.environment(variant).folder.absolute()
        repository = lay_out_in_flight(
            places.folder, variant.dtype, streaming=streaming, on_vllm=on_vllm
        )
        sent = asked.SSE if streaming else asked.IN_FLIGHT
    front = asked.IN_FLIGHT.name
    models = [f"{front}_stream", front] if streaming else [sent.name]
    with (
        repository.with_suffix(".log").open("a", encoding="utf-8") as log,
        serving(
            repository,
            *models,
            listen=places.ports.listen(),
            write_log=lambda line: print(line, file=log, flush=True),
        ) as server,
    ):
        records = partial(records_of, http_command(sent, server.listen.http_port, models[0]))
        streams = records if streaming else None
        yield Service(records, server.pid, lambda: "\n".join(server.log_tail()), streams)


@contextmanager
def listening(places: Places, variant: Variant, launch: Launch) -> Iterator[Service]:
    """A peer that is one command, in its own environment."""
    log = places.folder / f"{variant.name}-{variant.dtype}.log"
    model, listen = str(places.folder / MODEL_FOLDER), places.ports.listen()
    setting = Setting(model, variant.dtype, listen, log.with_suffix(".settings"))
    if variant.name == targets.MLSERVER:
        write_mlserver_settings(setting)
    program, *arguments = launch.words(setting)
    command = [places.environment(variant).program(program), *arguments]
    port, streamed = listen.http_port, variant.target.streamed
    records = partial(records_of, http_command(launch.asked, port))
    streams = partial(records_of, http_command(streamed, port)) if streamed else None
    with running(command, {**OFFLINE, **launch.environment(setting)}, log) as process:
        wait_ready(process, f"http://{HOST}:{port}{launch.health}", log)
        yield Service(records, process.pid, lambda: tail(log), streams)
