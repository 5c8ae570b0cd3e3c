"""``hf-triton perf sweep``: runs perf_analyzer over a scenario, and writes a report."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.errors import UsageError
from hf_triton.cli.places import add_places
from perf.verbs import options_from

HELP = "run perf_analyzer over models, endpoints and loads, and write a report"
DESCRIPTION = """\
Runs NVIDIA's perf_analyzer (the one on PATH, else the one in tritonclient's wheel) over every
combination of a scenario: models, endpoints, requests at once or requests a second, batch sizes,
lengths of prompts and answers. Beside it, it reads what Triton and the models count, and how busy
the machine is. Each load is kept as soon as it is measured: Ctrl-C loses nothing, and the same
command continues from there.

a scenario, sweep.yaml:

  scenarios:
    - name: chat                       # shown in the report
      models: [demo]                   # as in models.yaml; streams go to demo_stream
      endpoints: [http-generate, grpc-stream]   # also http-infer, grpc-infer
      concurrency: 1:16:x2             # requests at once: a number, [1, 8], 1:16:5, or doubling
      # request_rate: [2, 4, 8]        # or requests a second, whatever is answered
      input:
        prompt_tokens: 16-64           # drawn from; 32, {mixed: [8, 64]}, or a list: each a load
        output_tokens: 32
      measurement: {window_s: 5, repeats: 3}

Without a scenario: every model of models.yaml, 1, 4 and 16 requests at once.
"""
EPILOG = """\
examples:
  hf-triton perf sweep --serve                   # start a server for it, measure, stop it
  hf-triton perf sweep sweep.yaml --dry-run      # the perf_analyzer commands alone
  hf-triton perf sweep sweep.yaml                # -> perf-results/sweep/run.html, run.md
  hf-triton perf sweep sweep.yaml --url gpu-box:8000

examples/perf/sweep.yaml has every key. exit codes: 0 all measured, 1 a load failed or something is
wrong, 2 usage, 130 stopped
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("scenario", nargs="?", type=Path, metavar="SCENARIO", help="what to measure, a YAML file")
    add_places(parser)
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where results go (default: perf-results/ and the scenario's name)",
    )
    add(
        "--url",
        type=_address,
        metavar="HOST:PORT",
        help="Triton's HTTP (default: the server that runs on this repository, else :8000)",
    )
    add("--grpc-url", type=_address, metavar="HOST:PORT", help="default: the port after --url's")
    second = "default: the second port after --url's"
    add("--metrics-url", type=_address, metavar="HOST:PORT", help=second)
    add("--serve", action="store_true", help="start and stop `hf-triton serve` on free ports")
    add(
        "--dry-run",
        action="store_true",
        help="write the requests and print the perf_analyzer commands",
    )


def _address(text: str) -> str:
    from perf.sweep.scenario import address

    try:
        return address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    from perf.sweep import sweeping
    from perf.sweep.scenario import Addresses

    further = (args.grpc_url, args.metrics_url)
    if any(further) and args.url is None:
        raise UsageError("--grpc-url and --metrics-url need --url")
    if args.url is not None and args.serve:
        raise UsageError("--serve starts a server of its own: leave out --url")
    url = Addresses.of(args.url, *further) if args.url else None
    options = options_from(sweeping.Options, args, url=url)
    return sweeping.dry_run(options) if args.dry_run else sweeping.run(options)
