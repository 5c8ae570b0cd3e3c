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
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from perf.load import http
from perf.load.http import Target
from perf.load.levels import LevelArguments, send_level
from perf.load.measure import Policy, Record
from perf.load.targets import ANY_STREAM

_WITHOUT_END = Policy(sys.maxsize, 0, math.inf)
_WINDOWS = 3  # that have to agree
_LOOK_EVERY_S = 0.02
EXIT_FAILED, EXIT_NOTHING = 99, 3  # perf_analyzer's own


class LoadError(Exception):
    """A request that failed ends the load, as perf_analyzer does it."""


class Load:
    """Requests being sent; those that were answered, in the order of their ends."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.answered: list[Record] = []
        host, _, port = args.url.rpartition(":")
        target = Target(ANY_STREAM.name, f"/{args.endpoint}", ANY_STREAM.body, ANY_STREAM.read)
        entries = json.loads(args.input_data.read_text(encoding="utf-8"))["data"]
        level = LevelArguments(
            args.concurrency_range,
            0,
            _WITHOUT_END,
            rate=args.request_rate_range,
            poisson=args.request_distribution == "poisson",
            bodies=[json.dumps(entry["payload"][0]) for entry in entries],
        )
        connect = partial(http.connect, host.strip("[]"), int(port), target)
        self.task = asyncio.create_task(send_level(connect, level, self._take))

    def _take(self, record: Record) -> None:
        """Raises LoadError."""
        if record.problem is not None:
            raise LoadError(record.problem)
        if not record.chunk_s:
            raise LoadError("a stream ended without any event")
        self.answered.append(record)

    def between(self, start_s: float, end_s: float) -> list[Record]:
        return [one for one in self.answered if start_s <= one.chunk_s[-1] <= end_s]

    async def end_of_window(self, start_s: float) -> float:
        """When it is. Raises LoadError."""
        args, before = self.args, len(self.answered)
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self.task.done():
                try:
                    self.task.result()
                except OSError as error:
                    raise LoadError(f"{args.url}: {error}") from error
            now_s = time.perf_counter()
            if args.num_requests is None:
                if now_s - start_s >= args.measurement_interval / 1000:
                    return now_s
            elif len(self.answered) - before >= args.num_requests:
                return now_s

    def agree(self, borders: Sequence[float]) -> bool:
        """perf_analyzer's rule: throughput and mean latency differ by so much at most."""
        rates, latencies = [], []
        for start_s, end_s in pairwise(borders):
            inside = self.between(start_s, end_s)
            if not inside:
                return False
            rates.append(len(inside) / (end_s - start_s))
            latencies.append(sum(one.chunk_s[-1] - one.sent_s for one in inside) / len(inside))
        most = 1 + self.args.stability_percentage / 100
        return all(max(values) <= most * min(values) for values in (rates, latencies))


async def measure(load: Load) -> tuple[list[float], bool]:
    """The borders of the last windows, and whether they agree. Raises LoadError."""
    borders = [time.perf_counter()]
    for _ in range(load.args.max_trials):
        borders.append(await load.end_of_window(borders[-1]))
        last = borders[-_WINDOWS - 1 :]
        if len(last) > _WINDOWS and load.agree(last):
            return last, True
    return borders[-_WINDOWS - 1 :], False


async def run(args: argparse.Namespace) -> int:
    """Loads and exports; the exit code."""
    load = Load(args)
    try:
        borders, stable = await measure(load)
    finally:
        load.task.cancel()
    counted = load.between(borders[0], borders[-1])
    if not counted:
        print("No valid requests recorded within time interval.", file=sys.stderr)
        return EXIT_NOTHING
    if args.profile_export_file:
        _export(args.profile_export_file, counted, borders, stable)
    return 0


def _export(file: Path, counted: Sequence[Record], borders: Sequence[float], stable: bool) -> None:
    """Times are of the clock of day; all tokens of an answer are told with its last chunk."""
    offset_ns = time.time_ns() - time.perf_counter_ns()

    def day_ns(seconds: float) -> int:
        return round(seconds * 1e9) + offset_ns

    requests = [
        {
            "timestamp": day_ns(one.sent_s),
            "response_timestamps": [day_ns(seconds) for seconds in one.chunk_s],
            "response_outputs": [{"num_output_tokens": one.num_output_tokens}],
        }
        for one in counted
    ]
    windows = [day_ns(border) for border in borders]
    experiment = {"requests": requests, "window_boundaries": windows, "stable": stable}
    file.write_text(json.dumps({"experiments": [experiment]}), encoding="utf-8")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """``num_requests`` of a window; None where it has seconds."""
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
    args = parser.parse_args(argv)
    counts = args.measurement_mode == "count_windows"
    args.num_requests = args.measurement_request_count if counts else None
    if args.request_count:
        args.num_requests, args.max_trials = args.request_count, 1
    return args


def main() -> int:
    try:
        return asyncio.run(run(parse_args()))
    except LoadError as error:
        print(f"Failed to retrieve results from inference request.\n{error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"sse_load: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
