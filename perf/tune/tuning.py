"""``hf-triton perf tune`` from a request to an answer: the search, the repeats, what is printed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, PerfError
from generator.spec.task_folders import Task
from hf_triton.tritonserver.state_file import running_servers
from perf.in_use import in_use, taken_up
from perf.machine import here
from perf.report import markdown
from perf.report.best import Bounds
from perf.report.rendering import write_renderings
from perf.report.schema import Percentiles, Run
from perf.tune.goal import Goal, throughput
from perf.tune.question import Question, Request, counted_by, files_of
from perf.tune.search import (
    Bench,
    Confirmation,
    Outcome,
    Search,
    TrialError,
    Verdict,
    in_turns,
    ranked,
    told,
)
from perf.tune.served import Room, ServedBench
from perf.tune.space import Space, settings_text, short, value_text
from perf.tune.write_back import write_settings

RESULTS_FOLDER = Path("perf-results")
_NUM_CONFIRMED = 2  # winners that are measured again where the first misses the bounds then
_REPEATS = "{n}/{total} repeats |{bar:20}| {elapsed} {postfix}"
_BAR = "{n}/{total} trials |{bar:20}| {elapsed} {desc}{postfix}"


def tune(request: Request) -> int:
    """Returns the exit code. Raises GeneratorError where the search can't begin or be kept."""
    question = Question.of(request)
    spec, scenario = question.spec, question.scenario()
    folder = folder_of(spec.name, scenario, request.output)
    files = files_of(spec, request.repository)
    room = Room.of(spec, files)
    for server in running_servers(request.repository):
        _say(
            f"a server runs on {request.repository} (port {server.http_port}): what it does now "
            "meets what is measured"
        )
    try:
        with (
            opened(folder, scenario, request.command),
            tempfile.TemporaryDirectory(prefix="hf-triton-tune-") as scratch,
        ):
            repository = question.repository(Path(scratch))
            inputs = counted_by(question.inputs, files)
            sent = inputs, question.endpoint, request.concurrency, request.seed
            bench = ServedBench(repository, room, *sent, folder, files)
            return Tuning(request, question.space, bench, folder, question.tasks).run()
    except OSError as error:
        raise PerfError(
            f"{error.filename or folder}: {error.strerror or error}; what was measured is in "
            f"{folder}, and the same command goes on there"
        ) from None


@dataclass
class Tuning:
    """One search, from what was found before to what is said of it."""

    request: Request
    space: Space
    bench: Bench
    folder: Path
    tasks: Mapping[str, Task]

    def run(self) -> int:
        request, goal = self.request, self.request.goal
        search = Search(self.space, goal, self.bench, self.folder, request.effort, request.seed)
        try:
            _say(f"ended after {self._search(search)}")
            verdict = self._confirm(search.outcomes())
        except KeyboardInterrupt:
            self._print(search.outcomes())
            _say("interrupted; the same command goes on from here")
            return EXIT_INTERRUPTED
        finally:
            write_renderings(self.folder, Bounds(goal.max_p99_ms, goal.max_ttft_ms))
            _say(f"results are in {self.folder}")
        self._print(search.outcomes())
        for of, why in list(search.refused.items())[:1]:
            text = f"such as {settings_text(dict(of))}: {why}"
            print(f"{len(search.refused)} settings were left out, {text}")
        print(*told(verdict, goal), sep="\n")
        if request.write and verdict.winner is not None:
            self._write(verdict, verdict.winner)
        return EXIT_INPUT if verdict.winner is None else EXIT_OK

    def _search(self, search: Search) -> str:
        goal, total, done = self.request.goal, self.request.effort.trials, len(search.outcomes())
        with tqdm(total=total, initial=done, bar_format=_BAR, mininterval=0.5, miniters=0) as bar:
            self.bench.show_to(lambda what: _show(bar, what))

            def tell(outcome: Outcome) -> None:
                bar.update()
                if outcome.state == "failed":
                    reason = outcome.measurement.first_error
                    tqdm.write(f"trial {outcome.number} failed: {reason}", file=sys.stderr)
                for best in ranked(search.outcomes(), goal)[:1]:
                    unit = "ms p99" if goal.wanted == "latency" else "/s"
                    met = "" if goal.is_met(best.measurement) else ", bounds missed"
                    shown = f"{goal.value(best.measurement):,.0f} {unit}{met}"
                    bar.set_description_str(f"best {shown} ({settings_text(best.settings)})")

            search.tell = tell
            return search.run()

    def _confirm(self, outcomes: list[Outcome]) -> Verdict:
        """Measures what won and what is current again, in turns."""
        goal = self.request.goal
        measured = [each for each in ranked(outcomes, goal) if each.state == "measured"]
        fitting = [each for each in measured if goal.is_met(each.measurement)]
        current = next((each for each in outcomes if each.number == 0), None)
        nearest = measured[0] if measured else None
        missed: list[Outcome] = []
        for best in fitting[:_NUM_CONFIRMED]:
            is_alone = current is None or best.number == 0 or current.state == "failed"
            confirmation = None if is_alone or current is None else self._turns(best, current)
            if confirmation is None or confirmation.meets(goal):
                return Verdict(best, current, confirmation, nearest, missed)
            missed.append(best)
        return Verdict(None, current, None, nearest, missed)

    def _turns(self, best: Outcome, current: Outcome) -> Confirmation | None:
        repeats, seconds = self.request.repeats, self.request.effort.seconds
        if not repeats:
            return None
        with tqdm(total=2 * repeats, bar_format=_REPEATS) as bar:
            self.bench.show_to(lambda what: _show(bar, what))
            both = (self.bench, self.folder, best, current)
            try:
                return in_turns(*both, repeats=repeats, seconds=seconds, advance=bar.update)
            except TrialError as error:
                _say(f"could not be measured again: {error}")
                return None

    def _write(self, verdict: Verdict, winner: Outcome) -> None:
        config, name = self.request.config, self.request.model
        if not verdict.is_worth_writing(self.request.goal):
            print(f"{config} stays as it is")
            return
        changes = write_settings(config, name, self.space.current, winner.settings, self.tasks)
        print(changes or f"{config} says so already", end="" if changes else "\n")
        print(f"hf-triton apply brings a running server to {config}")

    def _print(self, outcomes: list[Outcome]) -> None:
        goal = self.request.goal
        print("\n".join([f"goal: {goal.describe()}", "", *table(outcomes, goal), ""]))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _show(bar: tqdm, what: str) -> None:
    bar.set_postfix_str(what, refresh=False)
    bar.update(0)


def folder_of(model: str, question: Mapping[str, Any], chosen: Path | None) -> Path:
    """A folder that is the same for the same question, so that the same command goes on."""
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    return chosen or RESULTS_FOLDER / f"tune-{model}-{digest[:8]}"


@contextlib.contextmanager
def opened(folder: Path, question: Mapping[str, Any], command: str) -> Iterator[None]:
    """Makes the folder, or takes it up. Raises PerfError where it is another search's or in use."""
    title = f"Settings for {question['model']}: {question['goal']}"
    with in_use(folder):
        taken_up(folder, Run(kind="tune", **here(command), title=title, scenario=question))
        yield


def table(outcomes: Sequence[Outcome], goal: Goal) -> list[str]:
    """Markdown: a row for each trial with figures, then why the others have none."""
    order = ranked(outcomes, goal)
    failed = [
        f"- trial {each.number} failed: {settings_text(each.settings)}: "
        f"{each.measurement.first_error}"
        for each in outcomes
        if each.state == "failed"
    ]
    if not order:
        return failed
    tokens = any(each.measurement.output_tokens_per_s is not None for each in order)
    keys = [*order[0].settings]
    heads = ["rank", "trial", *map(short, keys), "tokens/s" if tokens else "requests/s"]
    heads += ["p99 ms", "TTFT p99 ms", "memory GiB", "GPU GiB", "bounds"]
    rows = [_row(place, each, keys, goal) for place, each in enumerate(order, 1)]
    kept = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    picked = ([row[at] for at in kept] for row in (heads, *rows))
    return [*markdown.table(next(picked), picked, "><"), *failed]


def _row(place: int, each: Outcome, keys: Iterable[str], goal: Goal) -> list[str]:
    found = each.measurement
    early = " (stopped early)" if each.state == "stopped early" else ""
    gib = (found.machine.get(name) for name in ("memory_gib", "gpu_memory_gib"))
    return [
        str(place),
        f"{each.number}{' current' if each.number == 0 else ''}{early}",
        *(value_text(each.settings[key]) for key in keys),
        f"{throughput(found):,.1f}",
        *(_p99(times) for times in (found.latency, found.time_to_first_token)),
        *("" if size is None else f"{size:.2f}" for size in gib),
        "met" if goal.is_met(found) else _broken(each, goal),
    ]


def _p99(times: Percentiles | None) -> str:
    return "" if times is None else f"{times.p99_ms:,.0f}"


def _broken(each: Outcome, goal: Goal) -> str:
    excess = {name: by for name, by in goal.excess(each.measurement).items() if by > 0}
    errors = [f"{each.measurement.num_errors} errors"] * (excess.pop("errors", None) is not None)
    parts = [f"{name.replace('ttft', 'TTFT')} by {by:.0%}" for name, by in excess.items()]
    return f"missed: {', '.join([*parts, *errors])}"
