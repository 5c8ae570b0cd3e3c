"""What callers notice of something that is done to `hf-triton serve` while they ask."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from generator.server.listen import Listen
from generator.server.restart_policy import RestartPolicy
from perf.load.http import Target
from perf.load.levels import LevelArguments
from perf.load.measure import Policy, Record, percentile
from perf.load.process import Generator, LevelError, generator, http_command
from perf.load.targets import GREEDY, GREEDY_STREAM
from perf.report.markdown import spread, table
from perf.serving import free_listen

DEMO_MODEL = Path(__file__).parents[2] / "demo" / "model"
PROMPTS = ("Once upon a time", "The bear went", "In the garden")
LONGEST_S = 300.0
WITHOUT_END = Policy(sys.maxsize, 0, float("inf"))
HEADS = (
    *("done", "seconds", "callers", "times", "s until answered", "requests", "lost or wrong"),
    *("p99 s before", "p99 s meanwhile"),
)


class Served:
    """A running `hf-triton serve` in ``folder``."""

    def __init__(self, folder: Path, models_yaml: str) -> None:
        self.folder, self.models_yaml = folder, models_yaml
        self.listen: Listen = free_listen()

    def command(self, *arguments: str) -> list[str]:
        """A verb on the models.yaml in the folder."""
        places = [f"--config={self.folder / 'models.yaml'}", f"--repository={self.repository}"]
        return [sys.executable, "-m", "generator", *arguments, *places]

    @property
    def repository(self) -> Path:
        return self.folder / "model_repository"

    def write(self, number: int) -> None:
        """models.yaml, in the ``number``-th of as many forms as wanted."""
        text = self.models_yaml.format(model=DEMO_MODEL, max_queue_size=1000 + number)
        (self.folder / "models.yaml").write_text(text, encoding="utf-8")

    def process(self, *marks: str) -> int:
        """The newest process whose command line has all of ``marks``."""
        found = [
            each.pid
            for each in psutil.process_iter(["cmdline"])
            if all(mark in " ".join(each.info["cmdline"] or ()) for mark in marks)
            and "server_guard" not in " ".join(each.info["cmdline"] or ())
        ]
        return max(found)


def kill_stub(model: str) -> Callable[[Served, int], object]:
    """Kills the process of a model."""
    return lambda served, _: os.kill(
        served.process("triton_python_backend_stub", f"{served.repository}/{model}/1/model.py"),
        signal.SIGKILL,
    )


def kill_server(served: Served, _: int) -> None:
    """Kills tritonserver."""
    os.kill(
        served.process("tritonserver ", f"--http-port={served.listen.http_port}"), signal.SIGKILL
    )


def apply(served: Served, number: int) -> None:
    """Changes an option that says nothing to the work that is done, and applies it."""
    served.write(number)
    subprocess.run(served.command("apply"), check=True, stdout=sys.stderr)


@dataclass(frozen=True)
class Callers:
    """``clients`` that always ask ``model``."""

    model: str
    target: Target = GREEDY
    clients: int = 4

    def bodies(self) -> list[str]:
        """What they send in turns."""
        asked = {"max_tokens": 16, "temperature": 0, "stream": self.target == GREEDY_STREAM}
        return [json.dumps({"text_input": prompt, **asked}) for prompt in PROMPTS]


@dataclass(frozen=True)
class Act:
    """Something that is done; the callers of the models that it ``spares`` may lose nothing."""

    name: str
    do: Callable[[Served, int], object]
    spares: Sequence[str] = ()


@dataclass(frozen=True)
class Disturbance:
    """What is done, one after the other and each as often as asked for, to what is served."""

    question: str
    models_yaml: str
    callers: Sequence[Callers]
    acts: Sequence[Act]
    settle_s: float  # between two


DISTURBANCES = {
    "healing": Disturbance(
        "how soon what is killed answers again, and what the callers of another model notice",
        "defaults: {{task: text-generation, model: {model}, dtype: float32}}\n"
        "models: [{{name: front}}, {{name: direct, streaming: false}},"
        " {{name: other, streaming: false}}]\n",
        (Callers("front"), Callers("direct"), Callers("other", clients=2)),
        (
            Act("the engine behind a front is killed", kill_stub("front_stream"), ["other"]),
            Act("a model served directly is killed", kill_stub("direct"), ["other"]),
            Act("tritonserver is killed", kill_server),
        ),
        # After such a life the next restart is at once again.
        settle_s=RestartPolicy().settled_after_s + 2.0,
    ),
    "reload": Disturbance(
        "what callers notice of `hf-triton apply`: nothing may be lost or answered otherwise",
        "models:\n  - {{name: demo, task: text-generation, model: {model}, dtype: float32,"
        " options: {{max_queue_size: {max_queue_size}}}}}\n",
        (
            Callers("demo", clients=16),
            Callers("demo_stream", GREEDY_STREAM, clients=16),
        ),
        (Act("hf-triton apply", apply, ["demo", "demo_stream"]),),
        settle_s=10.0,
    ),
}


@dataclass
class Watched:
    """The records of one kind of callers, which come in while something is done."""

    callers: Callers
    running: Generator
    records: list[Record] = field(default_factory=list)
    ended: LevelError | None = None

    def collect(self) -> None:
        """Until the load generator is stopped."""
        bodies = self.callers.bodies()
        arguments = LevelArguments(self.callers.clients, 0, WITHOUT_END, bodies=bodies)
        try:
            for record in self.running.each(arguments):
                self.records.append(record)
        except LevelError as error:
            self.ended = error

    def answered_after(self, since_s: float) -> float:
        """When the first request that was sent after ``since_s`` was answered well.

        Raises ``TimeoutError``, ``LevelError``.
        """
        deadline_s = time.perf_counter() + LONGEST_S
        while time.perf_counter() < deadline_s:
            good = [r.done_s for r in self.records if r.sent_s > since_s and not r.problem]
            if good:
                return min(good)
            if self.ended:
                raise self.ended
            time.sleep(0.02)
        raise TimeoutError(f"{self.callers.model} answered nothing for {LONGEST_S:g} s")


@dataclass(frozen=True)
class Noticed:
    """What one kind of callers saw of one act, done several times; times in seconds."""

    done: str
    done_s: list[float]
    callers: str
    back_s: list[float]
    num_requests: int
    num_lost: int
    first_problem: str | None
    p99_before_s: float
    p99_meanwhile_s: float
    spared: bool


def disturb(disturbance: Disturbance, folder: Path, times: int) -> list[Noticed]:
    """Each act ``times`` times. Raises ``LevelError``, ``TimeoutError``,
    ``subprocess.CalledProcessError``.
    """
    found, number = list[Noticed](), 0
    with serving(folder, disturbance) as served, watching(served, disturbance) as watched:
        for act in disturbance.acts:
            spans, act_s = list[tuple[float, float]](), list[float]()
            back = [list[float]() for _ in watched]
            time.sleep(disturbance.settle_s)
            calm = (time.perf_counter() - disturbance.settle_s / 2, time.perf_counter())
            for _ in range(times):
                number += 1
                begin_s = time.perf_counter()
                act.do(served, number)
                act_s.append(time.perf_counter() - begin_s)
                ends = [each.answered_after(begin_s) for each in watched]
                spans.append((begin_s, max(*ends, time.perf_counter())))
                for seconds, end_s in zip(back, ends, strict=True):
                    seconds.append(end_s - begin_s)
                print(f"{act.name}: {max(ends) - begin_s:.1f} s", file=sys.stderr)
                time.sleep(disturbance.settle_s)
            for each, seconds in zip(watched, back, strict=True):
                found.append(_noticed(act, act_s, each, seconds, calm, spans))
    return found


def _noticed(
    act: Act,
    act_s: list[float],
    watched: Watched,
    back_s: list[float],
    calm: tuple[float, float],
    spans: Sequence[tuple[float, float]],
) -> Noticed:
    records = list(watched.records)
    since = [r for r in records if r.done_s >= calm[0]]
    lost = [r.problem for r in since if r.problem]
    during = [r for r in records if any(r.sent_s < e and b < r.done_s for b, e in spans)]
    return Noticed(
        act.name,
        act_s,
        f"{watched.callers.clients} of {watched.callers.model}",
        back_s,
        len(since),
        len(lost),
        lost[0] if lost else None,
        percentile([r.latency_s for r in records if calm[0] <= r.done_s < calm[1]], 0.99),
        percentile([r.latency_s for r in during if not r.problem], 0.99),
        watched.callers.model in act.spares,
    )


@contextlib.contextmanager
def serving(folder: Path, disturbance: Disturbance) -> Iterator[Served]:
    """Runs `hf-triton serve`, its log in ``folder``/log."""
    served = Served(folder, disturbance.models_yaml)
    served.write(0)
    ports = [f"{flag}={port}" for flag, port in served.listen.ports().items()]
    command = served.command("serve", *ports, "--health-port=0", "--max-restarts=1000")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield served
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def watching(served: Served, disturbance: Disturbance) -> Iterator[list[Watched]]:
    """All callers ask, and were answered at least once."""
    with contextlib.ExitStack() as stack:
        watched = list[Watched]()
        for callers in disturbance.callers:
            command = http_command(
                callers.target, served.listen.http_port, callers.model, reconnect=True
            )
            running = stack.enter_context(generator(command))
            watched.append(Watched(callers, running))
            collecting = threading.Thread(target=watched[-1].collect, daemon=True)
            collecting.start()
            stack.callback(collecting.join)
            stack.callback(running.stop)  # first
        for each in watched:
            each.answered_after(time.perf_counter())
        yield watched


def lines_of(noticed: Sequence[Noticed]) -> list[str]:
    """The table."""
    rows = (
        [
            *(each.done, spread(each.done_s, ".1f"), each.callers, len(each.back_s)),
            spread(each.back_s, ".1f"),
            *(each.num_requests, each.num_lost),
            *(f"{each.p99_before_s:.2f}", f"{each.p99_meanwhile_s:.2f}"),
        ]
        for each in noticed
    )
    return table(HEADS, rows, "<><")


def problems_of(noticed: Sequence[Noticed]) -> list[str]:
    """What those lost who should have noticed nothing."""
    return [
        f"{each.callers}: {each.num_lost} lost or wrong, the first: {each.first_problem}"
        for each in noticed
        if each.spared and each.num_lost
    ]
