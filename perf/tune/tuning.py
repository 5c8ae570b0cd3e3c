"""Runs ``hf-triton perf tune``: the search, the repeats, and the printed result."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK
from generator.models_yaml.reading import load
from generator.spec.task_folders import find_tasks
from generator.yaml_file.keys import plain
from hf_triton.runtime.devices.device import num_cores
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.state_file import running_servers
from perf.report.points import points
from perf.report.rendering import table, write_renderings
from perf.report.schema import Measurement, Run, read_measurements
from perf.run_folder import continued_or_new, locked_folder, run_context
from perf.tune.bench import Bench, TrialError
from perf.tune.question import (
    Goal,
    Request,
    endpoint_of,
    find_model,
    inputs_of,
    require_files,
)
from perf.tune.search import Search, compared
from perf.tune.space import Settings, make_space, settings_text, worth_trying
from perf.tune.write_back import write_settings

RESULTS_FOLDER = Path("perf-results")
_NUM_CONFIRMED = 2  # candidates to confirm, if the first misses the bounds when measured again


def tune(request: Request) -> int:
    """Returns the exit code. Raises GeneratorError where the search can't begin or be stored."""
    spec = find_model(load(request.config), request.model, request.config)
    task = find_tasks()[spec.task]
    usual = worth_trying(spec, task, request.concurrency, num_cores())
    space = make_space(spec, task, request.search, usual)
    inputs = inputs_of(spec, request.load)
    endpoint = endpoint_of(spec, request.goal)
    require_files(spec, request.repository)
    scenario = {  # the options that identify a search and name its folder
        "model": spec.name,
        "entry": {key: plain(node) for key, node in spec.places.items()},
        "goal": request.goal.describe(),
        "endpoint": endpoint,
        "concurrency": request.concurrency,
        "input": asdict(inputs),
        "search": {key: list(values) for key, values in space.dimensions.items()},
        "current": dict(space.current),
        "seconds": request.seconds,
        "seed": request.seed,
    }
    for server in running_servers(request.repository):
        say(
            f"a server runs on {request.repository} (port {server.http_port}): its load "
            "distorts what is measured"
        )
    # The same command continues its search.
    digest = hashlib.sha256(json.dumps(scenario, sort_keys=True).encode()).hexdigest()
    folder = request.output or RESULTS_FOLDER / f"tune-{spec.name}-{digest[:8]}"
    title = f"Settings for {spec.name}: {request.goal.describe()}"
    with locked_folder(folder), tempfile.TemporaryDirectory(prefix="hf-triton-tune-") as scratch:
        continued_or_new(
            folder, Run("tune", **run_context(request.command), title=title, scenario=scenario)
        )
        bench = Bench(request, spec, Path(scratch), inputs, endpoint)
        return run(Search(space, request, bench, folder, partial(_say_trial, request.goal)))


def run(search: Search) -> int:
    """Searches, prints the result, and writes it; returns the exit code. Raises OSError."""
    request, folder, current = search.request, search.folder, search.space.current
    try:
        say(f"ended after {search.run()}")
        winner, said = _judged(search)
    except KeyboardInterrupt:
        say("interrupted; the same command continues from here")
        return EXIT_INTERRUPTED
    finally:
        write_renderings(folder)
        now = f"now: {settings_text(current)}"
        lines = [f"goal: {request.goal.describe()}", now, "", *ranking(folder, request.goal), ""]
        print("\n".join(lines))
        say(f"results are in {folder}")
    print("\n".join(said))
    if request.write and winner is not None and dict(winner) == dict(current):
        print(f"{request.config} stays as it is")
    elif request.write and winner is not None:
        changes = write_settings(request.config, request.model, winner)
        print(changes or f"{request.config} has these settings already")
        print(f"hf-triton apply brings a running server to {request.config}")
    return EXIT_INPUT if winner is None else EXIT_OK


def _say_trial(goal: Goal, number: int, found: Measurement) -> None:
    unit = "ms p99" if goal.wanted == "latency" else "/s"
    said = f"failed: {found.first_error}"
    if not found.has_failed:
        said = f"{goal.value(found):,.0f} {unit}"
        said += "" if goal.is_met(found) else ", bounds missed"
    say(f"trial {number}: {settings_text(found.load.settings)}: {said}")


def _judged(search: Search) -> tuple[Settings | None, list[str]]:
    """The settings to recommend, and the text about them: the current ones unless others are
    better beyond noise, None if no settings meet the bounds.
    """
    goal, lines, trials = search.request.goal, list[str](), search.trials()
    order, now = search.ranked(), trials[0]

    def named(trial: Measurement) -> str:
        return f"trial {trials.index(trial)}: {settings_text(trial.load.settings)}"

    if not order:
        return None, ["nothing could be measured: see why each trial failed"]
    for best in list(filter(goal.is_met, order))[:_NUM_CONFIRMED]:
        settings, text = best.load.settings, f"best: {named(best)}"
        if best == now:
            return settings, [*lines, "the current settings are the best that was found"]
        if now.has_failed:
            return settings, [*lines, text, "the current settings could not be measured"]
        again: tuple[list[Measurement], list[Measurement]] = [], []
        if search.request.repeats:
            say(f"measuring trial {trials.index(best)} and the current settings again, in turns")
            try:
                again = search.in_turns(best.load, now.load)
            except TrialError as error:
                say(f"could not be measured again: {error}")
        if again[0] and sum(map(goal.is_met, again[0])) * 2 <= len(again[0]):
            lines += [f"trial {trials.index(best)} won, but missed the bounds when measured again"]
            continue
        found = compared(*again, goal)
        said = f"{found.metric.label}, over the current settings': {found}" if found else ""
        few = "" if found and found.verdict else "too few repeats to rule out noise (--repeats 3)"
        lines += [text, "; ".join(filter(None, (said, few)))]
        if not goal.is_met(now):
            return settings, [*lines, "the current settings miss the bounds"]
        is_better = found is not None and found.verdict == "better"
        return (best if is_better else now).load.settings, lines
    return None, [
        *lines,
        f"nothing meets the bounds ({goal.describe()})",
        f"nearest: {named(order[0])}",
    ]


def ranking(folder: Path, goal: Goal) -> Iterator[str]:
    """A Markdown table, the best settings first; then the failed ones with their reasons."""
    lines = read_measurements(folder)
    failed = [each for each in lines if each.has_failed]
    good = [each for each in lines if not each.has_failed]
    if ranked := sorted(points(good), key=lambda point: goal.loss(point.repeats[0])):
        shown = table(ranked)
        yield from (*shown.markdown(), "", shown.everywhere)
    for each in failed:
        yield f"- failed: {settings_text(each.load.settings)}: {each.first_error}"
