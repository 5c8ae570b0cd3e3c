"""The file of a run: ``report.json`` describes how it was made, and has every finished measurement
in order. It is replaced as a whole, so a run that was stopped goes on where it was. Units stand in
the names; a figure that was not measured is ``None``. Secrets are masked. Schema version 1: fields
are added, never renamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from generator.errors import PerfError, mask_tokens
from generator.repository.staging import write
from hf_triton.runtime.regular_file import read_regular

SCHEMA_VERSION = 1
REPORT_FILE = "report.json"

_MOST_BYTES = 2**30

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Percentiles:
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Load:
    """The requests that were sent. Measurements of equal loads are repeats of each other."""

    target: str  # the model's or the peer's name
    endpoint: str  # http-infer, http-generate, grpc-infer, grpc-stream, http-generate-stream
    concurrency: int | None = None  # closed loop: callers; or
    request_rate: float | None = None  # open loop: requests/s sent
    batch_size: int = 1
    input_name: str = ""  # the scenario's name for its input data
    prompt_tokens: str = ""  # a number, or a range as in 8-64
    output_tokens: str = ""
    # The server's settings, where they vary.
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    load: Load
    repeat: int  # from 0
    started: str  # ISO 8601, UTC
    duration_s: float  # length of the counted time
    num_requests: int  # correct answers in that time
    num_errors: int
    requests_per_s: float
    first_error: str | None = None
    stable: bool = True  # whether the load generator's own stability rule was met
    latency: Percentiles | None = None
    time_to_first_token: Percentiles | None = None
    inter_token_latency: Percentiles | None = None
    output_tokens_per_s: float | None = None  # all callers together
    server: Mapping[str, float] = field(default_factory=dict)
    """From Triton's and our own metrics, as differences over the measurement: queue_share (0 to 1
    of the time in the server), batch_occupancy (mean rows computed together)."""
    machine: Mapping[str, float] = field(default_factory=dict)
    """cpu_share (0 to 1 of all cores) and server_cpu_cores over the measurement; memory_gib and
    gpu_memory_gib at its end."""
    command: str = ""
    doubts: tuple[str, ...] = ()  # reasons to doubt it

    @property
    def has_failed(self) -> bool:
        """Nothing was answered rightly; ``first_error`` is the reason."""
        return not self.num_requests

    @property
    def rows_per_s(self) -> float:
        return self.requests_per_s * self.load.batch_size


@dataclass(frozen=True)
class Run:
    kind: str  # sweep, tune, baselines
    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, Value]
    versions: Mapping[str, str]
    title: str = ""
    scenario: Mapping[str, Any] = field(default_factory=dict)  # as given, with defaults filled in
    notes: Sequence[str] = ()
    schema_version: int = SCHEMA_VERSION
    measurements: Sequence[Measurement] = ()

    @property
    def name(self) -> str:
        return self.title or f"{self.kind} of {self.created}"


@dataclass(frozen=True)
class _Version:
    """The schema version, which is read before all other fields."""

    schema_version: int


def write_run(folder: Path, run: Run) -> None:
    """Keeps the measurements that the folder has."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, replace(run, measurements=read_measurements(folder)))


def append(folder: Path, measurement: Measurement) -> None:
    """Adds a measurement to the run, replacing an earlier one of the same repeat."""
    before, load, repeat = read_run(folder), measurement.load, measurement.repeat
    kept = [each for each in before.measurements if (each.load, each.repeat) != (load, repeat)]
    _write(folder, replace(before, measurements=[*kept, measurement]))


def read_measurements(folder: Path) -> list[Measurement]:
    """Reads the measurements; an empty list where there is no run. Raises PerfError."""
    return [*read_run(folder).measurements] if (folder / REPORT_FILE).exists() else []


def read_run(path: Path) -> Run:
    """Reads a run from its folder or its report.json; keys of later versions are left out. Raises
    PerfError with the place and the fault.
    """
    file = path / REPORT_FILE if path.is_dir() else path
    try:
        data = read_regular(file, _MOST_BYTES)
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            expected = f"expected at most {SCHEMA_VERSION}; a newer hf-triton wrote it"
            raise PerfError(f"{file}: schema_version: got {version}, {expected}")
        return msgspec.json.decode(data, type=Run)
    except FileNotFoundError:
        expected = f"expected a folder with {REPORT_FILE}, as `hf-triton perf sweep` makes"
        raise PerfError(f"{file}: not found; {expected}") from None
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PerfError(f"{file}: not a run: {error}") from None


def _write(folder: Path, run: Run) -> None:
    text = json.dumps(asdict(run), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(folder / REPORT_FILE, mask_tokens(text) + "\n")


def write_text(file: Path, text: str) -> None:
    """Replaces ``file`` atomically; what UTF-8 can't encode becomes ``?``. Raises an OSError that
    names the file.
    """
    try:
        write(str(file), text.encode("utf-8", "replace"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
