"""Loads ``/generate_stream`` as perf_analyzer loads the other endpoints: the same arguments, the
same input file, the same windows and rule of stability, and an export of the same form.

perf_analyzer 2.51 reads streams over gRPC only. Run as ``python -m perf.sweep.sse_load``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from perf.load.sse import Connection, Response

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


class Sender:
    """Sends payload after payload to one path; one kept-open connection for each request in
    flight.
    """

    def __init__(self, address: str, path: str, payloads: Sequence[Any]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._head = f"POST /{path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: "
        self._payloads = [json.dumps(one).encode() for one in payloads]
        self._idle: list[Connection] = []
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        self.done = Done()

    async def send(self, number: int) -> None:
        """One request to its end. Raises LoadError."""
        body = self._payloads[number % len(self._payloads)]
        connection = self._idle.pop() if self._idle else await self._connected()
        sent_ns = time.time_ns()
        try:
            response = await connection.post(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
        except ConnectionError as error:
            raise LoadError(f"the connection broke: {error}") from error
        self.done.requests.append(self._read(sent_ns, response))
        self._idle.append(connection)

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(Connection, self._host, self._port)
        except OSError as error:
            raise LoadError(f"can't connect to {self._host}:{self._port}: {error}") from error
        return connection

    def _read(self, sent_ns: int, response: Response) -> dict[str, Any]:
        if response.status != 200:
            said = response.body().decode("utf-8", "replace")[:500]
            raise LoadError(f"HTTP {response.status}: {said}")
        outputs, times = [], []
        for event, seconds in response.events():
            output = json.loads(event)
            if "error" in output:
                raise LoadError(str(output["error"])[:500])
            outputs.append(output)
            times.append(round(seconds * 1e9) + self._offset_ns)
        if not times:
            raise LoadError("a stream ended without any event")
        return {"timestamp": sent_ns, "response_timestamps": times, "response_outputs": outputs}


async def closed_loop(sender: Sender, callers: int) -> None:
    """So many callers, each sending when its last request is answered; until cancelled."""

    async def caller(first: int) -> None:
        for number in count(first, callers):
            await sender.send(number)

    async with _all_or_none() as tasks:
        tasks += [asyncio.create_task(caller(first)) for first in range(callers)]


async def open_loop(sender: Sender, rate: float, distribution: str) -> None:
    """So many requests a second, whatever is answered; until cancelled."""
    chance = random.Random(0)
    due_s = time.monotonic()
    async with _all_or_none() as tasks:

        async def send_on_time() -> None:
            nonlocal due_s
            for number in count():
                due_s += chance.expovariate(rate) if distribution == "poisson" else 1 / rate
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                tasks.append(asyncio.create_task(sender.send(number)))

        tasks.append(asyncio.create_task(send_on_time()))


class _all_or_none:  # noqa: N801, reads as the statement that it is
    """Waits for tasks that grow in number; the first error ends all of them."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> list[asyncio.Task[None]]:
        return self.tasks

    async def __aexit__(self, *_: object) -> None:
        try:
            while self.tasks:
                done, _pending = await asyncio.wait(
                    self.tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.5
                )
                for task in done:
                    self.tasks.remove(task)
                    task.result()
        finally:
            for task in self.tasks:
                task.cancel()


async def measure(
    sender: Sender, load: asyncio.Task[None], windows: Windows
) -> tuple[list[int], bool]:
    """The borders of the last windows (nanoseconds), and whether they agree. Raises LoadError."""
    borders = [time.time_ns()]
    for _ in range(windows.max_trials):
        await _end_of_window(sender, load, windows, borders[-1])
        borders.append(time.time_ns())
        if len(borders) > _WINDOWS and _agree(sender.done, borders[-_WINDOWS - 1 :], windows):
            return borders[-_WINDOWS - 1 :], True
    return borders[-_WINDOWS - 1 :], False


async def _end_of_window(
    sender: Sender, load: asyncio.Task[None], windows: Windows, start_ns: int
) -> None:
    before = len(sender.done.requests)
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if load.done():
            load.result()
        if windows.requests is not None:
            if len(sender.done.requests) - before >= windows.requests:
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
    sender = Sender(args.url, args.endpoint, [entry["payload"][0] for entry in entries])
    if args.request_rate_range:
        loading = open_loop(sender, args.request_rate_range, args.request_distribution)
    else:
        loading = closed_loop(sender, args.concurrency_range)
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
        borders, stable = await measure(sender, load, windows)
    finally:
        load.cancel()
    counted = sender.done.between(borders[0], borders[-1])
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
