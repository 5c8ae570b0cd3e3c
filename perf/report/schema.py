"""What a run is, on disk: a folder with ``run.json`` (how it came about) and
``measurements.jsonl``, one line for each finished measurement in the order in which they were made.

Whatever measures appends lines; whatever shows, compares or tunes reads them. A line is complete or
absent, so a run that was stopped keeps what it had, and goes on where it was. Knows no server, no
clock and no plot.

Units stand in the names; a figure that was not measured is absent (``None``). Secrets are masked
where they are written. Schema version 1: fields are added, never renamed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from generator.errors import mask_tokens
from generator.yaml_file import regular_file
from perf.report.typed import made
from perf.report.written import write_text

SCHEMA_VERSION = 1
RUN_FILE, MEASUREMENTS_FILE = "run.json", "measurements.jsonl"

_SECRETS = (
    re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"),  # a password in a URL
    re.compile(r"(\bBearer\s+)[^\s'\"]+", re.I),
    re.compile(r"(--[\w-]*(?:key|token|password|secret)(?:=|\s+))(?:'[^']*'|\"[^\"]*\"|\S+)"),
    re.compile(r"(\b[\w-]*(?:admin|api)-key:\s*)[^\s'\"]+", re.I),
)

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Percentiles:
    """Of one kind of time, in milliseconds."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Load:
    """What was sent; two measurements of equal loads are repeats of each other."""

    target: str  # what answers: a model's name, or a peer's
    endpoint: str  # http-infer, http-generate, grpc-infer, grpc-stream, http-generate-stream
    concurrency: int | None = None  # closed loop: callers; or
    request_rate: float | None = None  # open loop: requests/s sent
    batch_size: int = 1
    input_name: str = ""  # the scenario's name for its input data
    prompt_tokens: str = ""  # a number, or a range as in 8-64
    output_tokens: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)  # of the server, where they vary


@dataclass(frozen=True)
class Measurement:
    """The figures of one load on one target."""

    load: Load
    repeat: int  # from 0
    started: str  # ISO 8601, UTC
    duration_s: float  # that was counted
    num_requests: int  # answered well, in that time
    num_errors: int
    requests_per_s: float
    first_error: str | None = None
    stable: bool = True  # whether the load generator's own stability rule was met
    latency: Percentiles | None = None
    time_to_first_token: Percentiles | None = None
    inter_token_latency: Percentiles | None = None
    output_tokens_per_s: float | None = None  # all callers together
    roofline_share: float | None = None  # 0 to 1: of what the machine's memory and cores allow
    server: Mapping[str, float] = field(default_factory=dict)
    """From Triton's and our own metrics, as differences over the measurement: queue_share (0 to 1
    of the time in the server), batch_occupancy (mean rows computed together), queue_ms, compute_ms,
    kv_cache_share, ..."""
    machine: Mapping[str, float] = field(default_factory=dict)
    """cpu_share (0 to 1 of all cores), server_cpu_cores, memory_gib, gpu_share, gpu_memory_gib,
    gpu_power_w: means over the measurement; *_max where a peak."""
    command: str = ""
    doubts: Sequence[str] = ()  # figures that the server counted otherwise, in words


@dataclass(frozen=True)
class Run:
    """How the measurements came about."""

    kind: str  # sweep, tune, baselines
    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, Value]
    versions: Mapping[str, str]
    title: str = ""
    scenario: Mapping[str, Any] = field(default_factory=dict)  # as given, with defaults filled in
    roofline: Mapping[str, float] = field(default_factory=dict)
    """memory_gb_per_s, float32_gflop_per_s, bfloat16_gflop_per_s as measured on this machine."""
    notes: Sequence[str] = ()
    schema_version: int = SCHEMA_VERSION


def write_run(folder: Path, run: Run) -> None:
    """Makes the folder and writes ``run.json`` whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RUN_FILE, json.dumps(masked(asdict(run)), indent=2) + "\n")


def append(folder: Path, measurement: Measurement) -> None:
    """Adds one line and has it written to the disk. Raises OSError; then the line is taken back, so
    the file ends with a whole one.

    What a process that was killed left unfinished at the end is cut off first.
    """
    data = (json.dumps(masked(_writable(asdict(measurement))), allow_nan=False) + "\n").encode()
    with (folder / MEASUREMENTS_FILE).open("a+b", buffering=0) as file:
        end = _end_of_last_line(file)
        file.truncate(end)
        try:
            if file.write(data) != len(data):
                raise OSError(28, "no space left on device")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def read_run(folder: Path) -> Run:
    """The run in ``folder``. Raises OSError, ValueError (not a run, or of a newer schema)."""
    file = folder / RUN_FILE
    try:
        return run_of(read_json(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from None


def read_json(file: Path) -> Any:
    """What a file of JSON holds. Raises OSError, ValueError."""
    try:
        return regular_file.read_json(file)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: line {error.lineno}, {error.msg}") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: not a text in UTF-8") from None


def run_of(values: object) -> Run:
    """The run that a JSON document holds. Raises ValueError."""
    version = values.get("schema_version") if isinstance(values, dict) else None
    if not isinstance(version, int) or version < 1:
        raise ValueError("not a run: no schema_version")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"schema_version: got {version}, expected at most {SCHEMA_VERSION}; "
            "a newer hf-triton wrote it"
        )
    return made(Run, values)


def read_measurements(folder: Path) -> list[Measurement]:
    """What is there; an unfinished last line, of a process that was killed, is left out.

    Raises OSError, ValueError (a line in the middle that is no measurement).
    """
    measurements, problems = readable_measurements(folder)
    if problems:
        raise ValueError(problems[0])
    return measurements


def readable_measurements(folder: Path) -> tuple[list[Measurement], list[str]]:
    """Every line that is a measurement, and of each other one its file, number and what is wrong.

    Raises OSError.
    """
    file = folder / MEASUREMENTS_FILE
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    found: list[Measurement] = []
    problems: list[str] = []
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        try:
            found.append(made(Measurement, json.loads(line.decode())))
        except json.JSONDecodeError as error:
            problems.append(f"{file}:{number}:{error.colno}: not a measurement: {error.msg}")
        except (ValueError, RecursionError) as error:
            problems.append(f"{file}:{number}: not a measurement: {error}")
    return found, problems


def masked(value: Any) -> Any:
    """A JSON value with the secrets in its texts replaced by ``***``."""
    if isinstance(value, dict):
        return {name: masked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked(each) for each in value]
    if not isinstance(value, str):
        return value
    for pattern in _SECRETS:
        value = pattern.sub(r"\1***", value)
    return mask_tokens(value)


def _end_of_last_line(file: IO[bytes]) -> int:
    """Where the last whole line ends, in bytes."""
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def _writable(values: dict[str, Any]) -> dict[str, Any]:
    """Without what JSON has no number for: a figure that isn't finite was not measured."""
    finite = {name: each for name, each in values.items() if not _is_gap(each)}
    finite |= {name: 0.0 for name in ("duration_s", "requests_per_s") if _is_gap(values.get(name))}
    for name, each in finite.items():
        if isinstance(each, dict):
            kept = _writable(each)
            is_whole = len(kept) == len(each) or name in ("load", "server", "machine", "settings")
            finite[name] = kept if is_whole else None
    return finite


def _is_gap(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
