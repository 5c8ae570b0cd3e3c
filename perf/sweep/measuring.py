"""Measures one load: warm-up, perf_analyzer with the server and the machine watched, the figures.

A load that fails is a measurement too, with its error: a sweep goes on. Only a server that has gone
ends it.
"""

from __future__ import annotations

import errno
import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from urllib.parse import urlparse

from perf.report.head import now
from perf.report.schema import Measurement
from perf.sweep.analyzer.process import Ended, Runner
from perf.sweep.commands import (
    EXPORT_FILE,
    counting_command,
    is_forced,
    measuring_command,
    unstable_command,
    warm_up_command,
)
from perf.sweep.export import ExportError, Figures, read_export
from perf.sweep.plan import Planned
from perf.sweep.scenario.model import Addresses
from perf.sweep.server.machine_use import Watch, machine_figures, server_pids, watching
from perf.sweep.server.metrics import Difference, gpu_figures, server_figures, within
from perf.sweep.server.triton import TritonView

_SILENCE_S = 20.0  # of a server's metrics, after which a load is not waited for
_FULL_BYTES = 65_536  # perf_analyzer says nothing when it can't write all of its export
_LEAST_TIMEOUT_S = 120.0


class ServerGoneError(Exception):
    """The server no longer answers, or no longer has the model."""


@dataclass(frozen=True)
class Measurer:
    """Measures on one server. ``recovery_s``: how long a server may take to come back; ``say``
    tells people what is being done.
    """

    runner: Runner
    server: TritonView
    recovery_s: Callable[[], float]
    say: Callable[[str], None]

    @property
    def addresses(self) -> Addresses:
        return self.server.addresses

    def measure(self, planned: Planned) -> Measurement:
        """Raises ServerGoneError, OSError (the disk)."""
        found = self._once(planned)
        if found.num_requests or self._is_there(planned):
            return found
        self.say("the server does not answer; waiting for it to come back")
        if not self.server.wait_ready([planned.target.model], self.recovery_s()):
            raise ServerGoneError(found.first_error or "")
        return self._once(planned)

    def _is_there(self, planned: Planned) -> bool:
        return self.server.is_live() and self.server.is_ready(planned.target.model)

    def _once(self, planned: Planned) -> Measurement:
        self.say(planned.label)
        started = now()
        with self._watched() as watch:
            command, ended = self._loaded(planned, watch)
        if ended.code:
            return self._failed(planned, started, ended, command)
        try:
            file = self.runner.folder / EXPORT_FILE
            figures = read_export(file, planned.streams, planned.counts_tokens)
        except ExportError as error:
            if shutil.disk_usage(self.runner.folder).free < _FULL_BYTES:
                raise OSError(errno.ENOSPC, "no space left on device") from None
            return self._failed(planned, started, Ended(1, str(error)), command)
        finally:
            (self.runner.folder / EXPORT_FILE).unlink(missing_ok=True)
        return self._measurement(planned, started, figures, watch, command)

    def _loaded(self, planned: Planned, watch: Watch) -> tuple[list[str], Ended]:
        """Warm-up, then the measurement; again where its windows never agreed, or nothing ended in
        one: of those perf_analyzer exports nothing.
        """
        command = measuring_command(planned, self.addresses)
        if planned.measuring.warm_up_requests:
            ended = self._run(warm_up_command(planned, self.addresses), planned, watch)
            if ended.code and not (ended.is_unstable or ended.has_nothing):
                return command, ended
        ended = self._run(command, planned, watch)
        if ended.is_unstable:
            command = unstable_command(planned, self.addresses)
            ended = self._run(command, planned, watch)
        if ended.has_nothing:
            command = counting_command(planned, self.addresses)
            ended = self._run(command, planned, watch)
        return command, ended

    def _watched(self) -> AbstractContextManager[Watch]:
        port = urlparse(f"//{self.addresses.http}").port or 0
        return watching(self.server, server_pids(port) if self.server.is_local else [])

    def _run(self, command: list[str], planned: Planned, watch: Watch) -> Ended:
        (self.runner.folder / EXPORT_FILE).unlink(missing_ok=True)

        def give_up() -> str:
            silent = watch.silent_s > _SILENCE_S and not self.server.is_live()
            return "the server stopped answering" if silent else ""

        return self.runner.run(command, _timeout_s(planned), give_up)

    def _measurement(
        self,
        planned: Planned,
        started: str,
        figures: Figures,
        watch: Watch,
        command: list[str],
    ) -> Measurement:
        start_ns, end_ns = figures.start_ns, figures.end_ns
        seen = Difference(watch.scrapes, planned.target.labels, start_ns, end_ns)
        latency_ms = figures.latency.mean_ms if figures.latency else None
        gpu = gpu_figures(within(watch.scrapes, start_ns, end_ns))
        return Measurement(
            load=planned.load,
            repeat=planned.repeat,
            started=started,
            duration_s=round(figures.duration_s, 3),
            num_requests=figures.num_requests,
            num_errors=0,
            requests_per_s=round(figures.requests_per_s, 4),
            stable=figures.stable and not is_forced(command),
            latency=figures.latency,
            time_to_first_token=figures.time_to_first_token,
            inter_token_latency=figures.inter_token_latency,
            output_tokens_per_s=figures.output_tokens_per_s,
            server=server_figures(seen, latency_ms),
            machine={**gpu, **machine_figures(watch.looks, start_ns, end_ns)},
            command=shlex.join(command),
        )

    def _failed(
        self, planned: Planned, started: str, ended: Ended, command: list[str]
    ) -> Measurement:
        failed = Measurement(planned.load, planned.repeat, started, 0.0, 0, 1, 0.0, stable=False)
        reason = self._reason(planned, ended)
        return replace(failed, first_error=reason, command=shlex.join(command))

    def _reason(self, planned: Planned, ended: Ended) -> str:
        """What went wrong, with what to do where that is known."""
        if ended.has_nothing:
            return "no request was done within a window; raise measurement.window_s"
        reason = ended.reason()
        if planned.load.endpoint == "http-generate" and "HTTP code" in reason:
            # perf_analyzer tells the status only.
            payload = json.loads(planned.requests.content("http-generate"))["data"][0]["payload"][0]
            said = self.server.answer_to(f"/v2/models/{planned.target.model}/generate", payload)
            if said.startswith(("HTTP", "nothing")):
                return f"{reason}; asked alone, the server says {said[:300]}"
            return f"{reason}; asked alone the server answers, so it refuses some at this load"
        return reason


def _timeout_s(planned: Planned) -> float:
    """A load's time: all its windows, and as much again."""
    measuring = planned.measuring
    if measuring.timeout_s:
        return measuring.timeout_s
    if measuring.window_requests is not None:
        return 3600.0
    return _LEAST_TIMEOUT_S + 2.5 * measuring.window_s * measuring.max_trials
