"""The axes "requests" and "clients": closed loops on one server of the 42 M Llama."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from generator.server.process import TritonServer
from perf.growth.axes.axis import Axis, Chart, Cost, Measure, Place, Session, Step, doubled
from perf.growth.axes.llama import Shape, repository_of
from perf.growth.axes.server import sent, served
from perf.load.levels import LevelArguments
from perf.load.measure import Policy, counted, percentile
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS
from perf.load.targets import IN_FLIGHT
from perf.usage import cpu_seconds, peak_memory

FIXED_CLIENTS = 8
MIN_REQUESTS, REQUESTS_PER_CLIENT = 32, 2
_SHAPE = Shape(LONGEST_PROMPT + OUTPUT_LENGTHS[-1])
_MAX_S = 900.0
_LATENCY = Chart("Time of a request", ("latency_p50_s", "latency_p99_s"))
_MEMORY = Chart("The server's memory", ("peak_memory_mib",))


def session_of(load: Callable[[int], tuple[int, int]], figures: tuple[str, ...]) -> Session:
    """A server, and of each point ``figures``; ``load`` is how many clients send how many requests
    at it.
    """

    @contextlib.contextmanager
    def session(place: Place) -> Iterator[Measure]:
        place.say("making the model")
        repository = repository_of(place.folder, [IN_FLIGHT.name], _SHAPE, place.seed)
        place.say("starting the server")
        with served(repository, [IN_FLIGHT.name]) as server:
            sent(server, IN_FLIGHT, IN_FLIGHT.name, LevelArguments.warm_up(place.seed))

            def measure(step: Step) -> Iterator[Cost]:
                found = _cost(server, place, *load(step.value))
                yield replace(found, figures={name: found.figures[name] for name in figures})

            yield measure

    return session


def _cost(server: TritonServer, place: Place, clients: int, num_requests: int) -> Cost:
    """Of a closed loop; memory and processor time are the server's."""
    before_s = cpu_seconds(server.pid)
    with peak_memory(server.pid) as peak:
        arguments = LevelArguments(clients, place.seed, Policy(num_requests, 0, _MAX_S))
        records = sent(
            *(server, IN_FLIGHT, IN_FLIGHT.name, arguments),
            lambda count: place.say(f"{count} answers"),
        )
    server_cpu_s = cpu_seconds(server.pid) - before_s
    inside, counted_s = counted(records, clients)
    latencies = [record.latency_s for record in inside]  # while all clients were busy
    wall_s = max(each.done_s for each in records) - min(each.sent_s for each in records)
    figures = {
        "wall_s": wall_s,
        "server_cpu_s": server_cpu_s,
        "latency_p50_s": percentile(latencies, 0.5),
        "latency_p99_s": percentile(latencies, 0.99),
        "s_per_request": counted_s / len(inside),
        "server_cpu_s_per_request": server_cpu_s / len(records),
        "peak_memory_mib": peak.gib * 1024,
    }
    problems = [record.problem for record in records if record.problem]
    num_good, first = len(records) - len(problems), problems[0] if problems else None
    return Cost("in-flight engine", figures, wall_s, num_good, len(problems), first)


REQUESTS = Axis(
    name="requests",
    title="Requests of one run",
    unit="requests",
    points=doubled(64, 1024),
    quick_points=(16, 32, 64),
    highest=100_000,
    targets=("in-flight engine",),
    charts=(Chart("Time of the run", ("wall_s", "server_cpu_s")), _LATENCY, _MEMORY),
    session=session_of(
        lambda value: (FIXED_CLIENTS, value),
        ("wall_s", "server_cpu_s", *_LATENCY.figures, *_MEMORY.figures),
    ),
    note=f"{FIXED_CLIENTS} clients, each sending its next request when its last is answered, to a "
    "Llama of 42 M random weights in float32; prompts of 8 to 64 tokens that ask for 8 to 128.",
    memory_gib=lambda _: 1.5,
)
_FOR_EACH = Chart("Time for each request", ("s_per_request", "server_cpu_s_per_request"))
CLIENTS = Axis(
    name="clients",
    title="Clients at once",
    unit="clients",
    points=doubled(1, 256),
    quick_points=(1, 8, 64),
    highest=4096,
    targets=("in-flight engine",),
    charts=(_LATENCY, _FOR_EACH, _MEMORY),
    session=session_of(
        lambda value: (value, max(MIN_REQUESTS, REQUESTS_PER_CLIENT * value)),
        (*_LATENCY.figures, *_FOR_EACH.figures, *_MEMORY.figures),
    ),
    note="The same model and load; each client sends two requests or more. Time for each request "
    "is that of the run over the number of its requests: what one more costs.",
    memory_gib=lambda value: 1.5 + value / 1000,
)
