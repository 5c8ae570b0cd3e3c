"""What a sweep is to measure: a scenario's YAML, every key checked, all mistakes at once, each with
its place. Knows no server: what only a server can tell (is that model there?) is in requests.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from generator.errors import Problem, SpecError
from generator.yaml_file import reading
from generator.yaml_file.nodes import Key, Node
from generator.yaml_file.schema import did_you_mean, show

# perf_analyzer (2.51) reads streams over gRPC only; tune and baselines load those over HTTP.
STREAMS = ("grpc-stream", "http-generate-stream")
FLAT_JSON = ("http-generate", "http-generate-stream")  # one request at a time, in JSON
Endpoint = Literal["http-infer", "http-generate", "grpc-infer", "grpc-stream"]
MAX_LOADS = 10_000  # days, with the shortest windows that are of use
_MAX_POINTS, _MAX_LENGTH = 256, 1_000_000
_ADDRESS = re.compile(r"(?:http://)?((?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5}))/?")
_RANGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::(x?)(\d+(?:\.\d+)?))?")
_BETWEEN = re.compile(r"(\d{1,7})-(\d{1,7})")
_ONE_SERVER = "a sweep has one server, `url` at the top; give this scenario a file of its own"
_GONE = {
    **dict.fromkeys(("scenarios.url", "scenarios.grpc_url", "scenarios.metrics_url"), _ONE_SERVER),
    "input.prompt_words": "use prompt_tokens: without a tokenizer.json words are counted",
    "input.tokenizer": "the model's own tokenizer.json in the repository counts, else words",
    "measurement.timeout_s": "leave it out: a load's time follows from its windows",
    "http-generate-stream": "use grpc-stream here, or AIPerf or GuideLLM for HTTP",
}


def points(start: float, end: float, step: float, times: bool) -> tuple[float, ...]:
    """From ``start`` to ``end`` in steps, or ``times`` so much each. Raises ValueError."""
    if start > end:
        raise ValueError("an empty range: its start is above its end")
    if step <= (1 if times else 0):
        raise ValueError(
            f"a range that never ends; expected a {'factor above 1' if times else 'step above 0'}"
        )
    found = [start]
    while len(found) <= _MAX_POINTS:
        following = found[-1] * step if times else start + len(found) * step
        if following > end + 1e-9:
            return tuple(found)
        found.append(following)
    raise ValueError(f"more than {_MAX_POINTS} points; expected fewer")


def _numbers(value: Any) -> Any:
    """A number, a list, or a range such as 1:16:5 or, doubling, 1:64:x2, as a tuple."""
    if isinstance(value, list):
        if double := [one for at, one in enumerate(value) if one in value[:at]]:
            raise ValueError(f"got {double[0]} twice")
        return tuple(value)
    found = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return (value,)
    read = float if "." in found[0] else int
    try:
        return points(read(found[1]), read(found[2]), read(found[4] or "1"), bool(found[3]))
    except ValueError as error:
        raise ValueError(f"got '{value}', {error}") from None


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,)


Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=4096)], ...], BeforeValidator(_numbers), Field(min_length=1)
]
Rates = Annotated[
    tuple[Annotated[float, Field(gt=0, le=100_000)], ...],
    BeforeValidator(_numbers),
    Field(min_length=1),
]


@dataclass(frozen=True)
class Lengths:
    """Lengths of texts within one load: each of ``choices`` as often as the others, or any between
    the two of ``between``.
    """

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
        """``count`` lengths; choices come in shuffled blocks of one each, so that any stretch of
        them has about the mean of all.
        """
        if self.between:
            return [chance.randint(*self.between) for _ in range(count)]
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += chance.sample(self.choices, len(self.choices))
        return drawn[:count]


def lengths(value: Any) -> tuple[Lengths, ...]:
    """One Lengths for each load; a list is several loads. Raises ValueError."""
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
    """HOST:PORT of plain HTTP or gRPC; a password in it is not repeated. Raises ValueError."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if found and 1 <= int(found[2]) <= 65535:
        return found[1]
    shown = "an address with a user or a password" if "@" in str(text) else repr(text)
    raise ValueError(f"got {shown}, expected HOST:PORT of Triton, such as 127.0.0.1:8000")


@dataclass(frozen=True)
class Addresses:
    """Of one server, each ``host:port``."""

    http: str
    grpc: str
    metrics: str

    @classmethod
    def of(cls, http: str, grpc: str | None, metrics: str | None) -> Addresses:
        """Further ports follow the HTTP port, as Triton's own do."""
        host, _, port = http.rpartition(":")
        return cls(http, grpc or f"{host}:{int(port) + 1}", metrics or f"{host}:{int(port) + 2}")


class _Keys(BaseModel):
    """A map of YAML: keys that are not known are refused, values are of their own type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Measuring(_Keys):
    """How long a load is measured; the words are perf_analyzer's."""

    window_s: float = Field(default=5.0, ge=0.05, le=86_400)
    window_requests: int | None = Field(
        default=None, ge=1, le=1_000_000
    )  # windows of so many requests
    stability_percent: float = Field(default=10.0, gt=0, le=999)
    max_trials: int = Field(default=10, ge=3, le=1000)
    warm_up_requests: int = Field(
        default=8, ge=0, le=1_000_000
    )  # at least; and one for each caller
    repeats: int = Field(default=1, ge=1, le=100)

    @model_validator(mode="after")
    def _one_kind_of_window(self) -> Measuring:
        if {"window_s", "window_requests"} <= self.model_fields_set:
            raise ValueError("has both window_s and window_requests; expected one")
        return self

    def but(self, other: Measuring) -> Measuring:
        """With what ``other`` says itself; windows are of seconds or of requests."""
        given = other.model_dump(exclude_unset=True)
        return self.model_copy(
            update={"window_requests": None, **given} if "window_s" in given else given
        )


class Inputs(_Keys):
    """What requests carry: texts of these lengths, further inputs, or a file of the user's."""

    prompt_tokens: Annotated[tuple[Lengths, ...], BeforeValidator(lengths)] = ()
    output_tokens: Annotated[tuple[Lengths, ...], BeforeValidator(lengths)] = ()
    tensors: dict[str, Any] = {}  # the same every time
    file: str | None = None  # in perf_analyzer's own form, instead of all the others

    @field_validator("tensors")
    @classmethod
    def _values(cls, given: dict[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            if any(
                isinstance(x, dict | list | None)
                for x in (value if isinstance(value, list) else [value])
            ):
                raise ValueError(
                    f"{name}: expected a text, a number, true or false, or a list of these"
                )
        return given

    @field_validator("file")
    @classmethod
    def _exists(cls, given: str, info: ValidationInfo) -> str:
        path = Path((info.context or {})["folder"], given)
        if not path.is_file():
            raise ValueError(f"got '{given}': there is no file {path}")
        return str(path)

    @model_validator(mode="after")
    def _file_alone(self) -> Inputs:
        if self.file and len(self.model_fields_set) > 1:
            raise ValueError("has 'file' beside other keys; the file says all that is sent")
        return self


class Scenario(_Keys):
    """Every combination of its lists is a load."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    models: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
    endpoints: Annotated[tuple[Endpoint, ...], BeforeValidator(_listed), Field(min_length=1)] = ()
    concurrency: Counts = ()
    request_rate: Rates = ()
    request_distribution: Literal["constant", "poisson"] = "constant"
    batch_sizes: Counts = (1,)
    input: Inputs = Inputs()
    measurement: Measuring = Measuring()

    @model_validator(mode="after")
    def _batches(self) -> Scenario:
        flat = [one for one in self.endpoints if one in FLAT_JSON]
        if flat and max(self.batch_sizes) > 1:
            raise ValueError(f"{flat[0]} carries one request at a time, expected batch_sizes: 1")
        return self

    @property
    def levels(self) -> list[dict[str, Any]]:
        """Requests at once, then requests a second; one at once where neither is said."""
        found: list[dict[str, Any]] = [{"request_rate": float(each)} for each in self.request_rate]
        at_once = self.concurrency or (() if found else (1,))
        return [{"concurrency": each} for each in at_once] + found

    @property
    def num_loads(self) -> int:
        """How many it asks for, where its models have all its endpoints."""
        targets = len(self.models) * max(1, len(self.endpoints))
        texts = max(1, len(self.input.prompt_tokens)) * max(1, len(self.input.output_tokens))
        levels = len(self.batch_sizes) * len(self.levels)
        return targets * texts * levels * self.measurement.repeats


class Sweep(_Keys):
    """All of it; ``file`` is the scenario's, empty where models.yaml alone said what to measure."""

    title: Annotated[str, StringConstraints(max_length=200)] = ""
    url: Annotated[str | None, PlainValidator(address)] = None
    grpc_url: Annotated[str | None, PlainValidator(address)] = None
    metrics_url: Annotated[str | None, PlainValidator(address)] = None
    serve: bool = False
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    measurement: Measuring = Measuring()
    scenarios: Annotated[tuple[Scenario, ...], BeforeValidator(_listed), Field(min_length=1)]
    _file: str = PrivateAttr("")
    _root: Node | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one_server(self) -> Sweep:
        if self.url is None and (self.grpc_url or self.metrics_url):
            raise ValueError(
                "grpc_url and metrics_url need 'url', the address of the same server's HTTP"
            )
        if self.url and self.serve:
            raise ValueError("with 'serve: true' there is no 'url'")
        return self

    @field_validator("scenarios")
    @classmethod
    def _names_and_size(cls, given: tuple[Scenario, ...]) -> tuple[Scenario, ...]:
        names = [each.name for each in given]
        if double := [name for at, name in enumerate(names) if name in names[:at]]:
            raise ValueError(f"got the name '{double[0]}' twice; each needs its own")
        return given

    @property
    def addresses(self) -> Addresses | None:
        """The server's, where the file names one."""
        return Addresses.of(self.url, self.grpc_url, self.metrics_url) if self.url else None

    def at(self, *path: str | int) -> tuple[str, Node | None]:
        """The file, and the value at ``path`` or what of it is there."""
        return self._file, _place(self._root, path) if self._root else None


def read_sweep(file: Path) -> Sweep:
    """The sweep of a scenario file. Raises SpecError with every mistake in it."""
    root = reading.read(file, "scenarios:")
    try:
        read = Sweep.model_validate(plain(root), context={"folder": file.parent})
    except ValidationError as error:
        raise SpecError(str(file), [_problem(root, each) for each in error.errors()]) from None
    scenarios = [
        each.model_copy(update={"measurement": read.measurement.but(each.measurement)})
        for each in read.scenarios
    ]
    found = read.model_copy(update={"scenarios": tuple(scenarios)})
    found._file, found._root = str(file), root  # noqa: SLF001
    if (count := sum(each.num_loads for each in scenarios)) > MAX_LOADS:
        message = f"{count:,} loads, expected at most {MAX_LOADS:,}: shorten the lists"
        raise SpecError(str(file), [Problem(root.line, root.column, "scenarios", message)])
    return found


def usual_sweep(models: Sequence[str]) -> Sweep:
    """Where no scenario says it, a few minutes for each model: its usual endpoints with 1, 4 and 16
    requests at once.
    """
    measuring = Measuring(window_s=3.0, max_trials=6)
    scenarios = [
        Scenario(name=name[:64], models=(name,), concurrency=(1, 4, 16), measurement=measuring)
        for name in models
    ]
    return Sweep(title=f"sweep of {', '.join(models)}"[:200], scenarios=tuple(scenarios))


def plain(node: Node) -> Any:
    """A node of YAML as plain values."""
    if isinstance(node.value, dict):
        return {key.name: plain(child) for key, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, list) else node.value


def _place(root: Node, path: Sequence[str | int]) -> Node:
    """The value at ``path``; of what is not there, the nearest around it."""
    found: Node | None = root
    for step in path:
        value = root.value
        if isinstance(step, str):
            found = root.get(step)
        else:
            found = value[step] if isinstance(value, list) and step < len(value) else None
        if found is None:
            return root
        root = found
    return root


def _problem(root: Node, error: Any) -> Problem:
    """pydantic's error as ours: where it is, what was got, what is expected."""
    path, kind = error["loc"], error["type"]
    place: Node | Key = _place(root, path)
    said = str(error.get("ctx", {}).get("error", ""))
    if kind == "extra_forbidden":
        around = _place(root, path[:-1])
        keys = around.value if isinstance(around.value, dict) else ()
        place = next((key for key in keys if key.name == path[-1]), around)
        names = [each for each in path[:-1] if isinstance(each, str)]
        said = _GONE.get(f"{names[-1] if names else ''}.{path[-1]}", "")
        said = (
            f"is no key any more: {said}"
            if said
            else "unknown key"
            + did_you_mean(str(path[-1]), _KNOWN.get(names[-1] if names else "", ()), "keys")
        )
    elif kind == "too_short":
        said = "got an empty list, expected at least one"
    elif kind == "missing":
        said = f"missing key '{path[-1]}'"
    elif kind == "literal_error" and error["input"] in _GONE:
        said = f"{error['input']} is measured no more: {_GONE[error['input']]}"
    elif not said:
        said = f"got {show(place)}, {error['msg'].replace('Input should be', 'expected')}"  # type: ignore[arg-type]
    return Problem(place.line, place.column, place.where, said)


_KNOWN = {
    key: list(model.model_fields)
    for key, model in (
        ("", Sweep),
        ("scenarios", Scenario),
        ("input", Inputs),
        ("measurement", Measuring),
    )
}
