"""Thousands of random requests, a tenth malformed and a tenth abandoned: the command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import tempfile
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import GeneratorError
from perf import machine
from perf.soak.check import Checker
from perf.soak.client import Client
from perf.soak.draw import fills
from perf.soak.reference import SoakReference
from perf.soak.report import SoakReport, to_json, to_markdown
from perf.soak.run import Requests, Tally, send_all
from perf.soak.server import DEMO_MODEL, Sample, Served, served_demo
from perf.written import write_report

DESCRIPTION = """\
Serves the demo model on tritonserver in three ways (tensors [1]; client batches; padded batches by
model.generate; all streaming) and sends random requests: every option of the contract, over /infer,
/generate, /generate_stream, unary gRPC and gRPC streams. A tenth is malformed, a tenth abandoned.
Every greedy answer is compared with transformers' own generate, every seeded one with the first of
its kind; whoever waits too long counts as hung. In the end nothing may be left running, and no
process may have grown by more than 5 % since the warm-up (a fifth of the requests)."""
EPILOG = """\
examples:
  python -m perf.soak                        10,000 requests
  python -m perf.soak --requests 500
  python -m perf.soak --seed 3 --only 1234   one request, shown with its answer
exit codes: 0 all as it must be; 1 a wrong answer, a hang, growth, or a server that did not start;
2 usage; 130 interrupted"""
NUM_SAMPLES = 40
FILL_S = 600.0


def parse_args(argv: list[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.soak",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--requests", type=int, default=10_000, metavar="N", help="default 10000")
    add("--clients", type=int, default=64, metavar="N", help="at the same time (default 64)")
    add("--seed", type=int, default=0, help="of all that is random (default 0)")
    add("--timeout", type=float, default=120.0, metavar="S", help="later is hung (default 120)")
    add("--only", type=int, metavar="N", help="send request N alone and show its answer")
    add(
        "--output",
        type=Path,
        default=Path("perf/results/soak"),
        metavar="PATH",
        help="where to write PATH.md and PATH.json (default perf/results/soak)",
    )
    args = parser.parse_args(argv)
    if args.requests < 1 or args.clients < 1 or args.timeout <= 0:
        parser.error("--requests, --clients and --timeout must be above 0")
    return args


async def only(args: argparse.Namespace, served: Served, checker: Checker) -> bool:
    """Sends one request alone and prints it with its answer; True where that is right."""
    client = _client(args, served)
    request = Requests(args.seed)(args.only)
    outcome = await client.send(request)
    await client.close()
    problem = checker.problem(request, outcome)
    shown = {"request": asdict(request), "outcome": asdict(outcome), "problem": problem}
    print(json.dumps(shown, indent=2, ensure_ascii=False, default=str))
    return problem is None


def prepare(args: argparse.Namespace, reference: SoakReference) -> None:
    """Computes the expected answers, so that nobody waits for them later."""
    requests = map(Requests(args.seed), range(args.requests))
    rows = [row for r in requests if r.kind in ("greedy", "timed") for row in r.rows]
    for row in tqdm(rows, unit="row", desc="expected answers", file=sys.stderr):
        reference.trace(row)


def _client(args: argparse.Namespace, served: Served) -> Client:
    listen = served.server.listen
    return Client(listen.client_host(), listen.http_port, listen.grpc_port, args.timeout)


async def soak(
    args: argparse.Namespace, served: Served, checker: Checker, tally: Tally
) -> tuple[list[Sample], list[Sample], dict[str, float]]:
    """Fills the engines, warms up, then sends the rest; samples of the warm-up and of the rest, the
    last of each when all is idle, and the gauges that do not go back to 0.
    """
    requests, client = Requests(args.seed), _client(args, served)
    samples: list[Sample] = []
    num_warm_up = max(1, args.requests // 5)
    for request, outcome in zip(
        fills(), await asyncio.gather(*(client.send(r, FILL_S) for r in fills())), strict=True
    ):
        tally.count(request, outcome, checker.problem(request, outcome))
    every = max(1, args.requests // NUM_SAMPLES)
    with tqdm(total=args.requests, unit="request", file=sys.stderr) as bar:

        def after_each() -> None:
            bar.update()
            bar.set_postfix(wrong=tally.num_problems, refresh=False)
            if bar.n % every == 0:
                samples.append(served.sample(bar.n))

        num_of_warm_up = 0
        busy: dict[str, float] = {}
        for first, last in ((0, num_warm_up), (num_warm_up, args.requests)):
            drawn = map(requests, range(first, last))
            await send_all(client, drawn, args.clients, checker, tally, after_each)
            busy = await asyncio.to_thread(served.wait_idle)
            samples.append(served.sample(bar.n))
            num_of_warm_up = num_of_warm_up or len(samples)
    await client.close()
    return samples[:num_of_warm_up], samples[num_of_warm_up:], busy


def run(args: argparse.Namespace, command: str) -> int:
    """Serves, sends, and reports; returns the exit code."""
    hardware = machine.hardware()  # now, for the load average that others make
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    checker, tally = Checker(SoakReference(DEMO_MODEL)), Tally()
    if args.only is None:
        prepare(args, checker.reference)
    with (
        tempfile.TemporaryDirectory(prefix="perf-soak-") as folder,
        served_demo(Path(folder)) as served,
    ):
        if args.only is not None:
            return 0 if asyncio.run(only(args, served, checker)) else 1
        warm_up, samples, busy = asyncio.run(soak(args, served, checker, tally))
        died = served.server.exit_code() is not None
        exit_code = served.server.stop()
    report = SoakReport(
        created=created,
        command=command,
        commit=machine.commit(),
        hardware=hardware,
        versions=machine.versions(),
        seed=args.seed,
        clients=args.clients,
        tally=tally,
        num_cut_short=checker.num_cut_short,
        warm_up=warm_up,
        samples=samples,
        busy=busy,
        died=died,
        exit_code=exit_code,
    )
    write_report(args.output, to_json(report), to_markdown(report))
    return 1 if report.problems() else 0


def main(argv: list[str]) -> int:
    """Runs it; returns the exit code."""
    args = parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # engines beside each other, and us
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        return run(args, shlex.join(["python", "-m", "perf.soak", *argv]))
    except KeyboardInterrupt:
        return 130
    except GeneratorError as error:
        print(f"perf.soak: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
