"""A sweep from its beginning to its end: finds what it needs, measures load after load, keeps each,
and writes the report however it ends.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, PerfError, Problem, SpecError
from generator.models_yaml.reading import load_unpinned
from generator.spec.task_folders import find_tasks
from perf.in_use import in_use
from perf.report.rendering import MARKDOWN_FILE, PAGE_FILE
from perf.report.schema import append
from perf.roofline.share import is_countable
from perf.sweep import analyzer as analyzers
from perf.sweep import run_folder
from perf.sweep.analyzer import Analyzer
from perf.sweep.container import container_commands
from perf.sweep.described import described
from perf.sweep.limits import Limits, limits_in
from perf.sweep.measuring import Measurer, ServerGoneError
from perf.sweep.own_server import models_to_load, own_server
from perf.sweep.plan import Planned, input_files, measuring_command, plan
from perf.sweep.process import Runner
from perf.sweep.progress import Progress
from perf.sweep.scenario import Addresses, Scenario, Sweep
from perf.sweep.scenario_file import read_sweep
from perf.sweep.targets import Targets, of_json, of_repository
from perf.sweep.triton import DEFAULT, TritonView, find_addresses, is_supervised
from perf.sweep.usual import usual_sweep

# How long a server may take to come back; one of `hf-triton serve`, which loads its models again.
_RECOVERY_S, _HEALED_S = 20.0, 300.0


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


def read(options: Options) -> Sweep:
    """What is to be measured. Raises SpecError."""
    if options.scenario:
        sweep = read_sweep(options.scenario)
    else:
        specs = load_unpinned(options.config, find_tasks())
        sweep = usual_sweep([spec.name for spec in specs if spec.arm_of is None])
    sweep = replace(sweep, url=options.url or sweep.url)
    if not options.serve:
        return sweep
    return replace(sweep, serve=True, url=None)


def dry_run(options: Options) -> int:
    """Prints the commands, runs and writes nothing; asks the server only where it is up."""
    sweep = read(options)
    found = _planned(sweep, options, _views(sweep, options))
    print(f"cd {shlex.quote(str(options.folder))}  # its inputs/ are written by the sweep")
    for one in found:
        print(shlex.join(measuring_command(one, _addresses(one, sweep, options))))
    return EXIT_OK


def run(options: Options) -> int:
    """Measures; the exit code. Raises GeneratorError."""
    sweep = read(options)
    try:
        analyzer = analyzers.find(options.perf_analyzer)
    except analyzers.AnalyzerMissingError as error:
        raise PerfError(_for_container(sweep, options, str(error))) from None
    print(f"hf-triton: perf_analyzer {analyzer.version}, {analyzer.origin}", file=sys.stderr)
    with in_use(options.folder), _served(sweep, options) as addresses:
        if addresses:
            options = replace(options, url=addresses)
        views = _views(sweep, options)
        _check_live(views, options)
        found = _planned(sweep, options, views)
        return _measure(sweep, options, analyzer, found, views)


def _measure(
    sweep: Sweep,
    options: Options,
    analyzer: Analyzer,
    found: Sequence[Planned],
    views: dict[Addresses, TritonView],
) -> int:
    files = input_files(found)
    description = described(
        sweep, options.command, analyzer, found, views, run_folder.digest(files)
    )
    done = run_folder.begin(options.folder, description, files, options.fresh)
    missing = [one for one in found if one.key not in done]
    if done:
        _say(f"{len(found) - len(missing)} of {len(found)} loads are measured already")
    runner = Runner(analyzer, options.folder.resolve())
    code = EXIT_OK
    try:
        known = _limits(missing, options, lambda one: views[_addresses(one, sweep, options)])
        loads = _Loads(sweep, options, runner, views, known)
        with Progress(len(found) - len(missing), len(found)) as progress:
            failed = loads.measure(missing, progress)
    except KeyboardInterrupt:
        code, failed = EXIT_INTERRUPTED, 0
        _say("stopped; what is measured is kept, and the same command goes on")
    except ServerGoneError as error:
        run_folder.render(options.folder)
        raise PerfError(_gone(options, str(error))) from None
    run_folder.render(options.folder)
    print((options.folder / MARKDOWN_FILE).read_text(encoding="utf-8"))
    print(f"{options.folder / PAGE_FILE}  # the same with plots")
    if failed:
        _say(f"{failed} load{'s' * (failed != 1)} failed; the same command tries again")
    return code or (EXIT_INPUT if failed else EXIT_OK)


def _limits(
    missing: Sequence[Planned], options: Options, view_of: Callable[[Planned], TritonView]
) -> Limits:
    """What this machine allows the decoders that it is to measure."""
    here = [
        one.load.target
        for one in missing
        if one.counts_tokens and is_countable(one.load) and view_of(one).is_local
    ]
    with run_folder.disk(options.folder):
        return limits_in(options.folder, here, options.repository)


@dataclass(frozen=True)
class _Loads:
    """Measures load after load and keeps each."""

    sweep: Sweep
    options: Options
    runner: Runner
    views: dict[Addresses, TritonView]
    limits: Limits

    def measure(self, missing: Sequence[Planned], progress: Progress) -> int:
        """How many failed. Raises ServerGoneError; PerfError where the disk is full."""
        failed = 0
        for one in missing:
            view = self.views[_addresses(one, self.sweep, self.options)]
            measurer = Measurer(self.runner, view, partial(self.recovery_s, view), progress.show)
            with run_folder.disk(self.options.folder, "; what is measured so far is kept"):
                measurement = self.limits.with_share(measurer.measure(one))
                append(self.options.folder, measurement)
            failed += not measurement.num_requests
            progress.finished(one.label, measurement)
        return failed

    def recovery_s(self, view: TritonView) -> float:
        """Asked when a server has gone: who would bring it back may have gone with it."""
        healed = self.sweep.serve or is_supervised(view.addresses, self.options.repository)
        return _HEALED_S if healed else _RECOVERY_S


def _planned(sweep: Sweep, options: Options, views: dict[Addresses, TritonView]) -> list[Planned]:
    """All of it. Raises SpecError, PerfError with every mistake that only the server shows."""
    found, problems = [], []
    for scenario in sweep.scenarios:
        view = views[_of_scenario(scenario, sweep, options)]
        targets = _targets(view, options)
        found += plan(scenario, targets, options.repository, sweep.seed)
        problems += targets.problems
    _refuse(problems, sweep.file)
    return found


def _targets(view: TritonView, options: Options) -> Targets:
    if view.is_live():
        return Targets(lambda name: of_json(view.config(name)), view.model_names)
    names = [path.parent.name for path in options.repository.glob("*/config.pbtxt")]
    if not names:
        raise PerfError(
            f"no Triton answers at {view.addresses.http}, and {options.repository} has no models: "
            f"`hf-triton generate --config {options.config}` writes them"
        )
    return Targets(of_repository(options.repository), lambda: names)


def _refuse(problems: Sequence[Problem], file: str) -> None:
    if problems and file:
        raise SpecError(file, problems)
    if problems:
        raise PerfError("\n".join(f"{one.where}: {one.message}" for one in problems))


def _views(sweep: Sweep, options: Options) -> dict[Addresses, TritonView]:
    every = {_of_scenario(scenario, sweep, options) for scenario in sweep.scenarios}
    return {addresses: TritonView(addresses) for addresses in every}


def _of_scenario(scenario: Scenario, sweep: Sweep, options: Options) -> Addresses:
    if sweep.serve:
        return options.url or DEFAULT
    return scenario.url or sweep.url or options.url or find_addresses(options.repository)


def _addresses(planned: Planned, sweep: Sweep, options: Options) -> Addresses:
    if sweep.serve:
        return options.url or DEFAULT
    return planned.given or sweep.url or options.url or find_addresses(options.repository)


def _check_live(views: dict[Addresses, TritonView], options: Options) -> None:
    """Raises PerfError where one does not answer."""
    for addresses, view in views.items():
        if not view.is_live():
            raise PerfError(
                f"no Triton answers at {addresses.http}; {_how_to_start(options)}, "
                "or measure with --serve"
            )


def _how_to_start(options: Options) -> str:
    words = ["hf-triton", "serve", "--config", str(options.config)]
    return f"start it with `{shlex.join([*words, '--repository', str(options.repository)])}`"


def _gone(options: Options, reason: str) -> str:
    return (
        f"the server no longer answers ({reason}); what is measured is kept in {options.folder}: "
        f"{_how_to_start(options)}, then the same command goes on"
    )


@contextlib.contextmanager
def _served(sweep: Sweep, options: Options) -> Iterator[Addresses | None]:
    """With ``serve: true`` the addresses of a server of our own. Raises PerfError, SpecError."""
    if not sweep.serve:
        yield None
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
    found = _planned(sweep, options, _views(sweep, options))
    run_folder.write_files(options.folder, input_files(found))
    commands = [measuring_command(one, _addresses(one, sweep, options)) for one in found]
    print("\n".join(container_commands(commands, options.folder.resolve(), options.sdk_image)))
    lines = "".join(f"\n    {line}" for line in reasons.splitlines())
    return (
        f"no perf_analyzer runs here:{lines}\nthe commands above send the same loads from NVIDIA's "
        "SDK container, and print its own results"
    )


def _say(text: str) -> None:
    print(f"hf-triton: {text}", file=sys.stderr)
