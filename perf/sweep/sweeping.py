"""A sweep from its beginning to its end: finds what it needs, measures load after load, keeps each,
and writes the report however it ends.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from perf.sweep import run_folder
from perf.sweep.analyzer import finding
from perf.sweep.analyzer.finding import Analyzer
from perf.sweep.analyzer.process import Runner
from perf.sweep.commands import container_commands, measuring_command
from perf.sweep.measuring import Measurer, ServerGoneError
from perf.sweep.plan import Planned, input_files, plan
from perf.sweep.progress import Progress
from perf.sweep.requests.targets import Targets, of_json, of_repository
from perf.sweep.scenario.file import read_sweep
from perf.sweep.scenario.model import Addresses, Sweep, usual_sweep
from perf.sweep.server.limits import Limits, limits_in
from perf.sweep.server.own_server import models_to_load, own_server
from perf.sweep.server.triton import DEFAULT, TritonView, find_addresses, is_supervised

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
    print(f"cd {shlex.quote(str(options.folder))}  # its inputs/ are written by the sweep")
    for command in _commands(_planned(sweep, options, _views(sweep, options)), sweep, options):
        print(shlex.join(command))
    return EXIT_OK


def run(options: Options) -> int:
    """Measures; the exit code. Raises GeneratorError."""
    sweep = read(options)
    try:
        analyzer = finding.find(options.perf_analyzer)
    except finding.AnalyzerMissingError as error:
        raise PerfError(_for_container(sweep, options, str(error))) from None
    _say(f"perf_analyzer {analyzer.version}, {analyzer.origin}")
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
    views: Mapping[Addresses, TritonView],
) -> int:
    files, folder = input_files(found), options.folder
    digest = run_folder.digest(files)
    described = run_folder.described(sweep, options.command, analyzer, found, views, digest)
    done = run_folder.begin(folder, described, files, options.fresh)
    missing = [
        (one, views[_address(one.given, sweep, options)]) for one in found if one.key not in done
    ]
    if done:
        _say(f"{len(found) - len(missing)} of {len(found)} loads are measured already")
    runner, code, failed = Runner(analyzer, folder.resolve()), EXIT_OK, 0
    try:
        known = _limits(missing, options)
        with Progress(len(found) - len(missing), len(found)) as progress:
            for one, view in missing:
                recovery_s = partial(_recovery_s, sweep, options, view)
                measurer = Measurer(runner, view, recovery_s, progress.show)
                with run_folder.disk(folder, "; what is measured so far is kept"):
                    measurement = known.with_share(measurer.measure(one))
                    append(folder, measurement)
                failed += not measurement.num_requests
                progress.finished(one.label, measurement)
    except KeyboardInterrupt:
        code, failed = EXIT_INTERRUPTED, 0
        _say("stopped; what is measured is kept, and the same command goes on")
    except ServerGoneError as error:
        run_folder.render(folder)
        raise PerfError(_gone(options, str(error))) from None
    run_folder.render(folder)
    print((folder / MARKDOWN_FILE).read_text(encoding="utf-8"))
    print(f"{folder / PAGE_FILE}  # the same with plots")
    if failed:
        _say(f"{failed} load{'s' * (failed != 1)} failed; the same command tries again")
    return code or (EXIT_INPUT if failed else EXIT_OK)


def _limits(missing: Sequence[tuple[Planned, TritonView]], options: Options) -> Limits:
    """What this machine allows the decoders that it is to measure."""
    here = [
        one.load.target
        for one, view in missing
        if one.counts_tokens and is_countable(one.load) and view.is_local
    ]
    with run_folder.disk(options.folder):
        return limits_in(options.folder, here, options.repository)


def _recovery_s(sweep: Sweep, options: Options, view: TritonView) -> float:
    """Asked when a server has gone: who would bring it back may have gone with it."""
    healed = sweep.serve or is_supervised(view.addresses, options.repository)
    return _HEALED_S if healed else _RECOVERY_S


def _planned(
    sweep: Sweep, options: Options, views: Mapping[Addresses, TritonView]
) -> list[Planned]:
    """All of it. Raises SpecError, PerfError with every mistake that only the server shows."""
    found: list[Planned] = []
    problems: list[Problem] = []
    for scenario in sweep.scenarios:
        targets = _targets(views[_address(scenario.url, sweep, options)], options)
        found += plan(scenario, targets, options.repository, sweep.seed)
        problems += targets.problems
    if problems and sweep.file:
        raise SpecError(sweep.file, problems)
    if problems:
        raise PerfError("\n".join(f"{one.where}: {one.message}" for one in problems))
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


def _views(sweep: Sweep, options: Options) -> dict[Addresses, TritonView]:
    every = {_address(scenario.url, sweep, options) for scenario in sweep.scenarios}
    return {addresses: TritonView(addresses) for addresses in every}


def _address(given: Addresses | None, sweep: Sweep, options: Options) -> Addresses:
    """Of the server that a load is sent to; ``given`` is its scenario's own."""
    if sweep.serve:
        return options.url or DEFAULT
    return given or sweep.url or options.url or find_addresses(options.repository)


def _commands(found: Sequence[Planned], sweep: Sweep, options: Options) -> list[list[str]]:
    return [measuring_command(one, _address(one.given, sweep, options)) for one in found]


def _check_live(views: Mapping[Addresses, TritonView], options: Options) -> None:
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
    commands = _commands(found, sweep, options)
    print("\n".join(container_commands(commands, options.folder.resolve(), options.sdk_image)))
    lines = "".join(f"\n    {line}" for line in reasons.splitlines())
    return (
        f"no perf_analyzer runs here:{lines}\nthe commands above send the same loads from NVIDIA's "
        "SDK container, and print its own results"
    )


def _say(text: str) -> None:
    print(f"hf-triton: {text}", file=sys.stderr)
