"""Compares servers: measures each of them under the same loads, keeps the results, and prints one
table.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, GeneratorError
from perf import roofline
from perf.lab.baselines.servers import BY_NAME, DTYPES, MODEL_FOLDER, SERVERS, Running, started
from perf.load.process import Level, LevelError, records_of
from perf.load.records import Policy, Record, measurement_of
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS, SHORTEST_PROMPT, requests
from perf.machine import here, now, num_cores
from perf.report import markdown
from perf.report.rendering import write_renderings
from perf.report.schema import (
    Load,
    Measurement,
    Run,
    append,
    read_measurements,
    write_run,
    write_text,
)
from perf.run_folder import continued_or_new, locked_folder
from perf.usage import cpu_seconds, machine_cpu_seconds, memory_gib

KIND, MARKDOWN_FILE = "baselines", "baselines.md"
MOST_STREAMS = 64  # clients; one Python process reads so many streams without delay
_STARTS_NOT = (GeneratorError, LevelError, OSError, subprocess.CalledProcessError)
_BAR = "{n}/{total} levels |{bar:20}| {elapsed} {desc}"


@dataclass(frozen=True)
class Plan:
    """The options of the command line; at least ``num_requests`` are counted at each level."""

    servers: tuple[str, ...]
    dtypes: tuple[str, ...]
    clients: tuple[int, ...]
    num_rounds: int
    num_requests: int
    max_level_s: float
    seed: int
    streams: bool = False

    def rounds(self) -> Iterator[tuple[int, str, str]]:
        """Yields (round, server, number format); every other round runs in the opposite order. A
        server without any of the asked formats is measured in its own.
        """
        found = [
            (server.name, dtype)
            for server in SERVERS
            if server.name in self.servers
            for dtype in server.dtypes
            if dtype in self.dtypes or not set(server.dtypes) & set(DTYPES)
        ]
        for number in range(self.num_rounds):
            yield from ((number, *each) for each in (found if number % 2 == 0 else found[::-1]))

    def loads(self, name: str, dtype: str) -> Iterator[Load]:
        """All levels of a server, streams last."""
        server = BY_NAME[name]
        whole = Load(
            target=name,
            endpoint=f"http-{server.route[0]}",
            input_name="mixed",
            prompt_tokens=f"{SHORTEST_PROMPT}-{LONGEST_PROMPT}",
            output_tokens="/".join(map(str, OUTPUT_LENGTHS)),
            settings={"dtype": dtype},
        )
        yield from (replace(whole, concurrency=clients) for clients in self.clients)
        for clients in self.clients if self.streams and server.streams else ():
            if clients <= MOST_STREAMS:
                yield replace(whole, concurrency=clients, endpoint=f"{whole.endpoint}-stream")

    def level(self, load: Load, number: int, running: Running) -> Level:
        """Makes the requests of a level: equal for every server of a round, and new in each round,
        because a server may have cached earlier ones.
        """
        clients, streams = load.concurrency or 1, load.endpoint.endswith("-stream")
        seed = random.Random(f"{self.seed}/{number}/{clients}/{streams}").randrange(2**31)
        # The first and the last requests, one of each client, are not counted.
        policy = Policy(self.num_requests + 2 * clients, min_s=0.0, max_s=self.max_level_s)
        drawn = islice(requests(seed), policy.min_requests + clients)
        server = BY_NAME[load.target]
        return Level(
            clients, policy, [server.sent(each, running.model, stream=streams) for each in drawn]
        )

    def scenario(self) -> dict[str, object]:
        """The settings that must stay equal within one run folder."""
        kept = ("seed", "num_requests", "max_level_s")
        return {"model": "Llama shape, 42 M random weights", **{n: asdict(self)[n] for n in kept}}


def compare(plan: Plan, output: Path, environments: Path, command: str) -> int:
    """Measures what the folder lacks, writes and prints its table; returns the exit code. Raises
    PerfError.
    """
    with locked_folder(output):
        run = begin(output, plan, command)
        code = measure(plan, run, output, environments)
        measured = read_measurements(output)
        lines = table(measured)
        write_text(output / MARKDOWN_FILE, "\n".join(lines) + "\n")
        write_renderings(output)
    print("\n".join(lines))
    print(f"kept in {output}", file=sys.stderr)
    return EXIT_INPUT if code == EXIT_OK and any(each.num_errors for each in measured) else code


def begin(output: Path, plan: Plan, command: str) -> Run:
    """Creates the run in the folder, or continues the one there. Raises PerfError where the folder
    holds a different run, OSError.
    """
    title = "Useful tokens/s of ours and of what people use instead"
    run = Run(kind=KIND, title=title, scenario=plan.scenario(), **here(command))
    run = continued_or_new(output, run)
    with suppress(roofline.NotMeasuredError):
        run = run if run.roofline else replace(run, roofline=roofline.figures())
    return run


def measure(plan: Plan, run: Run, output: Path, environments: Path) -> int:
    """Starts each server in turn and measures its missing levels. A server that can't be started is
    skipped; the run's notes give the reason. Raises OSError.
    """
    from perf.model import make_model

    done = [(each.load, each.repeat) for each in read_measurements(output)]
    left_out: dict[tuple[str, str], str] = {}
    work = [(n, name, dtype, list(plan.loads(name, dtype))) for n, name, dtype in plan.rounds()]
    total = sum(len(loads) for *_, loads in work)
    with (
        tempfile.TemporaryDirectory(prefix="perf-baselines-") as scratch,
        tqdm(total=total, bar_format=_BAR, mininterval=0.5, miniters=0) as bar,
    ):
        folder = Path(scratch)
        try:
            make_model(folder / MODEL_FOLDER, plan.seed)
            for number, name, dtype, loads in work:
                missing = [load for load in loads if (load, number) not in done]
                bar.update(len(loads) - len(missing))
                if not missing or (name, dtype) in left_out:
                    continue
                bar.set_description_str(f"{name} {dtype}")
                server = BY_NAME[name]
                try:
                    with started(
                        server, dtype, folder, environments, streaming=plan.streams
                    ) as running:
                        warm = plan.level(missing[0], -1, running).sent[:8]
                        policy = Policy(min_requests=8, min_s=0, max_s=60)
                        _records(missing[0], running, Level(8, policy, warm))
                        for load in missing:
                            level = plan.level(load, number, running)
                            found = _measured(load, number, running, level, run.command)
                            decoder = roofline.decoder_in(folder / MODEL_FOLDER, dtype)
                            share = roofline.share_of(run.roofline, decoder, found)
                            append(output, replace(found, roofline_share=share))
                            bar.update()
                except _STARTS_NOT as error:
                    left_out[name, dtype] = str(error).strip().splitlines()[-1]
                    tqdm.write(f"{name} {dtype} is left out: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            tqdm.write("interrupted; the same command goes on where it was", file=sys.stderr)
            return EXIT_INTERRUPTED
        finally:
            notes = [f"{' '.join(key)} is left out: {why}" for key, why in left_out.items()]
            write_run(output, replace(run, notes=notes))
    return EXIT_INPUT if left_out else EXIT_OK


def _records(load: Load, running: Running, level: Level) -> list[Record]:
    server = BY_NAME[load.target]
    asked = server.streams if load.endpoint.endswith("-stream") and server.streams else server.route
    return records_of(asked[0], running.port, running.model, level)


def _measured(load: Load, number: int, running: Running, level: Level, command: str) -> Measurement:
    """The figures of a level; it is stable where the wanted number of requests was counted."""
    before = time.perf_counter(), cpu_seconds(running.pid), machine_cpu_seconds()
    start = now()
    records = _records(load, running, level)
    after = time.perf_counter(), cpu_seconds(running.pid), machine_cpu_seconds()
    elapsed_s, server_s, machine_s = (b - a for a, b in zip(before, after, strict=True))
    found = measurement_of(records, load, number, start, command)
    return replace(
        found,
        stable=found.num_requests >= level.policy.min_requests - 2 * level.clients,
        machine={
            "cpu_share": machine_s / elapsed_s / num_cores(),
            "server_cpu_cores": server_s / elapsed_s,
            "memory_gib": memory_gib(running.pid),
        },
    )


def table(measurements: Sequence[Measurement]) -> list[str]:
    """A row for each server and number format: useful tokens/s by clients. In round brackets: our
    tokens/s divided by that server's in the same format (median, minimum and maximum over the
    rounds).
    """
    found = [each for each in measurements if not each.load.endpoint.endswith("-stream")]
    clients = sorted({each.load.concurrency or 0 for each in found})
    rows = dict.fromkeys((each.load.target, _dtype(each)) for each in found)
    rates = {
        (each.load.target, _dtype(each), each.load.concurrency or 0, each.repeat): rate
        for each in found
        if (rate := each.output_tokens_per_s)
    }

    def cell(target: str, dtype: str, count: int) -> str:
        of_row = {n: rate for (*key, n), rate in rates.items() if key == [target, dtype, count]}
        base = dtype if dtype in DTYPES else DTYPES[0]
        ratios = [
            rates["ours", base, count, n] / rate
            for n, rate in of_row.items()
            if ("ours", base, count, n) in rates
        ]
        text = f"{median(of_row.values()):,.0f}" if of_row else ""
        if not ratios or (target, dtype) == ("ours", base):
            return text
        spread = f", {min(ratios):.2f} to {max(ratios):.2f}" if len(ratios) > 1 else ""
        return f"{text} (ours {median(ratios):.2f} times{spread})"

    heads = ["server", "format", *(f"{count} clients" for count in clients)]
    cells = ([*row, *(cell(*row, count) for count in clients)] for row in rows)
    return markdown.table(heads, cells, "<<")


def _dtype(measurement: Measurement) -> str:
    return str(measurement.load.settings.get("dtype", ""))
