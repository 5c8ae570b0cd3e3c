"""A sweep from its beginning to its end: finds what it needs, measures load after load, keeps each,
and writes the report however it ends.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, PerfError, Problem, SpecError
from generator.models_yaml.reading import load_unpinned
from generator.spec.task_folders import find_tasks
from perf.in_use import in_use
from perf.report.rendering import MARKDOWN_FILE, PAGE_FILE
from perf.report.schema import Measurement, append
from perf.roofline import is_countable
from perf.sweep import run_folder
from perf.sweep.analyzer import finding
from perf.sweep.analyzer.finding import Analyzer
from perf.sweep.commands import container_commands, measuring_command
from perf.sweep.measuring import Measurer, ServerGoneError
from perf.sweep.plan import Planned, input_files, plan
from perf.sweep.requests.targets import Targets, of_json, of_repository
from perf.sweep.scenario.file import read_sweep
from perf.sweep.scenario.model import Addresses, Sweep, usual_sweep
from perf.sweep.server.limits import Limits, limits_in
from perf.sweep.server.own_server import models_to_load, own_server
from perf.sweep.server.triton import DEFAULT, TritonView, find_addresses, is_supervised

# How long a server may take to come back; one of `hf-triton serve`, which loads its models again.
_RECOVERY_S, _HEALED_S = 20.0, 300.0
_BAR = "{n}/{total} loads |{bar:20}| {elapsed} {desc}"


@dataclass(frozen=True)
class Options:
    """The command line. ``url`` and ``serve`` win over the scenario's."""

    scenario: Path | None
    config: Path
    repository: Path
    output: Path | None = None
    url: Addresses | None = None
    serve: bool = False
    fresh: bool = False
    perf_analyzer: str | None = None
    sdk_image: str = ""
    command: str = "hf-triton perf sweep"

    @property
    def folder(self) -> Path:
        name = self.scenario.stem if self.scenario else "sweep"
        return self.output or Path("perf-results", name)

    @property
    def how_to_start(self) -> str:
        """A server for it, in words."""
        places = ["--config", str(self.config), "--repository", str(self.repository)]
        return f"start it with `{shlex.join(['hf-triton', 'serve', *places])}`"


def read(options: Options) -> Sweep:
    """What is to be measured. Raises SpecError."""
    if options.scenario:
        sweep = read_sweep(options.scenario)
    else:
        specs = load_unpinned(options.config, find_tasks())
        sweep = usual_sweep([spec.name for spec in specs if spec.arm_of is None])
    sweep = replace(sweep, url=options.url or sweep.url)
    return replace(sweep, serve=True, url=None) if options.serve else sweep


def dry_run(options: Options) -> int:
    """Prints the commands, runs and writes nothing; asks the server only where it is up."""
    found = _planned(read(options), options, options.url or DEFAULT)
    print(f"cd {shlex.quote(str(options.folder))}  # its inputs/ are written by the sweep")
    for one in found:
        print(shlex.join(measuring_command(one)))
    return EXIT_OK


def run(options: Options) -> int:
    """Measures; the exit code. Raises GeneratorError."""
    sweep = read(options)
    try:
        analyzer = finding.find(options.perf_analyzer)
    except finding.AnalyzerMissingError as error:
        raise PerfError(_for_container(sweep, options, str(error))) from None
    _say(f"perf_analyzer {analyzer.version}, {analyzer.origin}")
    with in_use(options.folder), _served(sweep, options) as own:
        for server in dict.fromkeys(_servers(sweep, options, own)):
            if not server.is_live():
                raise PerfError(
                    f"no Triton answers at {server.addresses.http}; {options.how_to_start}, "
                    "or measure with --serve"
                )
        return _measure(sweep, options, analyzer, _planned(sweep, options, own))


def _measure(sweep: Sweep, options: Options, analyzer: Analyzer, found: Sequence[Planned]) -> int:
    files, folder = input_files(found), options.folder
    digest = run_folder.digest(files)
    described = run_folder.described(sweep, options.command, analyzer, found, digest)
    done = run_folder.begin(folder, described, files, options.fresh)
    missing = [one for one in found if one.key not in done]
    if done:
        _say(f"{len(found) - len(missing)} of {len(found)} loads are measured already")
    failed, code = 0, EXIT_OK
    try:
        for measurement in _measured(sweep, options, analyzer, missing, len(found)):
            failed += not measurement.num_requests
    except KeyboardInterrupt:
        code, failed = EXIT_INTERRUPTED, 0
        _say("stopped; what is measured is kept, and the same command goes on")
    except ServerGoneError as error:
        run_folder.render(folder)
        raise PerfError(
            f"the server no longer answers ({error}); what is measured is kept in {folder}: "
            f"{options.how_to_start}, then the same command goes on"
        ) from None
    run_folder.render(folder)
    print((folder / MARKDOWN_FILE).read_text(encoding="utf-8"))
    print(f"{folder / PAGE_FILE}  # the same with plots")
    if failed:
        _say(f"{failed} load{'s' * (failed != 1)} failed; the same command tries again")
    return code or (EXIT_INPUT if failed else EXIT_OK)


def _measured(
    sweep: Sweep, options: Options, analyzer: Analyzer, missing: Sequence[Planned], total: int
) -> Iterator[Measurement]:
    """Each as it is kept, with a progress bar on stderr. Raises ServerGoneError, PerfError."""

    def recovery_s(server: TritonView) -> float:
        # Asked when a server has gone: who would bring it back may have gone with it.
        healed = sweep.serve or is_supervised(server.addresses, options.repository)
        return _HEALED_S if healed else _RECOVERY_S

    folder, limits, begun = options.folder, _limits(missing, options), total - len(missing)
    with tqdm(total=total, initial=begun, bar_format=_BAR, mininterval=0.5, miniters=0) as bar:
        show = bar.set_description_str
        measurer = Measurer(analyzer, folder.resolve(), recovery_s, show)
        try:
            for one in missing:
                with run_folder.disk(folder, "; what is measured so far is kept"):
                    measurement = limits.with_share(measurer.measure(one))
                    append(folder, measurement)
                tqdm.write(f"{one.label}: {_in_words(measurement)}", file=sys.stderr)
                bar.update()
                yield measurement
        finally:
            show("")


def _in_words(measurement: Measurement) -> str:
    """The figures that matter most, in one line."""
    if not measurement.num_requests:
        return f"failed: {measurement.first_error}"
    latency, first = measurement.latency, measurement.time_to_first_token
    parts = [f"{measurement.requests_per_s:.1f} requests/s"]
    if measurement.output_tokens_per_s:
        parts.append(f"{measurement.output_tokens_per_s:,.0f} tokens/s")
    if latency:
        parts.append(f"p50 {latency.p50_ms:.0f} ms, p99 {latency.p99_ms:.0f}")
    if first:
        parts.append(f"first token p50 {first.p50_ms:.0f} ms")
    return ", ".join(parts) + ("" if measurement.stable else " (not stable)")


def _limits(missing: Sequence[Planned], options: Options) -> Limits:
    """What this machine allows the decoders that it is to measure."""
    here = [
        one.load.target
        for one in missing
        if one.counts_tokens and is_countable(one.load) and one.server.is_local
    ]
    with run_folder.disk(options.folder):
        return limits_in(options.folder, here, options.repository)


def _servers(sweep: Sweep, options: Options, own: Addresses) -> list[TritonView]:
    """The server of each scenario; ``own`` is the sweep's where it serves."""
    if sweep.serve:
        return [TritonView(own)] * len(sweep.scenarios)
    usual = sweep.url or find_addresses(options.repository)
    return [TritonView(scenario.url or usual) for scenario in sweep.scenarios]


def _planned(sweep: Sweep, options: Options, own: Addresses) -> list[Planned]:
    """All of it. Raises SpecError, PerfError with every mistake that only the server shows."""
    found: list[Planned] = []
    problems: list[Problem] = []
    for scenario, server in zip(sweep.scenarios, _servers(sweep, options, own), strict=True):
        targets = _targets(server, options)
        found += plan(scenario, server, targets, options.repository, sweep.seed)
        problems += targets.problems
    if problems and sweep.file:
        raise SpecError(sweep.file, problems)
    if problems:
        raise PerfError("\n".join(f"{one.where}: {one.message}" for one in problems))
    return found


def _targets(server: TritonView, options: Options) -> Targets:
    if server.is_live():
        return Targets(lambda name: of_json(server.config(name)), server.model_names)
    names = [path.parent.name for path in options.repository.glob("*/config.pbtxt")]
    if not names:
        raise PerfError(
            f"no Triton answers at {server.addresses.http}, and {options.repository} has no "
            f"models: `hf-triton generate --config {options.config}` writes them"
        )
    return Targets(of_repository(options.repository), lambda: names)


@contextlib.contextmanager
def _served(sweep: Sweep, options: Options) -> Iterator[Addresses]:
    """With ``serve: true`` the addresses of a server of our own. Raises PerfError, SpecError."""
    if not sweep.serve:
        yield DEFAULT
        return
    wanted = list(dict.fromkeys(name for one in sweep.scenarios for name in one.models))
    models = models_to_load(options.config, wanted)
    _say(f"starting hf-triton serve for {', '.join(wanted)}")
    with own_server(options.config, options.repository, options.folder, models) as addresses:
        yield addresses


def _for_container(sweep: Sweep, options: Options, reasons: str) -> str:
    """Writes the inputs, prints the commands that do the same in NVIDIA's container, and returns
    what to tell.
    """
    found = _planned(sweep, options, options.url or DEFAULT)
    run_folder.write_files(options.folder, input_files(found))
    commands = [measuring_command(one) for one in found]
    print("\n".join(container_commands(commands, options.folder.resolve(), options.sdk_image)))
    lines = "".join(f"\n    {line}" for line in reasons.splitlines())
    return (
        f"no perf_analyzer runs here:{lines}\nthe commands above send the same loads from NVIDIA's "
        "SDK container, and print its own results"
    )


def _say(text: str) -> None:
    print(f"hf-triton: {text}", file=sys.stderr)
