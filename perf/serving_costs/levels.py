"""Measures one model served in several ways, in turns on one server.

Everything is loaded at once and one way is used at a time, so that what else the machine does meets
all of them alike, and ratios are of neighbours in time.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tqdm import tqdm  # type: ignore[import-untyped]

from generator.server import TritonServer
from generator.server_listen import Listen
from perf.load.level import ROOT, http_command, records_of, stream_command
from perf.load.level_process import LevelArguments
from perf.load.measure import Level, Policy, summarize
from perf.load.streaming import Streaming, client_cores, streaming
from perf.load.targets import IN_FLIGHT
from perf.serving import serving
from perf.serving_costs.repository import (
    DIRECT,
    ENGINE,
    FRONT,
    MODELS,
    TWIN,
    UNCOUNTED,
    lay_out_costs,
)

BAR_FORMAT = "{n}/{total} levels |{bar:20}| {elapsed} {desc}{postfix}"
IDLE_S = 3.0
SSE, GRPC = "sse", "grpc"

COMMANDS: Mapping[str, Callable[[Listen], list[str]]] = {
    DIRECT: lambda listen: http_command(IN_FLIGHT, listen.http_port, DIRECT),
    FRONT: lambda listen: http_command(IN_FLIGHT, listen.http_port, FRONT),
    SSE: lambda listen: stream_command(SSE, listen.http_port, ENGINE),
    GRPC: lambda listen: stream_command(GRPC, listen.grpc_port, ENGINE),
    TWIN: lambda listen: http_command(IN_FLIGHT, listen.http_port, TWIN),
    UNCOUNTED: lambda listen: http_command(IN_FLIGHT, listen.http_port, UNCOUNTED),
}
"""Way to use the model -> the load generator's command line."""


@dataclass(frozen=True)
class CostEffort:
    """How much is measured: rounds over all ways, and the levels for the waiting times."""

    rounds: int
    clients: int
    round_s: float
    waiting_clients: tuple[int, ...]
    waiting_s: float
    waiting_requests: int


@dataclass(frozen=True)
class CostLevel:
    """One level; ``long_prompts_per_s`` were answered beside it, None where none were sent."""

    way: str
    number: int  # of its round, from 1
    level: Level
    streaming: Streaming | None
    client_cores: float
    long_prompts_per_s: float | None = None


@dataclass(frozen=True)
class Costs:
    """All that was measured. ``idle_cores`` is what the loaded server takes without requests."""

    rounds: list[CostLevel]
    waiting: list[CostLevel]
    idle_cores: float


def measure_costs(folder: Path, effort: CostEffort, seed: int) -> Costs:
    """Serve the model in ``folder`` in all ways and measure each."""
    num_levels = effort.rounds * len(COMMANDS) + 2 * len(effort.waiting_clients)
    with (
        tqdm(total=num_levels, bar_format=BAR_FORMAT, mininterval=0.5, miniters=0) as bar,
        serving(lay_out_costs(folder), *MODELS) as server,
    ):
        measuring = Measuring(server, effort, seed, bar)
        measuring.warm_up()
        idle_cores = cores_taken(server, IDLE_S)
        return Costs(list(measuring.rounds()), list(measuring.waiting()), idle_cores)


@dataclass(frozen=True)
class Measuring:
    """The levels of a server that serves all of ``MODELS``."""

    server: TritonServer
    effort: CostEffort
    seed: int
    bar: tqdm

    def warm_up(self) -> None:
        """A few requests each way; their figures are thrown away."""
        for way in COMMANDS:
            self.bar.set_description_str(f"{way}: warming up")
            records_of(self.command(way), LevelArguments.warm_up(self.seed), self.show)

    def rounds(self) -> Iterator[CostLevel]:
        """Every way in turn, with the same requests; every other round in the opposite order."""
        effort = self.effort
        for number in range(1, effort.rounds + 1):
            policy = Policy(min_requests=effort.clients, min_s=effort.round_s, max_s=180)
            arguments = LevelArguments(effort.clients, self.seed + number, policy)
            for way in sorted(COMMANDS, key=list(COMMANDS).index, reverse=number % 2 == 0):
                yield self.level(way, number, arguments)

    def waiting(self) -> Iterator[CostLevel]:
        """Streams at every number of clients, alone and while long prompts keep arriving."""
        effort = self.effort
        for clients in effort.waiting_clients:
            policy = Policy(effort.waiting_requests, effort.waiting_s, max_s=60)
            arguments = LevelArguments(clients, self.seed, policy)
            yield self.level(SSE, 1, arguments)
            with endless_load(self.command(FRONT), self.seed, "long-prompts") as count:
                level = self.level(SSE, 1, arguments, count)
            yield level

    def level(
        self,
        way: str,
        number: int,
        arguments: LevelArguments,
        count_long_prompts: Callable[[], int] | None = None,
    ) -> CostLevel:
        """Run one level."""
        beside = " beside long prompts" if count_long_prompts else ""
        self.bar.set_description_str(f"{way}, {arguments.clients} clients{beside}")
        num_before, begin_s = count_long_prompts() if count_long_prompts else 0, time.perf_counter()
        records = records_of(self.command(way), arguments, self.show)
        elapsed_s = time.perf_counter() - begin_s
        self.bar.update()
        return CostLevel(
            way=way,
            number=number,
            level=summarize(records, arguments.clients),
            streaming=streaming(records, arguments.clients),
            client_cores=client_cores(records, arguments.clients),
            long_prompts_per_s=(count_long_prompts() - num_before) / elapsed_s
            if count_long_prompts
            else None,
        )

    def command(self, way: str) -> list[str]:
        return COMMANDS[way](self.server.listen)

    def show(self, num_answers: int) -> None:
        """Tell the progress bar."""
        self.bar.set_postfix_str(f"{num_answers} answers", refresh=False)
        self.bar.update(0)


@contextmanager
def endless_load(
    command: Sequence[str], seed: int, load: str, clients: int = 1
) -> Iterator[Callable[[], int]]:
    """More clients who each send a request of ``load`` whenever their last one is answered.

    Gives a function that counts the answers so far. Raises ``subprocess.CalledProcessError`` when
    the process of ``command`` ends by itself or gets a wrong answer.
    """
    endless = Policy(min_requests=10**9, min_s=0, max_s=3600)
    words = LevelArguments(clients, seed, endless, load).command_line()
    with tempfile.NamedTemporaryFile() as answers:

        def count() -> int:
            written = Path(answers.name).read_text(encoding="utf-8")
            lines = written.split("\n")[:-1]  # what follows the last end of line is half a line
            if process.poll() is not None or any(json.loads(line)["problem"] for line in lines):
                raise subprocess.CalledProcessError(process.returncode or 1, process.args)
            return len(lines)

        process = subprocess.Popen([*command, *words], cwd=ROOT, stdout=answers)
        try:
            time.sleep(2.0)  # for the first one to be on its way
            yield count
        finally:
            process.terminate()
            process.wait()


def cores_taken(server: TritonServer, seconds: float) -> float:
    """Cores that the server and all its models keep busy for ``seconds`` from now."""
    before = cpu_seconds(server.pid)
    time.sleep(seconds)
    return (cpu_seconds(server.pid) - before) / seconds


def cpu_seconds(pid: int) -> float:
    """CPU time so far of process ``pid`` and those below it."""
    leader = psutil.Process(pid)
    times = (process.cpu_times() for process in (leader, *leader.children(recursive=True)))
    return sum(spent.user + spent.system for spent in times)
