"""Runs ``hf-triton perf tune``: the search, the repeats, and the printed result.

A coordinate search: moves one key at a time up and down its values while that improves the result,
then measures the winner and the current settings again in turns. Results are kept, so a search
continues.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK
from generator.models_yaml.reading import load
from generator.spec.task_folders import find_tasks
from generator.yaml_file.keys import plain
from hf_triton.runtime.devices.device import num_cores
from hf_triton.tritonserver.log import say
from hf_triton.tritonserver.state_file import running_servers
from perf.report.compare import Compared, difference
from perf.report.points import LATENCY, THROUGHPUT, TOKENS, points
from perf.report.rendering import table, write_renderings
from perf.report.schema import Load, Measurement, Run, append, read_measurements
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
from perf.tune.space import Settings, Space, are_ordered, make_space, settings_text, worth_trying
from perf.tune.write_back import write_settings

RESULTS_FOLDER = Path("perf-results")
_NUM_CONFIRMED = 2  # candidates to confirm, if the first misses the bounds when measured again
MAX_FAILURES = 3  # failures in a row before any success: the model does not load at all
_NUM_WORSE = 2  # values in a row without improvement that end a direction


@dataclass
class Search:
    """One search in one folder. ``tell`` gets the number of each trial that ends, and what was
    measured.
    """

    space: Space
    request: Request
    bench: Any  # a Bench
    folder: Path
    tell: Callable[[int, Measurement], object] = lambda *_: None

    def run(self) -> str:
        """Runs until the search ends; returns the reason. Raises OSError, KeyboardInterrupt."""
        self._better(self.space.current)
        while any(map(self._improve_key, self.space.dimensions)):
            pass
        return self._end() or "no other value of a key is better"

    def trials(self) -> list[Measurement]:
        """The finished trials; the first has the current settings."""
        return [each for each in read_measurements(self.folder) if each.repeat == 0]

    def ranked(self) -> list[Measurement]:
        """The trials that did not fail, the best first."""
        whole = [each for each in self.trials() if not each.has_failed]
        return sorted(whole, key=self.request.goal.loss)

    def _improve_key(self, key: str) -> bool:
        best = self.ranked()
        settings = best[0].load.settings if best else self.space.current
        values, is_better = self.space.dimensions[key], False
        begin = values.index(settings[key])
        if settings[key] is None:  # the model's default has no place among the numbers
            begin = (len(values) + 1) // 2
            is_better = self._better({**settings, key: values[begin]})
        for way in (values[begin + 1 :], values[:begin][::-1]):
            num_worse = 0
            for value in way:
                found = self._better({**settings, key: value})
                is_better |= found
                num_worse = 0 if found else num_worse + 1
                if num_worse == _NUM_WORSE and are_ordered(values):
                    break
        return is_better

    def _better(self, settings: Settings) -> bool:
        """Tries settings that are new, unless the search is at its end; whether they are the best
        so far.
        """
        trials = self.trials()
        is_new = all(dict(each.load.settings) != dict(settings) for each in trials)
        if not is_new or self._end():
            return False
        try:
            with self.bench.serving(settings) as measure:
                found: Measurement = measure(self.request.seconds)
        except TrialError as error:
            found = self.bench.failed(settings, str(error))
        append(self.folder, found)
        self.tell(len(trials), found)
        return self.ranked()[:1] == self.trials()[-1:]

    def _end(self) -> str:
        """The reason to end the search, or nothing."""
        trials = self.trials()
        if len(trials) >= self.request.trials:
            return f"{self.request.trials} trials"
        if len(trials) >= MAX_FAILURES and all(each.has_failed for each in trials):
            return f"{len(trials)} trials, all failed"
        return ""

    def in_turns(self, winner: Load, current: Load) -> tuple[list[Measurement], list[Measurement]]:
        """Measures both in turns, each time on a new server; repeats in the folder are kept."""
        most, folder = self.request.repeats, self.folder

        def found(of: Load) -> list[Measurement]:
            return [each for each in read_measurements(folder) if each.load == of and each.repeat]

        for turn in range(1, most + 1):
            for one in (current, winner):
                if len(found(one)) < turn:
                    with self.bench.serving(one.settings) as measure:
                        append(folder, replace(measure(self.request.seconds), repeat=turn))
        return found(winner)[:most], found(current)[:most]


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


def compared(
    winner: Sequence[Measurement], current: Sequence[Measurement], goal: Goal
) -> Compared | None:
    """The winner's repeats against the current settings', by the rule of ``perf compare``."""
    metric = LATENCY["p99"] if goal.wanted == "latency" else TOKENS
    if goal.wanted == "throughput" and any(each.output_tokens_per_s is None for each in current):
        metric = THROUGHPUT
    values = ([v for each in of if (v := metric.value(each))] for of in (current, winner))
    found = difference(*values)
    return Compared(metric, found) if found else None


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
