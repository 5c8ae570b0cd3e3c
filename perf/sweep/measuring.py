"""Measures one load: warms up, runs perf_analyzer while watching the server and the machine, and
computes the figures. A failed load is a measurement with an error, and the sweep continues; only a
lost server ends it.
"""

from __future__ import annotations

import errno
import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perf.load.records import Record, figures
from perf.machine import now
from perf.report.schema import Measurement
from perf.sweep import analyzer
from perf.sweep.analyzer import EXPORT_FILE, Analyzer, Ended, measuring_command, warm_up_command
from perf.sweep.metrics import Difference, gpu_figures, server_figures
from perf.sweep.plan import Planned
from perf.sweep.server import TritonView
from perf.sweep.watching import Watch, between, machine_figures, server_pids, watching

_COUNTED = "num_output_tokens"
_SILENCE_S = 20.0  # silence of the server's metrics that ends a load
_FULL_BYTES = 65_536  # perf_analyzer reports no error when it can't write its whole export
_LEAST_TIMEOUT_S, _COUNTING_TIMEOUT_S = 120.0, 3600.0


class ServerGoneError(Exception):
    """The server no longer answers, or no longer has the model."""


@dataclass(frozen=True)
class Measurer:
    """Measures into the run's ``folder``. ``recovery_s``: how long a server may take to recover;
    ``say`` prints progress.
    """

    analyzer: Analyzer
    folder: Path
    recovery_s: Callable[[TritonView], float]
    say: Callable[[str], object]

    def measure(self, planned: Planned) -> Measurement:
        """Raises ServerGoneError, OSError (the disk)."""
        server, model = planned.server, planned.target.model
        found = self._once(planned)
        if found.num_requests or (server.is_live() and server.is_ready(model)):
            return found
        self.say("the server does not answer; waiting for it to come back")
        if not server.wait_ready([model], self.recovery_s(server)):
            raise ServerGoneError(found.first_error or "")
        return self._once(planned)

    def _once(self, planned: Planned) -> Measurement:
        self.say(planned.label)
        blank = Measurement(planned.load, planned.repeat, now(), 0.0, 0, 0, 0.0)
        pids = server_pids(planned.server.http_port) if planned.server.is_local else []
        with watching(planned.server.metrics, pids) as watch:
            command, ended, is_stable = self._loaded(planned, watch)
        blank = replace(blank, command=shlex.join(command), stable=is_stable)
        export = self.folder / EXPORT_FILE
        try:
            if ended.code:
                return _failed(blank, planned, ended)
            found = read_export(export, planned.streams, planned.counts_tokens)
            return _measured(blank, planned, found, watch)
        except ExportError as error:
            if shutil.disk_usage(self.folder).free < _FULL_BYTES:
                raise OSError(errno.ENOSPC, "no space left on device") from None
            return _failed(blank, planned, Ended(1, str(error)))
        finally:
            export.unlink(missing_ok=True)

    def _loaded(self, planned: Planned, watch: Watch) -> tuple[list[str], Ended, bool]:
        """Warms up, then measures. Where the windows never agreed, or no request ended in one
        (perf_analyzer then exports nothing), measures again and marks the result as not stable.
        """
        command = measuring_command(planned)
        if planned.measuring.warm_up_requests:
            ended = self._run(warm_up_command(planned), planned, watch)
            if ended.code and not (ended.is_unstable or ended.has_no_requests):
                return command, ended, False
        ended = self._run(command, planned, watch)
        for few in (False, True):
            if ended.has_no_requests if few else ended.is_unstable:
                command = measuring_command(planned, forced=True, few=few)
                ended = self._run(command, planned, watch)
        export = self.folder / EXPORT_FILE
        if not ended.code and not (export.exists() and export.stat().st_size):
            ended = self._run(
                command, planned, watch
            )  # it has been seen to succeed with an empty export
        return command, ended, command == measuring_command(planned)

    def _run(self, command: list[str], planned: Planned, watch: Watch) -> Ended:
        (self.folder / EXPORT_FILE).unlink(missing_ok=True)
        measuring = planned.measuring
        timeout_s = _LEAST_TIMEOUT_S + 2.5 * measuring.window_s * measuring.max_trials
        timeout_s = timeout_s if measuring.window_requests is None else _COUNTING_TIMEOUT_S

        def give_up() -> str:
            silent = watch.silent_s > _SILENCE_S and not planned.server.is_live()
            return "the server stopped answering" if silent else ""

        return analyzer.run(self.analyzer, command, self.folder, timeout_s, give_up)


def _measured(blank: Measurement, planned: Planned, export: Export, watch: Watch) -> Measurement:
    start_ns, end_ns = export.windows[0], export.windows[-1]
    found = export.figures()
    latency_ms = found["latency"].mean_ms if found["latency"] else None
    looks = between(watch.looks, start_ns, end_ns)
    answered = between([look for look in watch.looks if look.samples], start_ns, end_ns)
    scrapes = [look.samples for look in answered]
    return replace(
        blank,
        **found,
        server=server_figures(Difference(scrapes, planned.target.labels), latency_ms),
        machine={**gpu_figures(scrapes), **machine_figures(looks)},
    )


def _failed(blank: Measurement, planned: Planned, ended: Ended) -> Measurement:
    """A measurement with the error; for /generate perf_analyzer reports the status code alone."""
    reason = ended.reason()
    if planned.load.endpoint == "http-generate" and "HTTP code" in reason:
        payload = json.loads(planned.requests.content("http-generate"))["data"][0]["payload"][0]
        said = planned.server.refusal(f"/v2/models/{planned.target.model}/generate", payload)
        reason += f"; asked alone, the server says {said or 'nothing wrong: it is the load'}"
    return replace(blank, num_errors=1, stable=False, first_error=reason)


class ExportError(Exception):
    """The export file is missing or incomplete."""


@dataclass(frozen=True)
class Export:
    """Answered requests, in seconds since the first window; the counted windows' borders in
    nanoseconds.
    """

    records: Sequence[Record]
    windows: Sequence[int]

    def figures(self) -> dict[str, Any]:
        """The client-side fields of a Measurement."""
        return figures(self.records, (self.windows[-1] - self.windows[0]) / 1e9)


def read_export(file: Path, streams: bool, counts_tokens: bool) -> Export:
    """Reads the only experiment in ``file``. Raises ExportError.

    The export holds every request that ended in the counted windows: when it was sent, when each
    response came (nanoseconds since 1970), and the outputs. For outputs that were not sent it holds
    uninitialised memory, for texts an empty one, so only requested outputs are read.
    """
    try:
        (experiment,) = json.loads(file.read_text("utf-8", "replace"))["experiments"]
        windows, requests = experiment["window_boundaries"], experiment["requests"]
        records = [_record(one, windows[0], streams, counts_tokens) for one in requests]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ExportError(f"perf_analyzer left no whole export: {error}") from error
    if len(windows) < 2:
        raise ExportError("perf_analyzer's export has no counted time")
    return Export([record for record in records if record], windows)


def _record(
    request: Mapping[str, Any], start_ns: int, streams: bool, counts_tokens: bool
) -> Record | None:
    """None where it was never answered. A last response without content only marks the end."""
    times = list(request["response_timestamps"])
    outputs = list(request.get("response_outputs", []))
    if len(times) > 1 and len(outputs) == len(times) and _is_empty(outputs[-1]):
        times, outputs = times[:-1], outputs[:-1]
    if not times:
        return None
    sent_s, *times_s = ((each - start_ns) / 1e9 for each in (request["timestamp"], *times))
    return Record(
        sent_s=sent_s,
        done_s=times_s[-1],
        num_output_tokens=sum(map(_num_tokens, outputs)) if counts_tokens else 0,
        chunk_s=times_s if streams else (),
    )


def _is_empty(output: Mapping[str, Any]) -> bool:
    """Whether a response carries no text. Our final responses carry a finish_reason, which each
    streaming request asks for.
    """
    texts = [value for value in output.values() if isinstance(value, str)]
    return not any(texts) if texts else not output


def _num_tokens(output: Mapping[str, Any]) -> int:
    """The token count of one response; with flat JSON it is inside the text."""
    if isinstance(body := output.get("response"), str):
        with suppress(ValueError):
            output = json.loads(body)
    counted = output.get(_COUNTED, 0)
    return sum(map(int, counted)) if isinstance(counted, list) else int(counted)
