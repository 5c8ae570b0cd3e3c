"""Reads a scenario's YAML: every key checked, all mistakes at once, each with its place.

Knows no server: what only a server can tell (is that model there?) is checked in targets.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from generator.errors import SpecError, UsageError
from generator.yaml_file import reading, schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Check, Report
from perf.sweep.scenario import ranges
from perf.sweep.scenario.model import (
    ENDPOINTS,
    FLAT_JSON,
    Addresses,
    Inputs,
    Measuring,
    Scenario,
    Sweep,
)

_NAME = "letters, digits, '_', '-' and '.', at most 64"
_ADDRESS = re.compile(r"(?:http://)?((?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5}))/?")
_EXPECTED = "HOST:PORT of Triton, such as 127.0.0.1:8000 (plain HTTP and gRPC)"
_SECRET = "an address with a user or a password"
_MAX_SECONDS = 86_400.0
MAX_LOADS = 10_000  # days, with the shortest windows that are of use


def read_sweep(path: Path) -> Sweep:
    """The sweep of a scenario file. Raises SpecError with every mistake in it."""
    report, root = Report(), reading.read(path, "scenarios:")
    top = schema.mapping(_keys_of_sweep(path.parent), "a map with 'scenarios:'")(root, report)
    _take_addresses(root, report, top)
    if isinstance(root.value, dict) and root.get("scenarios") is None:
        report.add(root, "missing key 'scenarios': the list of what to measure")
    if top["url"] and top.get("serve"):
        report.add(root.get("serve") or root, "with 'serve: true' there is no 'url'")
    usual = _measuring(top.pop("measurement", {}), Measuring())
    scenarios = tuple(
        Scenario(**{**one, "measurement": _measuring(one["measurement"], usual)})
        for one in top.pop("scenarios", ())
    )
    count = sum(scenario.num_loads for scenario in scenarios)
    if count > MAX_LOADS:
        message = f"{count:,} loads, expected at most {MAX_LOADS:,}: shorten the lists"
        report.add(root.get("scenarios") or root, message)
    if report.problems:
        raise SpecError(str(path), report.problems)
    return Sweep(scenarios=scenarios, file=str(path), **top)


def _measuring(given: Mapping[str, Any], usual: Measuring) -> Measuring:
    """``usual`` but for what is given; windows are of seconds or of requests."""
    windows = {"window_requests": None} if "window_s" in given else {}
    return replace(usual, **{**windows, **given})


def _address(node: Node, report: Report) -> str | None:
    """A schema check: ``host:port``; a password in it is not repeated."""
    found = _parsed_address(node.value)
    if found is None:
        secret = isinstance(node.value, str) and "@" in node.value
        report.add(node, f"got {_SECRET if secret else schema.show(node)}, expected {_EXPECTED}")
    return found


def parse_addresses(http: str, grpc: str | None, metrics: str | None) -> Addresses:
    """Parses addresses of the command line. Raises UsageError."""
    for flag, text in (("--url", http), ("--grpc-url", grpc), ("--metrics-url", metrics)):
        if text is not None and _parsed_address(text) is None:
            shown = _SECRET if "@" in text else repr(text)
            raise UsageError(f"{flag}: got {shown}, expected {_EXPECTED}")
    return _addresses(*(_parsed_address(text) for text in (http, grpc, metrics)))


def _parsed_address(text: object) -> str | None:
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return found[1] if found and 1 <= int(found[2]) <= 65535 else None


def _addresses(http: str | None, grpc: str | None, metrics: str | None) -> Addresses:
    """The addresses of a server whose further ports follow its HTTP port, as Triton's own do."""
    assert http is not None
    host, _, port = http.rpartition(":")
    return Addresses(http, grpc or f"{host}:{int(port) + 1}", metrics or f"{host}:{int(port) + 2}")


def _take_addresses(node: Node, report: Report, values: dict[str, Any]) -> None:
    """Puts Addresses, or None, in place of the three URLs."""
    http, grpc, metrics = (values.pop(key, None) for key in _URLS)
    for key in ("grpc_url", "metrics_url"):
        place = node.get(key)
        if place is not None and node.get("url") is None:
            report.add(place, "needs 'url', the address of the same server's HTTP")
    values["url"] = _addresses(http, grpc, metrics) if http else None


def _tensor(node: Node, report: Report) -> object:
    items = node.value if isinstance(node.value, list) else [node]
    if not items or any(isinstance(item.value, dict | list | None) for item in items):
        report.expected(node, "a text, a number, true or false, or a list of these")
        return None
    values = [item.value for item in items]
    return values if isinstance(node.value, list) else values[0]


def _tensors(node: Node, report: Report) -> dict[str, object] | None:
    if not isinstance(node.value, dict):
        report.expected(node, "a map from the names of inputs to values")
        return None
    return {key.name: _tensor(child, report) for key, child in node.value.items()}


def _one_of(check: Check, first: str, second: str) -> Check:
    """What ``check`` returns, a map that has not both keys."""

    def checked(node: Node, report: Report) -> dict[str, Any]:
        given: dict[str, Any] = check(node, report)
        if first in given and second in given:
            report.add(node, f"has both {first} and {second}; expected one")
        return given

    return checked


def _file(expected: str, base: Path) -> Check:
    """The path of a file, from ``base``."""
    is_text = schema.text(expected)

    def check(node: Node, report: Report) -> str | None:
        written = is_text(node, report)
        if written is None:
            return None
        path = base / written
        if not path.is_file():
            report.add(node, f"got {schema.show(node)}: there is no file {path}")
        return str(path)

    return check


_URLS: Mapping[str, Check] = {"url": _address, "grpc_url": _address, "metrics_url": _address}
_MEASUREMENT = _one_of(
    schema.mapping(
        {
            "window_s": schema.number(0.05, _MAX_SECONDS, unit="seconds"),
            "window_requests": schema.integer(1, 1_000_000),
            "stability_percent": schema.number(exclusive_min=0, maximum=999),
            "max_trials": schema.integer(3, 1000),
            "warm_up_requests": schema.integer(0, 1_000_000),
            "repeats": schema.integer(1, 100),
            "timeout_s": schema.number(1, _MAX_SECONDS, unit="seconds"),
        },
        "a map such as {window_s: 5, repeats: 3}",
    ),
    "window_s",
    "window_requests",
)


def _keys_of_sweep(base: Path) -> Mapping[str, Check]:
    return {
        "title": schema.text("a title", may_be_empty=True),
        "serve": schema.boolean,
        "seed": schema.integer(0, schema.INT32_MAX),
        "measurement": _MEASUREMENT,
        "scenarios": _scenarios(base),
        **_URLS,
    }


def _keys_of_scenario(base: Path) -> Mapping[str, Check]:
    model = schema.text("the name of a model", r"[A-Za-z0-9._-]{1,255}")
    return {
        "name": schema.text(_NAME, r"[A-Za-z0-9._-]{1,64}"),
        "models": ranges.one_or_more(model, "a model's name or a list of names"),
        "endpoints": ranges.one_or_more(_endpoint, f"some of {', '.join(ENDPOINTS)}"),
        "concurrency": ranges.counts(4096),
        "request_rate": ranges.rates(100_000),
        "request_distribution": schema.choice("constant", "poisson"),
        "batch_sizes": ranges.counts(4096),
        "input": _inputs(base),
        "measurement": _MEASUREMENT,
        **_URLS,
    }


def _endpoint(node: Node, report: Report) -> str | None:
    if node.value == "http-generate-stream":
        message = "is measured no more: use grpc-stream here, or AIPerf or GuideLLM for HTTP"
        report.add(node, f"{node.value} {message}")
        return None
    found: str | None = schema.choice(*ENDPOINTS)(node, report)
    return found


def _inputs(base: Path) -> Check:
    """A check of what requests carry; paths start from ``base``."""
    keys: Mapping[str, Check] = {
        "prompt_tokens": ranges.lengths,
        "prompt_words": ranges.lengths,
        "output_tokens": ranges.lengths,
        "tensors": _tensors,
        "tokenizer": _file("the path of a tokenizer.json", base),
        "file": _file("the path of a JSON file in perf_analyzer's own form", base),
    }
    names = {"prompt_tokens": "prompt", "prompt_words": "words", "output_tokens": "output"}
    expected = "a map such as {prompt_tokens: 32, output_tokens: 64}"
    checked = _one_of(schema.mapping(keys, expected), "prompt_tokens", "prompt_words")

    def check(node: Node, report: Report) -> Inputs:
        given = checked(node, report)
        if "file" in given and len(given) > 1:
            report.add(node, "has 'file' beside other keys; the file says all that is sent")
        return Inputs(**{names.get(key, key): value for key, value in given.items()})

    return check


def _scenarios(base: Path) -> Check:
    """A check of the list: the fields of each Scenario that is right; its measurement is a map of
    what differs from the usual.
    """
    checked = schema.mapping(_keys_of_scenario(base), "a map with name and models")

    def scenario(node: Node, report: Report) -> dict[str, Any] | None:
        before = len(report.problems)
        values = checked(node, report)
        for required in ("name", "models"):
            if isinstance(node.value, dict) and node.get(required) is None:
                report.add(node, f"missing key '{required}'")
        _take_addresses(node, report, values)
        _refuse_batches(node, report, values)
        if not (values.get("concurrency") or values.get("request_rate")):
            values["concurrency"] = (1,)
        inputs, measuring = values.pop("input", Inputs()), values.pop("measurement", {})
        found = {**values, "inputs": inputs, "measurement": measuring, "node": node}
        return found if len(report.problems) == before else None

    several = schema.list_of(scenario, "a list of scenarios")

    def check(node: Node, report: Report) -> Sequence[dict[str, Any]] | None:
        found: Sequence[dict[str, Any]] | None = several(node, report)
        nodes, seen = node.value if isinstance(node.value, list) else [], set[object]()
        for name in (each.get("name") for each in nodes):
            if name is not None and isinstance(name.value, str):
                if name.value in seen:
                    report.add(name, f"got {schema.show(name)} twice; each needs its own")
                seen.add(name.value)
        return found

    return check


def _refuse_batches(node: Node, report: Report, values: Mapping[str, Any]) -> None:
    flat = [one for one in values.get("endpoints") or () if one in FLAT_JSON]
    place = node.get("batch_sizes")
    if flat and place is not None and max(values.get("batch_sizes") or (1,)) > 1:
        report.add(place, f"{flat[0]} carries one request at a time, expected 1")
