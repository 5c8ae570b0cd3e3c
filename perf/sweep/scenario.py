"""Reads a sweep's scenario from YAML; all mistakes are reported together, each with its place."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from generator.errors import SpecError
from generator.yaml_file import nodes
from generator.yaml_file.keys import (
    GOT,
    SAID,
    AnyMap,
    Before,
    Flag,
    Found,
    Keys,
    Mistake,
    Text,
    listed,
    node_at,
    number,
    one_of,
    read,
    refused,
    whole,
)
from generator.yaml_file.nodes import Node, Report

# perf_analyzer (2.51) reads streams over gRPC only; tune and baselines load those over HTTP.
STREAMS = ("grpc-stream", "http-generate-stream")
FLAT_JSON = ("http-generate", "http-generate-stream")  # one request at a time, in JSON
_MAX_POINTS, _MAX_LENGTH = 256, 1_000_000
_ADDRESS = re.compile(r"(?:http://)?((?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5}))/?")
_RANGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::(x?)(\d+(?:\.\d+)?))?")
_STREAMS_GONE = "use grpc-stream here, or AIPerf or GuideLLM for HTTP"
_BETWEEN = re.compile(r"(\d{1,7})-(\d{1,7})")


def _converted(change: Callable[[Any], Any], form: str = SAID) -> Before:
    def changed(value: Any) -> Any:
        try:
            return change(value)
        except ValueError as error:
            raise refused(str(error), form) from None

    return Before(changed)


def range_of(text: str) -> list[float] | None:
    """The numbers of a range such as 1:16:5 or (doubling) 1:64:x2; None for another text. Raises
    ValueError.
    """
    if (found := _RANGE.fullmatch(text)) is None:
        return None
    as_number = float if "." in text else int
    begin, end, step = (as_number(found[at] or "1") for at in (1, 2, 4))
    is_factor, values, value = bool(found[3]), list[float](), begin
    if begin > end:
        raise ValueError("an empty range: its start is above its end")
    if step <= (1 if is_factor else 0) or (is_factor and begin == 0):
        wanted = "factor above 1" if is_factor else "step above 0"
        raise ValueError(f"a range that never ends; expected a {wanted}")
    while value <= end + 1e-9:
        if len(values) == _MAX_POINTS:
            raise ValueError(f"more than {_MAX_POINTS} points; expected fewer")
        values.append(value)
        value = value * step if is_factor else begin + len(values) * step
    return values


def _numbers(value: Any) -> Any:
    found = range_of(value) if isinstance(value, str) else None
    return found or _several(value)


def _endpoint(value: Any) -> Any:
    if value == "http-generate-stream":
        raise ValueError(f"{value} is no longer measured: {_STREAMS_GONE}")
    return value


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _tensors(value: Any) -> Any:
    for name, each in value.items() if isinstance(value, dict) else ():
        if any(isinstance(one, dict | list | None) for one in _several(each)):
            raise ValueError(
                f"{name}: expected a text, a number, true or false, or a list of these"
            )
    return value


def _existing(name: str, folder: Path) -> str:
    if not (folder / name).is_file():
        raise refused(f"there is no file {folder / name}", GOT)
    return str(folder / name)


_SOME = "a number, a list of numbers, or a range such as 1:16:5 or, doubling, 1:64:x2"
Counts = Annotated[
    list[Annotated[int, whole(1, 4096)]], listed(_SOME, _MAX_POINTS), _converted(_numbers, GOT)
]
Rates = Annotated[
    list[Annotated[float, number(above=0, most=100_000)]],
    listed(_SOME, _MAX_POINTS),
    _converted(_numbers, GOT),
]
Endpoint = Annotated[
    str, one_of("http-infer", "http-generate", "grpc-infer", "grpc-stream"), _converted(_endpoint)
]


@dataclass(frozen=True)
class Lengths:
    """Lengths within one load: each of ``choices`` equally often, or uniform within ``between``."""

    choices: tuple[int, ...] = ()
    between: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """Such as ``32``, ``8-64`` or ``8/16/32``."""
        if self.between:
            return f"{self.between[0]}-{self.between[1]}"
        return "/".join(map(str, self.choices))

    @property
    def longest(self) -> int:
        return max(self.between or self.choices)

    def draw(self, count: int, chance: random.Random) -> list[int]:
        """Choices come in shuffled blocks that hold each once: any stretch has about the mean of
        all.
        """
        if self.between:
            return [chance.randint(*self.between) for _ in range(count)]
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += chance.sample(self.choices, len(self.choices))
        return drawn[:count]


def lengths(value: Any) -> tuple[Lengths, ...]:
    """Returns one Lengths for each load; a list makes several loads. Raises ValueError."""
    return tuple(map(_length, value if isinstance(value, list | tuple) else [value]))


def _length(value: Any) -> Lengths:
    if isinstance(value, Lengths):
        return value
    between = _BETWEEN.fullmatch(value) if isinstance(value, str) else None
    mixed = value["mixed"] if isinstance(value, dict) and list(value) == ["mixed"] else [value]
    numbers = [int(between[1]), int(between[2])] if between else mixed
    is_right = isinstance(numbers, list) and numbers and all(type(each) is int for each in numbers)
    if not is_right or not all(1 <= each <= _MAX_LENGTH for each in numbers):
        raise ValueError(
            f"expected lengths from 1 to {_MAX_LENGTH}: a number, a range such as 8-64 to draw "
            "from, {mixed: [8, 64]}, or a list of these"
        )
    if between and numbers[0] > numbers[1]:
        raise ValueError(f"got '{value}', an empty range: its start is above its end")
    return Lengths(between=(numbers[0], numbers[1])) if between else Lengths(tuple(numbers))


def address(text: object) -> str:
    """Checks HOST:PORT of plain HTTP or gRPC; a password in it is not quoted. Raises ValueError."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if found and 1 <= int(found[2]) <= 65535:
        return found[1]
    shown = "an address with a user or a password" if "@" in str(text) else repr(text)
    raise ValueError(f"got {shown}, expected HOST:PORT of Triton, such as 127.0.0.1:8000")


@dataclass(frozen=True)
class Addresses:
    """One server's ports, each ``host:port``."""

    http: str
    grpc: str
    metrics: str

    @classmethod
    def of(cls, http: str, grpc: str | None, metrics: str | None) -> Addresses:
        """Derives the other ports from the HTTP port, numbered as Triton does."""
        host, _, port = http.rpartition(":")
        return cls(http, grpc or f"{host}:{int(port) + 1}", metrics or f"{host}:{int(port) + 2}")


Address = Annotated[str, _converted(address)]
Texts = Annotated[tuple[Lengths, ...], _converted(lengths)]


@dataclass(frozen=True)
class Measuring(Keys):
    """The length of a measurement, in perf_analyzer's terms."""

    gone: ClassVar[Mapping[str, str]] = {
        "timeout_s": "leave it out: a load's time follows from its windows",
        "window_requests": "use window_s; where no request ends in it, some are counted",
    }
    window_s: Annotated[float, number(0.05, 86_400, unit="seconds")] = 5.0
    stability_percent: Annotated[float, number(above=0, most=999)] = 10.0
    max_trials: Annotated[int, whole(3, 1000)] = 10
    warm_up_requests: Annotated[int, whole(0, 1_000_000)] = 8  # but at least one for each caller
    repeats: Annotated[int, whole(1, 100)] = 1

    def overridden_by(self, other: Measuring, node: Node | None) -> Measuring:
        """Overridden by the keys of ``other`` that ``node`` has."""
        given = node.value if node and isinstance(node.value, dict) else {}
        return replace(self, **{key.name: getattr(other, key.name) for key in given})


@dataclass(frozen=True)
class Inputs(Keys):
    """The inputs of requests: texts of these lengths, further inputs, or the user's file."""

    gone: ClassVar[Mapping[str, str]] = {
        "prompt_words": "use prompt_tokens: without a tokenizer.json words are counted",
        "tokenizer": "the model's own tokenizer.json in the repository counts, else words",
    }
    prompt_tokens: Texts = ()
    output_tokens: Texts = ()
    # The same each time.
    tensors: Annotated[AnyMap, _converted(_tensors)] = field(default_factory=dict)
    # In perf_analyzer's form; excludes the other fields.
    file: Annotated[str, Found(_existing)] | None = None

    def mistakes(self) -> Iterator[Mistake]:
        if self.file and (self.prompt_tokens or self.output_tokens or self.tensors):
            yield Mistake("has 'file' beside other keys; the file says all that is sent")


@dataclass(frozen=True)
class Scenario(Keys):
    """A set of loads: every combination of its lists."""

    gone: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("url", "grpc_url", "metrics_url"),
            "a sweep has one server, `url` at the top; give this scenario a file of its own",
        ),
        "request_distribution": "requests come at equal distances; AIPerf has other arrivals",
    }
    name: Annotated[
        str, Text("letters, digits, '_', '-' and '.', at most 64", r"[A-Za-z0-9._-]{1,64}")
    ]
    models: Annotated[list[str], listed("a model's name or a list of names"), Before(_several)]
    endpoints: Annotated[list[Endpoint], listed("some endpoints"), Before(_several)] = field(
        default_factory=list
    )
    concurrency: Counts = field(default_factory=list)
    request_rate: Rates = field(default_factory=list)
    batch_sizes: Counts = field(default_factory=lambda: [1])
    input: Inputs = field(default_factory=Inputs)
    measurement: Measuring = field(default_factory=Measuring)

    def mistakes(self) -> Iterator[Mistake]:
        flat = [one for one in self.endpoints if one in FLAT_JSON]
        if flat and max(self.batch_sizes) > 1:
            said = f"{flat[0]} carries one request at a time, expected 1"
            yield Mistake(said, place=("batch_sizes",))

    @property
    def levels(self) -> list[dict[str, Any]]:
        """Concurrencies, then request rates; one request at a time where neither is given."""
        found: list[dict[str, Any]] = [{"request_rate": float(each)} for each in self.request_rate]
        at_once = self.concurrency or ([] if found else [1])
        return [{"concurrency": each} for each in at_once] + found


@dataclass(frozen=True)
class Sweep(Keys):
    """All scenarios; ``file`` is the scenario file, empty where only models.yaml was read."""

    scenarios: Annotated[list[Scenario], listed("a list of scenarios", by=("name",))]
    title: Annotated[str, Text("a title")] = ""
    url: Address | None = None
    grpc_url: Address | None = None
    metrics_url: Address | None = None
    serve: Flag = False
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0
    measurement: Measuring = field(default_factory=Measuring)

    def mistakes(self) -> Iterator[Mistake]:
        for name in ("grpc_url", "metrics_url"):
            if getattr(self, name) and self.url is None:
                said = "needs 'url', the address of the same server's HTTP"
                yield Mistake(said, place=(name,))
        if self.url and self.serve:
            yield Mistake("with 'serve: true' there is no 'url'", place=("url",))

    @property
    def addresses(self) -> Addresses | None:
        return Addresses.of(self.url, self.grpc_url, self.metrics_url) if self.url else None


def read_sweep(file: Path) -> Sweep:
    """Raises SpecError with every mistake in the scenario file."""
    root, report = nodes.read(file, "scenarios:"), Report()
    found = read(Sweep, root, report, file.parent)
    if found is not None:
        scenarios = []
        for place, each in enumerate(found.scenarios):
            _, node = node_at(root, ("scenarios", place))
            own = found.measurement.overridden_by(each.measurement, node.get("measurement"))
            scenarios.append(replace(each, measurement=own))
        found = replace(found, scenarios=scenarios)
    if report.problems or found is None:
        raise SpecError(str(file), report.problems)
    return found


def usual_sweep(models: Sequence[str]) -> Sweep:
    """A few minutes for each model: its usual endpoints with 1, 4 and 16 requests at once."""
    measuring = Measuring(window_s=3.0, max_trials=6)
    scenarios = [
        Scenario(name, [name], concurrency=[1, 4, 16], measurement=measuring) for name in models
    ]
    return Sweep(scenarios, title=f"sweep of {', '.join(models)}"[:200])
