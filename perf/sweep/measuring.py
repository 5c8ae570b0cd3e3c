"""Measures one load: warms up, runs perf_analyzer while watching server and machine. A failed load
is a measurement with an error; only a lost server ends the sweep.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perf.load.records import Record, figures
from perf.report.schema import Measurement
from perf.run_folder import now
from perf.sweep import analyzer
from perf.sweep.analyzer import EXPORT_FILE, Analyzer, Ended, measuring_command, warm_up_command
from perf.sweep.metrics import look, machine_figures, server_figures, server_pids
from perf.sweep.plan import Planned

_COUNTED = "num_output_tokens"
RECOVERY_S = 60.0  # how long a server may be away; `hf-triton serve` starts it again
_LEAST_TIMEOUT_S = 120.0


class ServerGoneError(Exception):
    """The server no longer answers, or no longer has the model."""


class ExportError(Exception):
    """The export file is missing or incomplete."""


@dataclass(frozen=True)
class Measurer:
    """Measures into ``folder``."""

    analyzer: Analyzer
    folder: Path

    def measure(self, planned: Planned) -> Measurement:
        """Raises ServerGoneError, OSError (the disk)."""
        server, model = planned.server, planned.target.model
        found = self._measure_once(planned)
        if found.num_requests or server.is_ready(model):
            return found
        if not server.wait_ready([model], RECOVERY_S):
            raise ServerGoneError(found.first_error or "")
        return self._measure_once(planned)

    def _measure_once(self, planned: Planned) -> Measurement:
        blank = Measurement(planned.load, planned.repeat, now(), 0.0, 0, 0, 0.0)
        port = int(planned.server.addresses.http.rpartition(":")[2])
        pids = server_pids(port) if planned.server.is_local else []
        first = look(planned.server.metrics, pids)
        command, ended, is_stable = self._loaded(planned)
        last = look(planned.server.metrics, pids)
        blank = replace(blank, command=shlex.join(command), stable=is_stable)
        failed = replace(blank, num_errors=1, stable=False)
        export = self.folder / EXPORT_FILE
        try:
            if ended.code:
                return replace(failed, first_error=ended.reason())
            records, windows = read_export(export, planned.streams, planned.counts_tokens)
        except ExportError as error:
            return replace(failed, first_error=str(error))
        finally:
            export.unlink(missing_ok=True)
        found = figures(records, (windows[1] - windows[0]) / 1e9)
        latency_ms = found["latency"].mean_ms if found["latency"] else None
        return replace(
            blank,
            **found,
            server=server_figures(first, last, planned.target.labels, latency_ms),
            machine=machine_figures(first, last),
        )

    def _loaded(self, planned: Planned) -> tuple[list[str], Ended, bool]:
        """Warms up, then measures. Where windows never agreed, or no request ended in one, measures
        again and marks the result as not stable.
        """
        command = measuring_command(planned)
        if planned.scenario.measurement.warm_up_requests:
            ended = self._run(warm_up_command(planned), planned)
            if ended.code and not (ended.is_unstable or ended.has_no_requests):
                return command, ended, False
        ended = self._run(command, planned)
        for few in (False, True):
            if ended.has_no_requests if few else ended.is_unstable:
                command = measuring_command(planned, forced=True, few=few)
                ended = self._run(command, planned)
        export = self.folder / EXPORT_FILE
        if not ended.code and not (export.exists() and export.stat().st_size):
            # It has been seen to succeed with an empty export.
            ended = self._run(command, planned)
        return command, ended, command == measuring_command(planned)

    def _run(self, command: list[str], planned: Planned) -> Ended:
        (self.folder / EXPORT_FILE).unlink(missing_ok=True)
        measuring = planned.scenario.measurement
        timeout_s = _LEAST_TIMEOUT_S + 2.5 * measuring.window_s * measuring.max_trials
        return analyzer.run(self.analyzer, command, self.folder, timeout_s)


def read_export(
    file: Path, streams: bool, counts_tokens: bool
) -> tuple[list[Record], tuple[int, int]]:
    """Reads its only experiment: answered requests, in seconds since the first window, and when the
    counted windows begin and end, in nanoseconds. Raises ExportError. For outputs that were not
    sent it holds uninitialised memory, so only requested outputs are read.
    """
    try:
        (experiment,) = json.loads(file.read_text("utf-8", "replace"))["experiments"]
        start_ns, *_, end_ns = experiment["window_boundaries"]
        requests = [one for one in experiment["requests"] if one["response_timestamps"]]
        records = [_record(one, start_ns, streams, counts_tokens) for one in requests]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ExportError(f"perf_analyzer wrote no complete export: {error}") from error
    return records, (start_ns, end_ns)


def _record(
    request: Mapping[str, Any], start_ns: int, streams: bool, counts_tokens: bool
) -> Record:
    """Leaves out a last response without content, which only marks the end."""
    times = list(request["response_timestamps"])
    outputs = list(request.get("response_outputs", []))
    if len(times) > 1 and len(outputs) == len(times) and _is_empty(outputs[-1]):
        times, outputs = times[:-1], outputs[:-1]
    sent_s, *times_s = ((each - start_ns) / 1e9 for each in (request["timestamp"], *times))
    return Record(
        sent_s=sent_s,
        done_s=times_s[-1],
        num_output_tokens=sum(map(_num_tokens, outputs)) if counts_tokens else 0,
        chunk_s=times_s if streams else (),
    )


def _is_empty(output: Mapping[str, Any]) -> bool:
    """Returns True for one without text. Our final responses carry the asked finish_reason."""
    texts = [value for value in output.values() if isinstance(value, str)]
    return not any(texts) if texts else not output


def _num_tokens(output: Mapping[str, Any]) -> int:
    if isinstance(body := output.get("response"), str):
        with suppress(ValueError):
            output = json.loads(body)
    counted = output.get(_COUNTED, 0)
    return sum(map(int, counted)) if isinstance(counted, list) else int(counted)
