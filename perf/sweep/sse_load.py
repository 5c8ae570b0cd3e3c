"""Loads ``/generate_stream`` as perf_analyzer loads the other endpoints: the same arguments, the
same input file, the same windows and rule of stability, and an export of the same form.

perf_analyzer 2.51 reads streams over gRPC only. Run as ``python -m perf.sweep.sse_load``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from perf.load import http
from perf.load.http import Response, Target
from perf.load.levels import LevelArguments, send_level
from perf.load.loop import Answer, AnswerError, Ask
from perf.load.measure import Policy
from perf.load.requests import Request
from perf.load.targets import chunks

_WITHOUT_END = Policy(sys.maxsize, 0, math.inf)
_WINDOWS = 3  # that have to agree
_LOOK_EVERY_S = 0.02
EXIT_FAILED, EXIT_NOTHING = 99, 3  # perf_analyzer's own


class LoadError(Exception):
    """A request that failed ends the load, as perf_analyzer does it."""


@dataclass(frozen=True)
class Windows:
    """When enough is measured: ``requests`` in each window, else ``seconds``."""

    seconds: float
    requests: int | None
    stability_percent: float
    max_trials: int


@dataclass
class Done:
    """The requests that were answered, as the export has them, in the order of their ends."""

    requests: list[dict[str, Any]] = field(default_factory=list)

    def between(self, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
        return [
            one for one in self.requests if start_ns <= one["response_timestamps"][-1] <= end_ns
        ]


@asynccontextmanager
async def connect(host: str, port: int, path: str, done: Done) -> AsyncIterator[Ask]:
    """One kept-open connection; what it is answered goes to ``done``. Raises LoadError."""

    offset_ns = time.time_ns() - time.perf_counter_ns()
    sent_ns = 0

    def body(request: Request) -> str:
        nonlocal sent_ns
        sent_ns = time.time_ns()
        return request.prompt

    def read(_request: Request, response: Response) -> Answer:
        done.requests.append(_exported(sent_ns, response, offset_ns))
        return Answer(0)

    try:
        async with http.connect(host, port, Target("stream", f"/{path}", body, read)) as ask:
            yield ask
    except OSError as error:
        raise LoadError(f"{host}:{port}: {error}") from error


def _exported(sent_ns: int, response: Response, offset_ns: int) -> dict[str, Any]:
    """A request as the export has it; times are of the clock of day. Raises LoadError."""
    try:
        answered = list(chunks(response))
    except AnswerError as error:
        raise LoadError(str(error)) from error
    if not answered:
        raise LoadError("a stream ended without any event")
    times = [round(seconds * 1e9) + offset_ns for _, seconds in answered]
    outputs = [output for output, _ in answered]
    return {"timestamp": sent_ns, "response_timestamps": times, "response_outputs": outputs}


async def measure(done: Done, load: asyncio.Task[None], windows: Windows) -> tuple[list[int], bool]:
    """The borders of the last windows (nanoseconds), and whether they agree. Raises LoadError."""
    borders = [time.time_ns()]
    for _ in range(windows.max_trials):
        await _end_of_window(done, load, windows, borders[-1])
        borders.append(time.time_ns())
        if len(borders) > _WINDOWS and _agree(done, borders[-_WINDOWS - 1 :], windows):
            return borders[-_WINDOWS - 1 :], True
    return borders[-_WINDOWS - 1 :], False


async def _end_of_window(
    done: Done, load: asyncio.Task[None], windows: Windows, start_ns: int
) -> None:
    before = len(done.requests)
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if load.done():
            load.result()
        if windows.requests is not None:
            if len(done.requests) - before >= windows.requests:
                return
        elif time.time_ns() - start_ns >= windows.seconds * 1e9:
            return


def _agree(done: Done, borders: Sequence[int], windows: Windows) -> bool:
    """perf_analyzer's rule: throughput and mean latency differ by so much at most."""
    rates, latencies = [], []
    for start_ns, end_ns in pairwise(borders):
        inside = done.between(start_ns, end_ns)
        if not inside:
            return False
        rates.append(len(inside) / (end_ns - start_ns))
        waits = [one["response_timestamps"][-1] - one["timestamp"] for one in inside]
        latencies.append(sum(waits) / len(waits))
    most = 1 + windows.stability_percent / 100
    return all(max(values) <= most * min(values) for values in (rates, latencies))


async def run(args: argparse.Namespace) -> int:
    """Loads and exports; the exit code."""
    entries = json.loads(args.input_data.read_text(encoding="utf-8"))["data"]
    bodies = [json.dumps(entry["payload"][0]) for entry in entries]
    host, _, port = args.url.rpartition(":")
    done = Done()
    connected = partial(connect, host.strip("[]"), int(port), args.endpoint, done)
    level = LevelArguments(
        args.concurrency_range,
        0,
        _WITHOUT_END,
        rate=args.request_rate_range,
        poisson=args.request_distribution == "poisson",
        bodies=bodies,
    )
    loading = send_level(connected, level, lambda _: None)
    load = asyncio.create_task(loading)
    windows = Windows(
        args.measurement_interval / 1000,
        args.measurement_request_count if args.measurement_mode == "count_windows" else None,
        args.stability_percentage,
        args.max_trials,
    )
    if args.request_count:
        windows = Windows(0, args.request_count, 0, 1)
    try:
        borders, stable = await measure(done, load, windows)
    finally:
        load.cancel()
    counted = done.between(borders[0], borders[-1])
    if not counted:
        print("No valid requests recorded within time interval.", file=sys.stderr)
        return EXIT_NOTHING
    if args.profile_export_file:
        _export(args.profile_export_file, counted, borders, stable)
    return 0


def _export(
    file: Path, requests: Sequence[dict[str, Any]], borders: Sequence[int], stable: bool
) -> None:
    experiment = {"requests": requests, "window_boundaries": borders, "stable": stable}
    file.write_text(json.dumps({"experiments": [experiment]}), encoding="utf-8")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m perf.sweep.sse_load", description=__doc__)
    add = parser.add_argument
    add("-u", dest="url", required=True, metavar="HOST:PORT")
    add("--endpoint", required=True)
    add("--async", action="store_true")
    add("--input-data", type=Path, required=True)
    add("--concurrency-range", type=int, default=1)
    add("--request-rate-range", type=float)
    add("--request-distribution", choices=("constant", "poisson"), default="constant")
    add("--request-count", type=int)
    add("--measurement-interval", type=int, default=5000)
    add("--measurement-mode", choices=("time_windows", "count_windows"), default="time_windows")
    add("--measurement-request-count", type=int, default=50)
    add("--stability-percentage", type=float, default=10)
    add("--max-trials", type=int, default=10)
    add("--profile-export-file", type=Path)
    return parser.parse_args(argv)


def exit_code(argv: Sequence[str] | None = None) -> int:
    try:
        return asyncio.run(run(parse_args(argv)))
    except LoadError as error:
        print(f"Failed to retrieve results from inference request.\n{error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"sse_load: {error}", file=sys.stderr)
        return 1


def main() -> None:
    sys.exit(exit_code())


if __name__ == "__main__":
    main()
