"""What callers notice of `hf-triton apply` under load: the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from generator.server_api import ServerApi
from generator.server_listen import Listen
from perf import machine
from perf.circumstances import circumstances
from perf.encoders.model import make_encoder
from perf.load.unpaused import percentile_s
from perf.reload.load import (
    GOOD,
    Asked,
    Clients,
    Way,
    embedding_of_generate,
    text_of_events,
    text_of_generate,
)
from perf.serving import free_listen
from perf.written import write_report

DESCRIPTION = """\
Serves the demo model and an encoder of MiniLM's shape with `hf-triton serve`, one after the other.
Under load, changes an option of the model and runs `hf-triton apply`, again and again: each time a
new version comes up beside the old one and takes over. Counts requests that were lost or answered
wrongly, and what they waited, before, while and after. Half of the demo's clients ask /generate,
which passes through a front, half stream. Prints a Markdown table; writes it into PATH.md, and
every figure into PATH.json."""
EPILOG = """\
example:
  python -m perf.reload                    5 applies each at 32 clients, about 8 minutes
exit codes: 0 measured, nothing lost; 1 something was lost; 2 usage; 130 interrupted"""

DEMO_MODEL = Path(__file__).parents[2] / "demo" / "model"
NUM_TOKENS, PROMPT = 32, "Once upon a time"
ENTRY = """\
models:
  - {{name: measured, task: {task}, model: {model}, dtype: float32, options: {{{options}}}}}
"""
FIRST_QUEUE_SIZE = 1000  # the option that changes: it says nothing to the work that is done
LOAD_TIMEOUT_S = 300.0
SETTLE_S = 5.0


@dataclass(frozen=True)
class Model:
    """What is served, and how it is asked."""

    name: str
    task: str
    folder: Path
    ways: tuple[Way, ...]
    options: str = ""


@dataclass(frozen=True)
class Phase:
    """The requests of a while: how many in a second, and what they waited, in seconds."""

    num: int
    per_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class Changed:
    """Several applies to one model: the seconds that each took from its start to its end."""

    model: str
    clients: int
    apply_s: list[float]
    num_requests: int
    problems: list[str]
    before: Phase
    during: Phase
    after: Phase


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
    changed: list[Changed] = field(default_factory=list)


def demo() -> Model:
    """It streams: two of Triton's models, over both of which it is asked."""
    asked = {"text_input": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    generate = Way("/v2/models/measured/generate", asked, text_of_generate)
    path = "/v2/models/measured_stream/generate_stream"
    stream = Way(path, {**asked, "stream": True}, text_of_events)
    return Model("demo, streaming", "text-generation", DEMO_MODEL, (generate, stream))


def encoder(folder: Path) -> Model:
    """MiniLM's shape with random weights."""
    make_encoder(folder, seed=0)
    asked = {"text_input": " ".join(["bababa"] * 30)}
    way = Way("/v2/models/measured/generate", asked, embedding_of_generate)
    return Model("encoder", "feature-extraction", folder, (way,), "pooling: mean, ")


def say(home: Path, model: Model, queue_size: int) -> None:
    """Writes models.yaml."""
    options = f"{model.options}max_queue_size: {queue_size}"
    text = ENTRY.format(task=model.task, model=model.folder, options=options)
    (home / "models.yaml").write_text(text, encoding="utf-8")


def hf_triton(home: Path, *arguments: str) -> list[str]:
    """The command line of a verb on the models.yaml in ``home``."""
    places = [f"--config={home / 'models.yaml'}", f"--repository={home / 'repository'}"]
    return [sys.executable, "-m", "generator", *arguments, *places]


@contextlib.contextmanager
def served(home: Path) -> Iterator[Listen]:
    """Runs `hf-triton serve`, its log in ``home``/log, until the model answers."""
    listen = free_listen()
    ports = [f"{flag}={port}" for flag, port in listen.ports().items()]
    with (home / "log").open("wb") as log:
        command = hf_triton(home, "serve", *ports, "--health-port=0")
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_ready(ServerApi(listen.host, listen.http_port), process)
            yield listen
        finally:
            process.terminate()
            process.wait()


def _wait_ready(api: ServerApi, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LOAD_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if api.is_model_ready("measured"):
                return
        time.sleep(0.2)
    raise SystemExit("the model did not come up; see the log in the temporary folder")


def measure(home: Path, model: Model, num_clients: int, applies: int, calm_s: float) -> Changed:
    """Applies a change again and again while the model is asked."""
    say(home, model, FIRST_QUEUE_SIZE)
    spans: list[tuple[float, float]] = []
    with served(home) as listen, Clients(listen.http_port, model.ways, num_clients) as clients:
        time.sleep(SETTLE_S)
        began_s = time.monotonic()
        time.sleep(calm_s)
        for number in range(1, applies + 1):
            say(home, model, FIRST_QUEUE_SIZE + number)
            start_s = time.monotonic()
            subprocess.run(hf_triton(home, "apply"), check=True, stdout=sys.stderr)
            spans.append((start_s, time.monotonic()))
            time.sleep(SETTLE_S)
        after_s = time.monotonic()
        time.sleep(calm_s)
        ended_s = time.monotonic()
    return Changed(
        model.name,
        num_clients,
        [end - start for start, end in spans],
        len(clients.asked),
        [asked.problem for asked in clients.asked if asked.problem != GOOD],
        phase(clients.asked, [(began_s, spans[0][0])]),
        phase(clients.asked, spans),
        phase(clients.asked, [(after_s, ended_s)]),
    )


def phase(asked: Sequence[Asked], spans: Sequence[tuple[float, float]]) -> Phase:
    """The requests that ended within one of the spans."""
    inside = [one for one in asked if any(b <= one.ended_s < e for b, e in spans)]
    seconds = sum(end - begin for begin, end in spans)
    p50_s, p99_s = percentile_s(inside, 0.50), percentile_s(inside, 0.99)
    return Phase(len(inside), len(inside) / seconds, p50_s, p99_s)


def to_markdown(report: Report) -> str:
    """The table, and what it was measured on and with."""
    columns = ["model", "clients", "applies", "seconds each", "requests", "lost or wrong"]
    for when in ("before", "during", "after"):
        columns += [f"{when}: requests/s", "p50 s", "p99 s"]
    lines = [_row(columns), _row([":--"] + ["--:"] * (len(columns) - 1))]
    for one in report.changed:
        each = f"{min(one.apply_s):.1f} to {max(one.apply_s):.1f}"
        row = [one.model, one.clients, len(one.apply_s), each, one.num_requests, len(one.problems)]
        for found in (one.before, one.during, one.after):
            row += [f"{found.per_s:.1f}", f"{found.p50_s:.2f}", f"{found.p99_s:.2f}"]
        lines.append(_row([str(cell) for cell in row]))
    return "\n".join([*lines, "", *circumstances(report)]) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    report = Report(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "perf.reload", *argv]),
        commit=machine.commit(),
        hardware=machine.hardware(),
        versions=machine.versions(),
        model="the demo model, and MiniLM's shape with random weights, float32",
        load={"clients": args.clients, "tokens": NUM_TOKENS, "calm seconds": args.calm_s},
    )
    with tempfile.TemporaryDirectory(prefix="reload-") as folder:
        for name in ("demo", "encoder"):
            home = Path(folder) / name
            home.mkdir()
            model = demo() if name == "demo" else encoder(home / "model")
            found = measure(home, model, args.clients, args.applies, args.calm_s)
            report.changed.append(found)
    write_report(args.output, json.dumps(asdict(report), indent=2) + "\n", to_markdown(report))
    problems = [problem for found in report.changed for problem in found.problems]
    for problem in problems[:20]:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.reload",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clients", type=int, default=32, metavar="N", help="default 32")
    parser.add_argument("--applies", type=int, default=5, metavar="N", help="of each (default 5)")
    parser.add_argument(
        "--calm-s",
        type=float,
        default=40.0,
        metavar="SECONDS",
        help="how long it is measured before and after the applies (default 40)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("perf/results/reload"),
        metavar="PATH",
        help="where to write PATH.md and PATH.json (default perf/results/reload)",
    )
    return parser


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
