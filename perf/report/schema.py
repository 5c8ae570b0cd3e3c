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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from generator.errors import PerfError, mask_tokens
from generator.yaml_file.regular_file import read_regular

SCHEMA_VERSION = 1
RUN_FILE, MEASUREMENTS_FILE, REPORT_FILE = "run.json", "measurements.jsonl", "report.json"

_MOST_BYTES = 2**30
_SECRETS = (
    re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)"),  # a password in a URL
    re.compile(r"(\bBearer\s+)[^\s'\"]+", re.I),
    re.compile(r"(--[\w-]*(?:key|token|password|secret)(?:=|\s+))(?:'[^']*'|\"[^\"]*\"|\S+)"),
    re.compile(r"(\b[\w-]*(?:admin|api)-key:\s*)[^\s'\"]+", re.I),
)

Value = str | int | float | bool | None
Made = TypeVar("Made")


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
    doubts: tuple[str, ...] = ()  # what speaks against it, in words


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

    @property
    def name(self) -> str:
        """The title, or the kind and the time where there is none."""
        return self.title or f"{self.kind} of {self.created}"


@dataclass(frozen=True)
class Results:
    """A run, what it measured, and a line for whatever of it could not be read."""

    run: Run
    measurements: Sequence[Measurement]
    problems: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """What report.json holds: a Run's fields, ``measurements`` and ``problems``."""
        lines = [asdict(each) for each in self.measurements]
        return {**asdict(self.run), "measurements": lines, "problems": list(self.problems)}


@dataclass(frozen=True)
class _Version:
    """The field that is read before all others."""

    schema_version: int


@dataclass(frozen=True)
class _Lines:
    """What a report.json holds beside the Run."""

    measurements: list[Measurement]
    problems: Sequence[str] = ()


def write_run(folder: Path, run: Run) -> None:
    """Makes the folder and writes ``run.json`` whole or not at all. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RUN_FILE, json.dumps(masked(asdict(run)), indent=2) + "\n")


def append(folder: Path, measurement: Measurement) -> None:
    """Adds one line and has it written to the disk. Raises OSError; then the line is taken back, so
    the file ends with a whole one.

    What a process that was killed left unfinished at the end is cut off first.
    """
    finite = replace(
        measurement, server=_finite(measurement.server), machine=_finite(measurement.machine)
    )
    data = msgspec.json.encode(masked(asdict(finite))) + b"\n"
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
    return _run(file, read_regular(file, _MOST_BYTES))


def read_measurements(folder: Path) -> list[Measurement]:
    """What is there; an unfinished last line, of a process that was killed, is left out.

    Raises OSError, ValueError (a line in the middle that is no measurement).
    """
    measurements, problems = readable_measurements(folder)
    if problems:
        raise ValueError(problems[0])
    return measurements


def readable_measurements(folder: Path) -> tuple[list[Measurement], list[str]]:
    """Every measurement, of one that was made again the last, and of each other line its file,
    number and what is wrong.

    Raises OSError.
    """
    file = folder / MEASUREMENTS_FILE
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    found: dict[bytes, Measurement] = {}
    problems: list[str] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            if line.strip():
                each = _made(Measurement, line)
                key = msgspec.json.encode([each.load, each.repeat], order="sorted")
                found[key] = each
        except ValueError as error:  # noqa: PERF203, every line is tried
            problems.append(f"{file}:{number}: not a measurement: {error}")
    return list(found.values()), problems


def read_results(path: Path) -> Results:
    """The run in a folder, or in the report.json of one. Raises PerfError."""
    try:
        if path.is_dir():
            return Results(read_run(path), *readable_measurements(path))
        data = read_regular(path, _MOST_BYTES)
        run = _run(path, data)
        lines = _made(_Lines, data, f"{path}: ")
        return Results(run, lines.measurements, lines.problems)
    except FileNotFoundError:
        expected = f"expected a folder with {RUN_FILE}, as `hf-triton perf sweep` makes"
        if path.is_dir():
            raise PerfError(f"{path}: not a run: it has no {RUN_FILE}; {expected}") from None
        raise PerfError(f"{path}: not found; {expected}, or the {REPORT_FILE} of one") from None
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise PerfError(str(error)) from None


def write_text(file: Path, text: str) -> None:
    """Replaces ``file``, whole or not at all. Raises OSError, which names it."""
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.write_text(encodable(text), encoding="utf-8", newline="")
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error


def encodable(text: str) -> str:
    """``text`` with an escape for what UTF-8 has no bytes for: half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()


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
    return encodable(mask_tokens(value))


def _run(file: Path, data: bytes) -> Run:
    version = _made(_Version, data, f"{file}: not a run: ").schema_version
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{file}: schema_version: got {version}, expected at most {SCHEMA_VERSION}; "
            "a newer hf-triton wrote it"
        )
    return _made(Run, data, f"{file}: ")


def _made(kind: type[Made], data: bytes, where: str = "") -> Made:
    """JSON as the dataclass; keys of a later version are left out. Raises ValueError, which says
    where and what is wrong: ``Expected `str`, got `int` - at `$.load.endpoint` ``.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{where}{error}") from None


def _end_of_last_line(file: IO[bytes]) -> int:
    """Where the last whole line ends, in bytes."""
    file.seek(0)
    return file.read().rfind(b"\n") + 1


def _finite(figures: Mapping[str, float]) -> dict[str, float]:
    """Without figures that JSON has no number for: they were not measured."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}
