"""What forwarding, streaming and metrics cost, and how long streams wait: the command line."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from generator.errors import GeneratorError
from perf import machine
from perf.baselines.repositories import MODEL_FOLDER
from perf.load.requests import (
    LONG_PROMPT_OUTPUT,
    LONGEST_LONG_PROMPT,
    LONGEST_PROMPT,
    OUTPUT_LENGTHS,
    SHORTEST_LONG_PROMPT,
    SHORTEST_PROMPT,
)
from perf.model import make_model
from perf.serving_costs.levels import CostEffort, measure_costs
from perf.serving_costs.report import CostReport, to_json, to_markdown
from perf.written import write_report

DESCRIPTION = """\
Makes a Llama of 42 M random weights and loads it on one tritonserver four times: twice served
directly (streaming: false), once so with metrics taken out, and once streaming, behind a front.
An engine without requests sleeps. Then measures in turns, with the same requests:
  throughput   /infer on each, /generate_stream and gRPC streams on the streaming one, from 32
               clients; several rounds, ratios within a round
  waiting      time to first token and between chunks of 1, 8 and 32 streams (SSE), alone and
               while one more client sends prompts of 380 to 440 tokens without a pause
Prints Markdown tables; writes them with the machine, the versions and the command into PATH.md,
and all figures into PATH.json."""
EPILOG = """\
examples:
  python -m perf.serving_costs            about 10 minutes; wants an otherwise idle machine
  python -m perf.serving_costs --quick    about 2 minutes, rough figures
exit codes: 0 measured; 1 an answer failed or had the wrong length, or a server did not start;
2 usage; 130 interrupted"""

FULL = CostEffort(4, 32, 10, waiting_clients=(1, 8, 32), waiting_s=12, waiting_requests=100)
QUICK = CostEffort(1, 8, 3, waiting_clients=(1, 8), waiting_s=3, waiting_requests=10)


def parse_args(argv: list[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.serving_costs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="one round of 8 clients, a few seconds each")
    add("--rounds", type=rounds, metavar="N", help=f"instead of {FULL.rounds} (--quick: 1)")
    add("--seed", type=int, default=0, help="of the load and the weights (default 0)")
    add(
        "--output",
        type=Path,
        default=Path("perf/results/serving_costs"),
        metavar="PATH",
        help="where to write PATH.md and PATH.json (default perf/results/serving_costs)",
    )
    return parser.parse_args(argv)


def rounds(text: str) -> int:
    """A number from 0; with 0 only the waiting times are measured."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 0")
    return int(text)


def serving_costs(args: argparse.Namespace, command: str) -> CostReport:
    """Make the model, measure, and say what was measured on and with."""
    effort = QUICK if args.quick else FULL
    if args.rounds is not None:
        effort = replace(effort, rounds=args.rounds)
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    hardware = machine.hardware()  # now, for the load average that others make
    with tempfile.TemporaryDirectory(prefix="perf-costs-") as folder:
        num_parameters = make_model(Path(folder, MODEL_FOLDER), args.seed)
        costs = measure_costs(Path(folder), effort, args.seed)
    return CostReport(
        created=created,
        command=command,
        commit=machine.commit(),
        hardware=hardware,
        versions=machine.versions(),
        model=f"Llama shape, {num_parameters / 1e6:.1f} M random weights, float32",
        load={
            "prompt tokens": f"{SHORTEST_PROMPT}-{LONGEST_PROMPT}",
            "output tokens": "/".join(map(str, OUTPUT_LENGTHS)),
            "long prompts": f"{SHORTEST_LONG_PROMPT}-{LONGEST_LONG_PROMPT} tokens for "
            f"{LONG_PROMPT_OUTPUT}",
            "rounds": effort.rounds,
            "seed": args.seed,
        },
        costs=costs,
    )


def main(argv: list[str]) -> int:
    """Measure, print the tables, write the results; return the exit code."""
    args = parse_args(argv)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # of weights being loaded: ours is enough
    try:
        report = serving_costs(args, shlex.join(["python", "-m", "perf.serving_costs", *argv]))
    except KeyboardInterrupt:
        return 130
    except (GeneratorError, subprocess.CalledProcessError) as error:
        print(f"perf.serving_costs: {error}", file=sys.stderr)
        return 1
    write_report(args.output, to_json(report), to_markdown(report))
    return 1 if report.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
