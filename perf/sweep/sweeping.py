"""Runs a sweep: measures and stores each load, and writes the report however the sweep ends."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, PerfError
from generator.models_yaml.reading import load_unpinned
from hf_triton.tritonserver.log import say
from perf.report.points import judged_metrics, load_words, shown
from perf.report.rendering import MARKDOWN_FILE, PAGE_FILE, write_renderings
from perf.report.schema import Measurement, Run, append, read_measurements
from perf.run_folder import continued_or_new, locked_folder, run_context
from perf.sweep import analyzer
from perf.sweep.analyzer import Analyzer, measuring_command
from perf.sweep.measuring import Measurer, ServerGoneError
from perf.sweep.plan import Planned, input_files, names_in, plan
from perf.sweep.requests import of_repository
from perf.sweep.scenario import Addresses, Sweep, read_sweep, usual_sweep
from perf.sweep.server import DEFAULT, TritonView, own_server, supervised


@dataclass(frozen=True)
class Options:
    """The options of the command line. ``url`` and ``serve`` override the scenario's."""

    scenario: Path | None
    config: Path
    repository: Path
    output: Path | None = None
    url: Addresses | None = None
    serve: bool = False
    command: str = "hf-triton perf sweep"

    @property
    def folder(self) -> Path:
        name = self.scenario.stem if self.scenario else "sweep"
        return self.output or Path("perf-results", name)

    @property
    def how_to_start(self) -> str:
        places = ["--config", str(self.config), "--repository", str(self.repository)]
        return f"start it with `{shlex.join(['hf-triton', 'serve', *places])}`"

    def serves(self, sweep: Sweep) -> bool:
        return self.serve or (sweep.serve and self.url is None)


def read(options: Options) -> Sweep:
    if options.scenario:
        return read_sweep(options.scenario)
    specs = load_unpinned(options.config)
    return usual_sweep([spec.name for spec in specs if spec.arm_of is None])


def dry_run(options: Options) -> int:
    sweep = read(options)
    addresses = options.url or sweep.addresses or DEFAULT
    found = _planned(sweep, options, TritonView(addresses))
    with locked_folder(options.folder):
        _write_inputs(options.folder, found)
    print(f"cd {shlex.quote(str(options.folder))}")
    for one in found:
        print(shlex.join(measuring_command(one)))
    return EXIT_OK


def run(options: Options) -> int:
    sweep, program = read(options), analyzer.find()
    say(f"perf_analyzer {program.version}, {program.origin}")
    with locked_folder(options.folder), _server(sweep, options) as server:
        if not server.is_live():
            raise PerfError(
                f"no Triton answers at {server.addresses.http}; {options.how_to_start}, "
                "or measure with --serve"
            )
        found = _planned(sweep, options, server)
        done = _finished_before(sweep, options, program, server, found)
        return _measure(options, program, found, done)


@contextmanager
def _server(sweep: Sweep, options: Options) -> Iterator[TritonView]:
    """The server to measure; starts one with ``serve: true``. Raises PerfError, SpecError."""
    if not options.serves(sweep):
        usual = next(supervised(options.repository), DEFAULT)
        yield TritonView(options.url or sweep.addresses or usual)
        return
    wanted = list(dict.fromkeys(name for one in sweep.scenarios for name in one.models))
    say(f"starting hf-triton serve for {', '.join(wanted)}")
    with own_server(options.config, options.repository, options.folder, wanted) as addresses:
        yield TritonView(addresses)


def _planned(sweep: Sweep, options: Options, server: TritonView) -> list[Planned]:
    """By the server or, where none answers, the repository. Raises PerfError."""
    repository = options.repository
    if server.is_live():
        return plan(sweep, server, repository, server.config)
    if not names_in(repository):
        raise PerfError(
            f"no Triton answers at {server.addresses.http}, and {repository} has no models: "
            f"`hf-triton generate --config {options.config}` writes them"
        )
    return plan(sweep, server, repository, partial(of_repository, repository))


def _finished_before(
    sweep: Sweep, options: Options, program: Analyzer, server: TritonView, found: Sequence[Planned]
) -> list[Measurement]:
    """Begins or continues the run in the folder; returns the measurements that succeeded. Raises
    PerfError where the folder holds another run, OSError.
    """
    folder, models = options.folder, ", ".join(dict.fromkeys(one.load.target for one in found))
    notes = [f"perf_analyzer {program.version}, {program.origin}"]
    if any(one.streams for one in found):
        notes.append("inter-token latency is the time between the chunks of an answer")
    notes += dict.fromkeys(one.requests.note for one in found if one.requests.note)
    if not server.is_local:
        notes.append("hardware and CPU are of the machine that sent the load, not the server's")
    sent = hashlib.sha256(json.dumps(sorted(input_files(found).items())).encode()).hexdigest()[:16]
    scenario = {**asdict(sweep), "inputs": sent, "serve": options.serves(sweep)}
    scenario |= {"url": options.url.http} if options.url else {}
    run = Run(
        kind="sweep",
        **run_context(options.command, perf_analyzer=program.version, triton=server.version()),
        title=sweep.title or f"sweep of {models}",
        scenario=scenario,
        notes=notes,
    )
    continued_or_new(folder, run)
    _write_inputs(folder, found)
    return [one for one in read_measurements(folder) if one.num_requests]


def _write_inputs(folder: Path, found: Sequence[Planned]) -> None:
    for name, content in input_files(found).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _measure(
    options: Options,
    program: Analyzer,
    found: Sequence[Planned],
    done: Sequence[Measurement],
) -> int:
    """Measures the missing loads; returns the exit code. Raises PerfError."""
    folder, known = options.folder, [(one.load, one.repeat) for one in done]
    missing = [one for one in found if (one.load, one.repeat) not in known]
    if done:
        say(f"{len(found) - len(missing)} of {len(found)} loads are measured already")
    failed, code, measurer = 0, EXIT_OK, Measurer(program, folder.resolve())
    try:
        for number, one in enumerate(missing, len(found) - len(missing) + 1):
            say(f"load {number} of {len(found)}: {load_words(one.load)}")
            measurement = measurer.measure(one)
            append(folder, measurement)
            failed += not measurement.num_requests
            say(_summary(measurement))
    except KeyboardInterrupt:
        code, failed = EXIT_INTERRUPTED, 0
        say("stopped; finished loads are kept, and the same command continues")
    except ServerGoneError as error:
        raise PerfError(
            f"the server no longer answers ({error}); what is measured is kept in {folder}: "
            f"{options.how_to_start}, then the same command continues"
        ) from None
    finally:
        write_renderings(folder)
    print((folder / MARKDOWN_FILE).read_text(encoding="utf-8"))
    print(f"{folder / PAGE_FILE}  # the same with plots")
    if failed:
        say(f"{failed} load{'s' * (failed != 1)} failed; the same command tries again")
    return code or (EXIT_INPUT if failed else EXIT_OK)


def _summary(measurement: Measurement) -> str:
    if not measurement.num_requests:
        return f"failed: {measurement.first_error}"
    values = [(metric, metric.value(measurement)) for metric in judged_metrics([measurement])]
    said = (f"{one.label} {shown(value)} {one.unit}" for one, value in values if value is not None)
    return ", ".join(said) + ("" if measurement.stable else " (not stable)")
