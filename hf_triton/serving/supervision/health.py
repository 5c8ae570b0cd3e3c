"""What a supervisor knows of its server and models, for probes and for Prometheus.

Written by the supervisor, read by the health port's threads. Knows no HTTP and no process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["starting", "serving", "restarting", "stopping"]

_PHASE_REASONS: Mapping[Phase, str] = {
    "starting": "models are being loaded",
    "restarting": "tritonserver died and is being restarted",
    "stopping": "the server is being stopped",
}
# So long may a server that should run leave us without an answer until it counts as hung: longer
# than the supervisor waits before it ends one.
_HUNG_AFTER_S = 60.0
_METRICS = {
    "hf_triton_model_up": ("gauge", "Whether the model is ready and all its processes live."),
    "hf_triton_model_deaths_total": ("counter", "Processes of the model that died."),
    "hf_triton_model_restarts_total": ("counter", "Times the model was loaded after a death."),
    "hf_triton_model_given_up": ("gauge", "Whether it failed to load too often to be tried again."),
    "hf_triton_model_loaded": ("gauge", "Whether a model that is loaded on demand is in memory."),
    "hf_triton_model_loads_total": ("counter", "Times the model was loaded on demand."),
    "hf_triton_model_put_out_total": ("counter", "Times the model was evicted, by reason."),
    "hf_triton_model_thrashing_total": (
        "counter",
        "Times the model was loaded again within a minute of making room for another one.",
    ),
    "hf_triton_model_waiting_requests": ("gauge", "Requests that wait until the model is loaded."),
    "hf_triton_model_load_wait_seconds_total": (
        "counter",
        "Time for which the first of the requests waited that the model was loaded for.",
    ),
    "hf_triton_on_demand_memory_bytes": (
        "gauge",
        "Memory that a model that is loaded on demand takes, or took last, by device.",
    ),
    "hf_triton_on_demand_memory_limit_bytes": (
        "gauge",
        "Memory that models that are loaded on demand may take together, by device.",
    ),
    "hf_triton_server_up": ("gauge", "Whether tritonserver runs and answers."),
    "hf_triton_server_restarts_total": ("counter", "Times tritonserver was restarted."),
    "hf_triton_last_apply_success": ("gauge", "Whether the last apply changed all it had to."),
    "hf_triton_last_apply_timestamp_seconds": ("gauge", "When the last apply ended."),
}


@dataclass(frozen=True)
class Sample:
    """A number, of a family of _METRICS."""

    family: str
    labels: Mapping[str, str]
    value: float

    @property
    def label_text(self) -> str:
        """As the text format has labels."""
        found = ",".join(f'{name}="{escaped(value)}"' for name, value in self.labels.items())
        return f"{{{found}}}"


@dataclass(frozen=True)
class ModelReport:
    """One model of models.yaml; ``reason`` is why it is not ready, "" where it is."""

    reason: str = ""
    num_deaths: int = 0
    num_restarts: int = 0
    is_given_up: bool = False


@dataclass
class Health:
    """The state of one server. Every method may be called from any thread."""

    clock: Callable[[], float] = time.monotonic
    _phase: Phase = "starting"
    _phase_reason: str = _PHASE_REASONS["starting"]
    _models: Mapping[str, ModelReport] = field(default_factory=dict)
    _is_server_up: bool = False
    _answered_at_s: float | None = None
    _why_no_child: dict[str, str] = field(default_factory=dict)
    _num_server_restarts: int = 0
    _last_apply: tuple[bool, float] | None = None
    _on_demand: dict[str, str] = field(default_factory=dict)
    _on_demand_samples: list[Sample] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Tells which phase of its life the server is in, and where there is more to say than
        usual, why it is not ready then. There is no phase after stopping.
        """
        with self._lock:
            if self._phase != "stopping":
                self._phase, self._phase_reason = phase, reason or _PHASE_REASONS.get(phase, "")
            self._answered_at_s = None if phase == "restarting" else self._answered_at_s

    def set_models(self, models: Mapping[str, ModelReport]) -> None:
        """The models to be served."""
        with self._lock:
            self._models = models

    def set_on_demand(self, states: Mapping[str, str], samples: Iterable[Sample]) -> None:
        """How each model is that is loaded on demand, in a word, and numbers of them."""
        with self._lock:
            self._on_demand, self._on_demand_samples = dict(states), list(samples)

    def set_server_up(self, is_up: bool) -> None:
        """Whether tritonserver has answered just now."""
        with self._lock:
            self._is_server_up = is_up
            if is_up or self._answered_at_s is None:
                self._answered_at_s = self.clock()

    def set_child(self, name: str, why_not_up: str) -> None:
        """Why a process beside tritonserver does not listen, "" where it does."""
        with self._lock:
            self._why_no_child[name] = why_not_up

    def server_restarted(self) -> None:
        """The tritonserver was started anew."""
        with self._lock:
            self._num_server_restarts += 1

    def applied(self, success: bool, at_s: float) -> None:
        """How the last apply ended, and when, in seconds since 1970."""
        with self._lock:
            self._last_apply = (success, at_s)

    def given_up(self) -> list[str]:
        """The models that nobody tries to load again."""
        with self._lock:
            return [name for name, model in self._models.items() if model.is_given_up]

    def is_live(self) -> bool:
        """False where tritonserver should answer and has not for a minute: it hangs."""
        with self._lock:
            since = self._answered_at_s
            return since is None or self.clock() - since < _HUNG_AFTER_S

    def readiness(self) -> dict[str, Any]:
        """``ready``, ``phase``, ``reason`` where it is the server's, ``not_ready`` by model; the
        states of models that are loaded ``on_demand``, where there are some.
        """
        with self._lock:
            not_ready = {name: model.reason for name, model in self._models.items() if model.reason}
            reason = self._phase_reason
            if not reason and not self._is_server_up:
                reason = "tritonserver does not answer"
            reason = reason or next(filter(None, self._why_no_child.values()), "")
            found: dict[str, Any] = {"ready": not (reason or not_ready), "phase": self._phase}
            if reason:
                found["reason"] = reason
            found["not_ready"] = not_ready
            return {**found, "on_demand": dict(self._on_demand)} if self._on_demand else found

    def metrics_text(self) -> str:
        """Everything in Prometheus' text format, version 0.0.4."""
        with self._lock:
            samples = list(self._samples())
        lines = []
        for name, (kind, help_text) in _METRICS.items():
            own = [(labels, value) for family, labels, value in samples if family == name]
            if own:
                lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{labels} {value!r}" for labels, value in own]
        return "".join(f"{line}\n" for line in lines)

    def _samples(self) -> Iterator[tuple[str, str, float]]:
        for name, model in self._models.items():
            labels = f'{{model="{escaped(name)}"}}'
            yield "hf_triton_model_up", labels, int(not model.reason and self._is_server_up)
            yield "hf_triton_model_deaths_total", labels, model.num_deaths
            yield "hf_triton_model_restarts_total", labels, model.num_restarts
            yield "hf_triton_model_given_up", labels, int(model.is_given_up)
        for one in self._on_demand_samples:
            yield one.family, one.label_text, one.value
        yield "hf_triton_server_up", "", int(self._is_server_up)
        yield "hf_triton_server_restarts_total", "", self._num_server_restarts
        if self._last_apply:
            yield "hf_triton_last_apply_success", "", int(self._last_apply[0])
            yield "hf_triton_last_apply_timestamp_seconds", "", self._last_apply[1]


def escaped(label: str) -> str:
    """A label's value as the text format wants it."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
