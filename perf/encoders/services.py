"""Brings up everything that is measured: ours, the peers that can be had, the engine alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from perf.baselines.environments import EnvironmentMissingError
from perf.baselines.mlserver import HuggingFaceModel, mlserver
from perf.baselines.packages import mlserver_environment, uvicorn_environment
from perf.encoders.repository import DTYPES, MODEL_FOLDER, lay_out_encoders
from perf.encoders.rounds import Service
from perf.encoders.servers import fastapi_app, in_process
from perf.encoders.targets import APP, BFLOAT16, IN_PROCESS, MLSERVER, OURS
from perf.load.level import load_generator, records_of
from perf.serving import free_listen, serving

DTYPE_OF = {OURS: DTYPES[0], BFLOAT16: DTYPES[1]}


@dataclass(frozen=True)
class Places:
    """``folder`` is temporary and holds the model; the environments are kept."""

    folder: Path
    references: Path
    uvicorn: Path
    mlserver: Path

    @property
    def model(self) -> Path:
        return self.folder / MODEL_FOLDER


@dataclass
class Bringing:
    """Services that are up, and why others are not."""

    places: Places
    stack: ExitStack
    services: dict[str, Service] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)

    def ours(self, repository: Path, targets: list[str]) -> None:
        """One server with a model for each of the targets."""
        models = [DTYPE_OF[target] for target in targets]
        server = self.stack.enter_context(serving(repository, *models))
        for target in targets:
            self.add(target, server.pid, server.listen.http_port)

    def app(self) -> None:
        """FastAPI. Raises ``EnvironmentMissingError``, ``PeerError``."""
        environment = uvicorn_environment(self.places.uvicorn)
        environment.ensure()
        log = self.places.folder / "uvicorn.log"
        peer = self.stack.enter_context(fastapi_app(environment, self.places.model, log))
        self.add(APP, peer.pid, peer.port)

    def mlserver(self) -> None:
        """MLServer. Raises ``EnvironmentMissingError``, ``PeerError``."""
        environment = mlserver_environment(self.places.mlserver)
        environment.ensure()
        model = HuggingFaceModel("encoder", "feature-extraction", self.places.model)
        listen, log = free_listen(), self.places.folder / "mlserver.log"
        process = self.stack.enter_context(mlserver(environment, model, listen, log))
        self.add(MLSERVER, process.pid, listen.http_port)

    def in_process(self, repository: Path) -> None:
        """The engine in a process of its own, with its load."""
        model = repository / DTYPE_OF[OURS]
        engine = self.stack.enter_context(in_process(model, self.places.references))
        self.services[IN_PROCESS] = Service(engine.records_of, engine.pid)

    def unless_missing(self, target: str, bring: Callable[[], None]) -> None:
        """Brings a peer up, or notes why it can't be had."""
        try:
            bring()
        except EnvironmentMissingError as error:
            self.skipped[target] = str(error)
            print(f"{target} is left out: {error}", file=sys.stderr)

    def add(self, target: str, pid: int, port: int) -> None:
        """Something that listens."""
        files = ["--references", str(self.places.references)]
        words = ["--target", target, "--port", str(port), *files]
        self.commands[target] = command = load_generator("perf.encoders.http", *words)
        self.services[target] = Service(partial(records_of, command), pid)


@contextmanager
def brought_up(places: Places, targets: tuple[str, ...]) -> Iterator[Bringing]:
    """The services of ``targets``, one loaded after the other: some time kernels while they load.

    Raises ``PeerError``, ``ServerError``, and ``subprocess.CalledProcessError`` of the generator.
    """
    with ExitStack() as stack:
        bringing = Bringing(places, stack)
        repository = lay_out_encoders(places.folder)
        ours = [target for target in targets if target in DTYPE_OF]
        if ours:
            bringing.ours(repository, ours)
        if APP in targets:
            bringing.unless_missing(APP, bringing.app)
        if MLSERVER in targets:
            bringing.unless_missing(MLSERVER, bringing.mlserver)
        if IN_PROCESS in targets:
            bringing.in_process(repository)
        yield bringing
