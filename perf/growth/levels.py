"""The axes "requests" and "clients": closed loops on one server of the 42 M Llama."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from generator.errors import PerfError
from generator.server import TritonServer
from perf.growth.axis import Axis, Chart, Cost, Measure, Place, Step, doubled
from perf.growth.llama import Shape, repository_of
from perf.growth.processes import PeakMemory, cpu_s
from perf.growth.watched_server import served
from perf.load.level import http_command, records_of
from perf.load.level_process import LevelArguments
from perf.load.measure import Policy, Record, counted, percentile
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
from perf.load.targets import IN_FLIGHT

FIXED_CLIENTS = 8
MIN_REQUESTS, REQUESTS_PER_CLIENT = 32, 2
_SHAPE = Shape(LONGEST_PROMPT + OUTPUT_LENGTHS[-1])
_MAX_S = 900.0
_TARGETS = ("in-flight engine",)


@dataclass(frozen=True)
class Level:
    """What a closed loop brought; memory and processor time are the server's."""

    records: list[Record]
    clients: int
    peak_memory_mib: float
    server_cpu_s: float

    @property
    def wall_s(self) -> float:
        """From the first request to the last answer."""
        first = min(record.sent_s for record in self.records)
        return max(record.done_s for record in self.records) - first

    def latency_s(self, share: float) -> float:
        """A percentile over those that were answered while all clients were busy."""
        inside, _ = counted(self.records, self.clients)
        return percentile([record.latency_s for record in inside], share)

    def cost(self, **figures: float) -> Cost:
        """The figures, and what went wrong."""
        problems = [record.problem for record in self.records if record.problem]
        good = len(self.records) - len(problems)
        first = problems[0] if problems else None
        return Cost(_TARGETS[0], figures, self.wall_s, good, len(problems), first)


@contextlib.contextmanager
def requests_session(place: Place) -> Iterator[Measure]:
    """Each point sends that many requests, from FIXED_CLIENTS clients."""
    with _server(place) as server:

        def measure(step: Step) -> Iterator[Cost]:
            level = _level(server, place, FIXED_CLIENTS, step.value)
            yield level.cost(
                wall_s=level.wall_s,
                server_cpu_s=level.server_cpu_s,
                latency_p50_s=level.latency_s(0.5),
                latency_p99_s=level.latency_s(0.99),
                peak_memory_mib=level.peak_memory_mib,
            )

        yield measure


@contextlib.contextmanager
def clients_session(place: Place) -> Iterator[Measure]:
    """Each point sends from that many clients, enough requests for each to send two."""
    with _server(place) as server:

        def measure(step: Step) -> Iterator[Cost]:
            num_requests = max(MIN_REQUESTS, REQUESTS_PER_CLIENT * step.value)
            level = _level(server, place, step.value, num_requests)
            inside, counted_s = counted(level.records, level.clients)
            yield level.cost(
                latency_p50_s=level.latency_s(0.5),
                latency_p99_s=level.latency_s(0.99),
                s_per_request=counted_s / len(inside),
                server_cpu_s_per_request=level.server_cpu_s / len(level.records),
                peak_memory_mib=level.peak_memory_mib,
            )

        yield measure


@contextlib.contextmanager
def _server(place: Place) -> Iterator[TritonServer]:
    place.say("making the model")
    repository = repository_of(place.folder, [IN_FLIGHT.name], _SHAPE, place.seed)
    place.say("starting the server")
    with served(repository, [IN_FLIGHT.name]) as server:
        warm_up = LevelArguments.warm_up(place.seed)
        _records(server, warm_up, place)
        yield server


def _level(server: TritonServer, place: Place, clients: int, num_requests: int) -> Level:
    arguments = LevelArguments(clients, place.seed, Policy(num_requests, 0, _MAX_S))
    before = cpu_s(server.pid)
    with PeakMemory(server.pid) as memory:
        records = _records(server, arguments, place)
    return Level(records, clients, memory.mib, cpu_s(server.pid) - before)


def _records(server: TritonServer, arguments: LevelArguments, place: Place) -> list[Record]:
    """Raises PerfError where the load generator fails."""
    command = http_command(IN_FLIGHT, server.listen.http_port)
    try:
        return records_of(command, arguments, lambda count: place.say(f"{count} answers"))
    except subprocess.CalledProcessError as error:
        raise PerfError(f"the load generator failed: {error}") from error


REQUESTS = Axis(
    name="requests",
    title="Requests of one run",
    unit="requests",
    points=doubled(64, 1024),
    quick_points=(16, 32, 64),
    highest=100_000,
    targets=_TARGETS,
    charts=(
        Chart("Time of the run", ("wall_s", "server_cpu_s")),
        Chart("Time of a request", ("latency_p50_s", "latency_p99_s")),
        Chart("The server's memory", ("peak_memory_mib",)),
    ),
    session=requests_session,
    note=f"{FIXED_CLIENTS} clients, each sending its next request when its last is answered, to a "
    "Llama of 42 M random weights in float32; prompts of 8 to 64 tokens that ask for 8 to 128.",
    memory_gib=lambda _: 1.5,
)

CLIENTS = Axis(
    name="clients",
    title="Clients at once",
    unit="clients",
    points=doubled(1, 256),
    quick_points=(1, 8, 64),
    highest=4096,
    targets=_TARGETS,
    charts=(
        Chart("Time of a request", ("latency_p50_s", "latency_p99_s")),
        Chart("Time for each request", ("s_per_request", "server_cpu_s_per_request")),
        Chart("The server's memory", ("peak_memory_mib",)),
    ),
    session=clients_session,
    note="The same model and load; each client sends two requests or more. Time for each request "
    "is that of the run over the number of its requests: what one more costs.",
    memory_gib=lambda value: 1.5 + value / 1000,
)
