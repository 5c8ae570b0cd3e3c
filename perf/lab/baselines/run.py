"""One comparison from its arguments to its folder: begun or gone on with, measured, rendered."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, PerfError
from perf.in_use import in_use
from perf.lab.baselines.fleet import Fleet, LeftOutError
from perf.lab.baselines.plan import MIXED, OUTPUT_TOKENS, PROMPT_TOKENS, Plan, Step
from perf.lab.baselines.report import write_markdown
from perf.lab.baselines.servers.processes import NOT_INHERITED, Ports
from perf.lab.baselines.servers.repositories import MODEL_FOLDER
from perf.lab.baselines.servers.start import Places, Service, started
from perf.lab.baselines.targets import OURS_ON_TRITON, Variant
from perf.load.figures import between_chunks, measurement_of
from perf.load.levels import LevelArguments
from perf.load.measure import Record, client_cores, counted
from perf.machine import num_cores
from perf.model import llama_config, make_model
from perf.report.head import here, now
from perf.report.rendering import write_renderings
from perf.report.schema import (
    RUN_FILE,
    Measurement,
    Run,
    append,
    read_measurements,
    read_run,
    write_run,
)
from perf.roofline.measured import measure as measure_machine
from perf.roofline.share import Decoder, Lengths, limit
from perf.roofline.step import DecoderShape, Machine, machine_of
from perf.usage import cpu_seconds, machine_cpu_seconds, memory_gib

BAR_FORMAT = "{n}/{total} levels |{bar:20}| {elapsed} {desc}{postfix}"

KIND = "baselines"
FIXED = ("seed", "counted_requests", "longest_level_s")  # has to stay in one folder
STORED_DTYPE = "float16"  # of the measured model's weights


@dataclass(frozen=True)
class Comparison:
    """What is compared, and where it is kept; ``environments`` holds the peers'."""

    plan: Plan
    output: Path
    environments: Path
    ports: Ports
    command: str

    def scenario(self) -> dict[str, str | int | float]:
        """The load, as a run tells it."""
        plan = self.plan
        return {
            "model": "Llama shape, 42.0 M random weights",
            "load": MIXED,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "counted_requests": plan.num_requests,
            "longest_level_s": plan.max_level_s,
            "rounds": plan.num_rounds,
            "clients": "/".join(map(str, plan.clients)),
            "seed": plan.seed,
        }


def compare(comparison: Comparison) -> int:
    """Measures what is missing in the folder, writes its tables and prints them.

    Returns the exit code. Raises ``PerfError``.
    """
    output = comparison.output
    with in_use(output):
        try:
            run, measured = begin(comparison)
            steps = comparison.plan.missing(measured)
            tell_length(comparison, steps, len(measured))
            if steps and not run.roofline:  # before any server is up
                run = replace(run, roofline=measure_machine().as_figures())
                write_run(output, run)
            code = measure(comparison, run, steps) if steps else EXIT_OK
            measured = read_measurements(output)
            text = write_markdown(output, read_run(output), measured)
            write_renderings(output)
        except (OSError, ValueError) as error:
            raise PerfError(f"{error}; what is measured is kept in {output}") from error
    print(text)
    print(f"kept in {output}", file=sys.stderr)
    return EXIT_INPUT if code == EXIT_OK and any(each.num_errors for each in measured) else code


def begin(comparison: Comparison) -> tuple[Run, list[Measurement]]:
    """A new run in the folder, or the one that is there with what it has.

    Raises ``OSError``, ``ValueError``, and ``PerfError`` where the folder holds another run.
    """
    scenario, output = comparison.scenario(), comparison.output
    run = Run(
        kind=KIND,
        title="Useful tokens/s of ours and of what people use instead",
        scenario=scenario,
        **here(comparison.command),
    )
    if (output / RUN_FILE).is_file():
        before = read_run(output)
        check_alike(before, scenario, output)
        notes = [f"begun at commit {before.commit}"] if before.commit != run.commit else []
        run = replace(run, created=before.created, roofline=before.roofline, notes=notes)
    write_run(output, run)
    return run, read_measurements(output)


def check_alike(before: Run, scenario: Mapping[str, object], output: Path) -> None:
    """Raises ``PerfError`` where the folder's run is no part of what is asked for."""
    differ = [
        f"{name} {before.scenario.get(name)}, now {scenario[name]}"
        for name in FIXED
        if before.scenario.get(name) != scenario[name]
    ]
    if before.kind != KIND or differ:
        what = f"a run with {'; '.join(differ)}" if differ else f"a run of kind {before.kind}"
        raise PerfError(f"{output} holds {what}; name another folder with --output")


def measure(comparison: Comparison, run: Run, steps: Sequence[Step]) -> int:
    """Brings up what is needed, measures, and notes what a reader has to know; the exit code."""
    with own_environment(), tempfile.TemporaryDirectory(prefix="perf-baselines-") as folder:
        every_s = 0.5 if sys.stderr.isatty() else 30.0  # a file holds every line
        with tqdm(total=len(steps), bar_format=BAR_FORMAT, mininterval=every_s, miniters=0) as bar:
            rounds = made_rounds(comparison, Path(folder), bar, run.roofline)
            fleet = rounds.fleet
            try:
                make_model(Path(folder, MODEL_FOLDER), comparison.plan.seed)
                rounds.measure(steps)
            except KeyboardInterrupt:
                tqdm.write("interrupted; the same command goes on where it was", file=sys.stderr)
                return EXIT_INTERRUPTED
            finally:
                fleet.close()
                notes = [*run.notes, *rounds.notes, *fleet_notes(fleet)]
                write_run(comparison.output, replace(run, notes=notes))
        return EXIT_INPUT if fleet.left_out else EXIT_OK


def made_rounds(
    comparison: Comparison, folder: Path, bar: tqdm, limits: Mapping[str, float]
) -> Rounds:
    """The rounds, with servers that live in ``folder``."""
    places = Places(folder, comparison.environments, comparison.ports)
    seed, machine = comparison.plan.seed, machine_of(limits, num_cores())

    def start(variant: Variant, streaming: bool) -> AbstractContextManager[Service]:
        def tell(text: str) -> None:
            bar.set_description_str(f"{variant}: {text}", refresh=sys.stderr.isatty())

        tell("starting")
        if variant.target.environment:
            places.environment(variant).ensure(tell)
        return started(places, variant, streaming=streaming)

    return Rounds(
        plan=comparison.plan,
        fleet=Fleet(start, lambda service, streaming: warm_up(service, seed, streams=streaming)),
        keep=partial(append, comparison.output),
        command=comparison.command,
        bar=bar,
        share_of=partial(share_of_limit, machine),
    )


def share_of_limit(machine: Machine, step: Step, tokens_per_s: float) -> float:
    """0 to 1: of what the machine's memory and cores allow with as many sequences as clients."""
    decoder = Decoder(DecoderShape.of(llama_config()), step.variant.dtype, STORED_DTYPE)
    lengths = Lengths.of(PROMPT_TOKENS, OUTPUT_TOKENS)
    assert lengths is not None
    return tokens_per_s / limit(machine, decoder, lengths, step.clients)


def fleet_notes(fleet: Fleet) -> list[str]:
    """Which servers did not stay up between their levels."""
    notes = [
        f"{variant.label} takes {cores:.1f} cores without requests, so it was started and stopped "
        "for each level"
        for variant, cores in fleet.restless.items()
    ]
    if fleet.crowded:
        notes.append("memory did not hold all servers at once: some were stopped between levels")
    return notes


def tell_length(comparison: Comparison, steps: Sequence[Step], num_measured: int) -> None:
    """Says on stderr what is to be done and how long that takes."""
    before = f"{num_measured} levels are there; " if num_measured else ""
    if not steps:
        print(f"{before}nothing is left to measure; the tables are made again", file=sys.stderr)
        return
    minutes = comparison.plan.usual_s(steps) / 60
    print(
        f"{before}{len(steps)} levels of at least {comparison.plan.num_requests} requests: about "
        f"{minutes:.0f} minutes on 2 cores; Ctrl-C keeps what is measured",
        file=sys.stderr,
    )


@contextmanager
def own_environment() -> Iterator[None]:
    """Every service takes the threads it takes by itself."""
    before = dict(os.environ)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # of weights being loaded: ours is enough
    for name in NOT_INHERITED:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.update(before)


@dataclass
class Rounds:
    """``keep`` is given each measurement; ``notes`` say what a reader has to know of the run."""

    plan: Plan
    fleet: Fleet
    keep: Callable[[Measurement], object]
    command: str
    bar: tqdm
    share_of: Callable[[Step, float], float]  # of what the machine allows, from tokens/s
    notes: list[str] = field(default_factory=list)

    def measure(self, steps: Sequence[Step]) -> None:
        """Every step whose target can be had."""
        for step in steps:
            if step.variant not in self.fleet.left_out:
                try:
                    found = self._level(step)
                except LeftOutError as error:
                    self._leave_out(step, str(error))
                else:
                    self.keep(found)
            self.bar.update()

    def _level(self, step: Step) -> Measurement:
        streaming = step.streams and step.variant.name in OURS_ON_TRITON
        with self.fleet.using(step.variant, streaming=streaming) as service:
            self._tell(f"{step.variant}, {step.clients} clients")
            started, pid = now(), service.pid
            before_s = (time.perf_counter(), cpu_seconds(pid), machine_cpu_seconds())
            records = service.run(step.streams)(self.plan.arguments(step), self._show)
            after_s = (time.perf_counter(), cpu_seconds(pid), machine_cpu_seconds())
            elapsed_s, server_s, machine_s = (a - b for a, b in zip(after_s, before_s, strict=True))
            clients = client_cores(records, step.clients)
            machine = {
                "cpu_share": machine_s / elapsed_s / num_cores(),
                "server_cpu_cores": server_s / elapsed_s,
                "client_cpu_cores": clients,
                "other_cpu_cores": max(0.0, (machine_s - server_s) / elapsed_s - clients),
                "memory_gib": memory_gib(pid),
            }
        return self._measurement(step, records, started, machine)

    def _measurement(
        self, step: Step, records: Sequence[Record], started: str, machine: Mapping[str, float]
    ) -> Measurement:
        """The figures of a level; stable where as many requests were counted as were wanted."""
        inside, _ = counted(records, step.clients)
        good = [record for record in inside if record.problem is None]
        num_chunks = sum(len(record.chunk_s) for record in good)
        tokens = sum(record.num_output_tokens for record in good)
        found = measurement_of(
            records, step.load, step.round, started, self.command, between_chunks
        )
        useful = found.output_tokens_per_s or 0.0
        return replace(
            found,
            stable=len(good) >= self.plan.num_requests,
            output_tokens_per_s=useful,
            roofline_share=self.share_of(step, useful),
            server={"tokens_per_chunk": tokens / num_chunks} if num_chunks else {},
            machine=machine,
        )

    def _leave_out(self, step: Step, why: str) -> None:
        when = f"round {step.round + 1}, {step.clients} clients"
        first, *rest = why.splitlines() or ["no reason given"]
        short = " ... ".join([first, *rest[-1:]])
        self.notes.append(f"{step.variant.label} is left out from {when} on: {short}")
        tqdm.write("\n  ".join([f"{step.variant} is left out: {first}", *rest]), file=sys.stderr)

    def _tell(self, text: str) -> None:
        self.bar.set_postfix_str("", refresh=False)
        self.bar.set_description_str(text, refresh=sys.stderr.isatty())

    def _show(self, num_answers: int) -> None:
        self.bar.set_postfix_str(f"{num_answers} answers", refresh=False)
        self.bar.update(0)


def warm_up(service: Service, seed: int, *, streams: bool) -> None:
    """A few requests, other ones than are measured; their figures are thrown away."""
    service.run(streams)(LevelArguments.warm_up(seed), lambda _: None)
