"""Runs ``hf-triton perf tune``: the search, the repeats, and the printed result."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK
from generator.models_yaml.reading import load
from generator.spec.task_folders import find_tasks
from generator.yaml_file.keys import plain
from hf_triton.runtime.devices.device import num_cores
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
from perf.tune.search import (
    Outcome,
    Search,
    compared,
    in_turns,
    measured,
    outcomes_in,
)
from perf.tune.space import Settings, Space, make_space, settings_text, worth_trying
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
        _say(
            f"a server runs on {request.repository} (port {server.http_port}): what it does now "
            "meets what is measured"
        )
    # The same command continues its search.
    digest = hashlib.sha256(json.dumps(scenario, sort_keys=True).encode()).hexdigest()
    folder = request.output or RESULTS_FOLDER / f"tune-{spec.name}-{digest[:8]}"
    title = f"Settings for {spec.name}: {request.goal.describe()}"
    with locked_folder(folder), tempfile.TemporaryDirectory(prefix="hf-triton-tune-") as scratch:
        continued_or_new(
            folder, Run("tune", **run_context(request.command), title=title, scenario=scenario)
        )
        bench = Bench(request, spec, Path(scratch), folder, inputs, endpoint)
        return Tuning(request, space, bench, folder).run()


@dataclass
class Tuning:
    request: Request
    space: Space
    bench: Any  # a Bench
    folder: Path

    def run(self) -> int:
        request, goal = self.request, self.request.goal
        search = Search(self.space, request, self.bench, self.folder, self._say_trial)
        try:
            _say(f"ended after {search.run()}")
            winner, said = self._judged(outcomes_in(self.folder))
        except KeyboardInterrupt:
            _say("interrupted; the same command goes on from here")
            return EXIT_INTERRUPTED
        finally:
            write_renderings(self.folder)
            now = f"now: {settings_text(self.space.current)}"
            lines = [f"goal: {goal.describe()}", now, "", *ranking(self.folder, goal), ""]
            print("\n".join(lines))
            _say(f"results are in {self.folder}")
        print("\n".join(said))
        if request.write and winner is not None and dict(winner) == dict(self.space.current):
            print(f"{request.config} stays as it is")
        elif request.write and winner is not None:
            changes = write_settings(request.config, request.model, winner)
            print(changes or f"{request.config} says so already")
            print(f"hf-triton apply brings a running server to {request.config}")
        return EXIT_INPUT if winner is None else EXIT_OK

    def _say_trial(self, outcome: Outcome) -> None:
        found, goal = outcome.measurement, self.request.goal
        unit = "ms p99" if goal.wanted == "latency" else "/s"
        said = f"failed: {found.first_error}"
        if not outcome.has_failed:
            said = f"{goal.value(found):,.0f} {unit}"
            said += "" if goal.is_met(found) else ", bounds missed"
        _say(f"trial {outcome.number}: {settings_text(outcome.settings)}: {said}")

    def _judged(self, outcomes: list[Outcome]) -> tuple[Settings | None, list[str]]:
        """The settings to recommend, and the text about them: the current ones where none is better
        beyond noise, None where none meets the bounds.
        """
        goal, lines = self.request.goal, list[str]()
        order = measured(outcomes, goal)
        if not order:
            return None, ["nothing could be measured: see why each trial failed"]
        for best in [each for each in order if goal.is_met(each.measurement)][:_NUM_CONFIRMED]:
            text = f"best: trial {best.number}: {settings_text(best.settings)}"
            if best.number == 0:
                return best.settings, [*lines, "the current settings are the best that was found"]
            if outcomes[0].has_failed:
                return best.settings, [*lines, text, "the current settings could not be measured"]
            again: tuple[list[Measurement], list[Measurement]] = [], []
            if self.request.repeats:
                _say(f"measuring trial {best.number} and the current settings again, in turns")
                try:
                    again = in_turns(self.bench, self.folder, best, outcomes[0], self.request)
                except TrialError as error:
                    _say(f"could not be measured again: {error}")
            if again[0] and sum(map(goal.is_met, again[0])) * 2 <= len(again[0]):
                lines += [f"trial {best.number} won, but missed the bounds when measured again"]
                continue
            found = compared(*again, goal)
            said = f"{found.metric.label}, over the current settings': {found}" if found else ""
            few = "" if found and found.verdict else "too few repeats to tell noise (--repeats 3)"
            lines += [text, "; ".join(filter(None, (said, few)))]
            if not goal.is_met(outcomes[0].measurement):
                return best.settings, [*lines, "the current settings miss the bounds"]
            is_better = found is not None and found.verdict == "better"
            return (best if is_better else outcomes[0]).settings, lines
        near = f"nearest: trial {order[0].number}: {settings_text(order[0].settings)}"
        return None, [*lines, f"nothing meets the bounds ({goal.describe()})", near]


def ranking(folder: Path, goal: Goal) -> Iterator[str]:
    """A Markdown table, the best settings first; then the failed ones with their reasons."""
    lines = read_measurements(folder)
    failed = [each for each in lines if not each.num_requests]
    good = [each for each in lines if each.num_requests]
    if ranked := sorted(points(good), key=lambda point: goal.loss(point.repeats[0])):
        shown = table(ranked)
        yield from (*shown.markdown(), "", shown.everywhere)
    for each in failed:
        yield f"- failed: {settings_text(each.load.settings)}: {each.first_error}"


def _say(text: str) -> None:
    print(f"hf-triton: {text}", file=sys.stderr)
