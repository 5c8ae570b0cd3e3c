"""How long `hf-triton serve` takes to bring back what is killed under load: the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from generator.restarts import RestartPolicy
from generator.server_listen import Listen
from perf import machine
from perf.circumstances import circumstances
from perf.healing.load import NO_ANSWER, Asked, Clients
from perf.load.unpaused import percentile_s
from perf.serving import free_listen
from perf.written import write_report

DESCRIPTION = """\
Serves the demo model three times with `hf-triton serve`: behind a front (streaming: true), directly
(streaming: false), and once more as the one that nobody touches. Under load, kills (SIGKILL) in
turns the engine's process, the direct model's process, and tritonserver itself, and measures from
the kill to the first answer to a request that came after it. Prints a Markdown table; writes it
into PATH.md, and every figure into PATH.json."""
EPILOG = """\
example:
  python -m perf.healing --kills 10        about 25 minutes
exit codes: 0 measured; 1 something did not come back, or a request of the other model failed while
a model was brought back; 2 usage; 130 interrupted"""

DEMO_MODEL = Path(__file__).parents[2] / "demo" / "model"
MODELS_YAML = f"""\
defaults: {{task: text-generation, model: {DEMO_MODEL}, dtype: float32, streaming: false}}
models:
  - {{name: front, streaming: true}}
  - {{name: direct}}
  - {{name: other}}
"""
NUM_CLIENTS, NUM_OTHER_CLIENTS, MAX_TOKENS = 4, 2, 16
LONGEST_HEALING_S = 300.0
# After such a life the next restart is at once again.
SETTLE_S = RestartPolicy().settled_after_s + 2.0


@dataclass(frozen=True)
class Killed:
    """Several kills of one thing: seconds to the first answer each, and what callers saw.

    ``victims`` and ``others`` count requests by status: 0 got no answer in 20 s, -1 no connection.
    """

    what: str
    seconds: list[float]
    victims: dict[int, int]
    others: dict[int, int]
    others_p99_before_s: float
    others_p99_during_s: float


@dataclass(frozen=True)
class Report:
    """The whole measurement."""

    created: str
    command: str
    commit: str
    hardware: dict[str, str | int | float]
    versions: dict[str, str]
    model: str
    load: dict[str, str | int | float]
    killed: list[Killed] = field(default_factory=list)


class Served:
    """A running `hf-triton serve`, and the processes below it."""

    def __init__(self, folder: Path, listen: Listen) -> None:
        self.repository = folder / "model_repository"
        self.listen = listen

    def url(self, model: str) -> str:
        address = self.listen.address(self.listen.http_port)
        return f"http://{address}/v2/models/{model}/generate"

    def stub(self, model: str) -> int:
        """The process of a model that came last."""
        return _processes(f"{self.repository}/{model}/1/model.py")[-1]

    def tritonserver(self) -> int:
        return _processes(f"--http-port={self.listen.http_port}", "/bin/tritonserver\0")[-1]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Runs it, its log in ``folder``/log, until all three models answer."""
    (folder / "models.yaml").write_text(MODELS_YAML)
    listen = free_listen()
    found = Served(folder, listen)
    ports = [f"{flag}={port}" for flag, port in listen.ports().items()]
    command = [sys.executable, "-m", "generator", "serve", *ports, "--health-port=0"]
    command += ["--max-restarts=1000", f"--config={folder / 'models.yaml'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--repository={found.repository}"], stdout=log, stderr=log
        )
        try:
            for model in ("front", "direct", "other"):
                with Clients(found.url(model), 1, MAX_TOKENS) as clients:
                    clients.first_served_after(0.0, LONGEST_HEALING_S)
            yield found
        finally:
            process.terminate()
            process.wait()


def measure(what: str, found: Served, model: str, victim: Callable[[], int], kills: int) -> Killed:
    """Kills what ``victim`` gives again and again, while ``model`` and the other are asked."""
    seconds, spans = [], []
    with (
        Clients(found.url(model), NUM_CLIENTS, MAX_TOKENS) as asking,
        Clients(found.url("other"), NUM_OTHER_CLIENTS, MAX_TOKENS) as others,
    ):
        for number in range(kills):
            others.first_served_after(time.monotonic(), LONGEST_HEALING_S)
            time.sleep(SETTLE_S if number else 2.0)
            killed_s = time.monotonic()
            os.kill(victim(), signal.SIGKILL)
            # One more, for those that ask all the time may wait for an answer that never comes.
            with Clients(found.url(model), 1, MAX_TOKENS) as fresh:
                back_s = fresh.first_served_after(killed_s, LONGEST_HEALING_S)
            seconds.append(back_s - killed_s)
            spans.append((killed_s, back_s))
            print(f"{what}, kill {number + 1}: {seconds[-1]:.1f} s", file=sys.stderr)
    during = [a for a in others.asked if any(b < a.ended_s and a.began_s < e for b, e in spans)]
    before = [a for a in others.asked if a.ended_s < spans[0][0]]
    return Killed(
        what,
        seconds,
        _by_status(asking.asked),
        _by_status(others.asked),
        percentile_s(before, 0.99),
        percentile_s(during, 0.99),
    )


def to_markdown(report: Report) -> str:
    """The table, and what it was measured on and with."""
    head = "killed|times|seconds to the first answer: median|least|most|its requests: answered|"
    head += "refused or broken off|never answered|the other model's: answered|failed|p99 s before|"
    columns = [*head.split("|")[:-1], "p99 s while it was brought back"]
    lines = [_row(columns), _row([":--"] + ["--:"] * (len(columns) - 1))]
    for k in report.killed:
        ordered = sorted(k.seconds)
        figures = [ordered[len(ordered) // 2], ordered[0], ordered[-1]]
        lost = sum(num for status, num in k.victims.items() if status not in (200, NO_ANSWER))
        failed = sum(num for status, num in k.others.items() if status != 200)
        counts = [k.victims.get(200, 0), lost, k.victims.get(NO_ANSWER, 0), k.others.get(200, 0)]
        times = [k.others_p99_before_s, k.others_p99_during_s]
        row = [k.what, len(k.seconds), *(f"{s:.1f}" for s in figures), *counts, failed]
        lines.append(_row([str(cell) for cell in [*row, *(f"{s:.2f}" for s in times)]]))
    return "\n".join([*lines, "", *circumstances(report)]) + "\n"


def problems(report: Report) -> list[str]:
    """The other model's requests that failed though nothing of it was killed."""
    return [
        f"{k.what}: requests of the other model by status: {k.others}"
        for k in report.killed
        if k.what != "tritonserver" and set(k.others) != {200}
    ]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _by_status(asked: list[Asked]) -> dict[int, int]:
    statuses = [a.status for a in asked]
    return {status: statuses.count(status) for status in sorted(set(statuses))}


def _processes(*marks: str) -> list[int]:
    """Those whose command lines contain all of ``marks``, by number."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
            if all(mark in line for mark in marks) and "server_guard" not in line:
                found.append(int(folder.name))
    return sorted(found)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m perf.healing",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="of each (default 10)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("perf/results/healing"),
        metavar="PATH",
        help="where to write PATH.md and PATH.json (default perf/results/healing)",
    )
    args = parser.parse_args(argv)
    report = Report(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "perf.healing", *argv]),
        commit=machine.commit(),
        hardware=machine.hardware(),
        versions=machine.versions(),
        model="the demo model, float32",
        load={
            "clients": NUM_CLIENTS,
            "clients of the other": NUM_OTHER_CLIENTS,
            "tokens": MAX_TOKENS,
        },
    )
    with tempfile.TemporaryDirectory(prefix="healing-") as folder, served(Path(folder)) as found:
        for what, model, victim in (
            ("engine behind a front", "front", lambda: found.stub("front_stream")),
            ("model served directly", "direct", lambda: found.stub("direct")),
            ("tritonserver", "front", found.tritonserver),
        ):
            report.killed.append(measure(what, found, model, victim, args.kills))
    write_report(args.output, json.dumps(asdict(report), indent=2) + "\n", to_markdown(report))
    for problem in problems(report):
        print(problem, file=sys.stderr)
    return 1 if problems(report) else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
