"""Reads a scenario's YAML: every key checked, all mistakes at once, each with its place.

Knows no server: what only a server can tell (is that model there?) is checked in targets.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_ADDRESS = re.compile(r"(?:http://)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})/?")
_EXPECTED = "HOST:PORT of Triton, such as 127.0.0.1:8000 (plain HTTP and gRPC)"
_SECRET = "an address with a user or a password"
_MAX_SECONDS = 86_400.0
MAX_LOADS = 10_000  # days, with the shortest windows that are of use


def read_sweep(path: Path) -> Sweep:
    """The sweep of a scenario file. Raises SpecError with every mistake in it."""
    report = Report()
    root = reading.read(path, "scenarios:")
    sweep = _Reader(path.parent, report).sweep(root, str(path))
    if report.problems:
        raise SpecError(str(path), report.problems)
    return sweep


def address(node: Node, report: Report) -> str | None:
    """A schema check: ``host:port``; a password in it is not repeated."""
    found = _parsed_address(node.value) if isinstance(node.value, str) else None
    if found is None:
        secret = isinstance(node.value, str) and "@" in node.value
        report.add(node, f"got {_SECRET if secret else schema.show(node)}, expected {_EXPECTED}")
    return found


def parse_addresses(http: str, grpc: str | None, metrics: str | None) -> Addresses:
    """The same of the command line. Raises UsageError."""
    for flag, text in (("--url", http), ("--grpc-url", grpc), ("--metrics-url", metrics)):
        if text is not None and _parsed_address(text) is None:
            shown = _SECRET if "@" in text else repr(text)
            raise UsageError(f"{flag}: got {shown}, expected {_EXPECTED}")
    parsed = [_parsed_address(text) if text else None for text in (http, grpc, metrics)]
    assert parsed[0] is not None
    return addresses(parsed[0], *parsed[1:])


def _parsed_address(text: str) -> str | None:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found[2]) <= 65535:
        return None
    return f"{found[1]}:{found[2]}"


def addresses(http: str, grpc: str | None = None, metrics: str | None = None) -> Addresses:
    """Of a server whose further ports follow its HTTP port, as Triton's own do."""
    host, _, port = http.rpartition(":")
    return Addresses(http, grpc or f"{host}:{int(port) + 1}", metrics or f"{host}:{int(port) + 2}")


def _one_or_more(inner: Check, expected: str) -> Check:
    """A value or a list of different ones, as a tuple."""
    several = schema.list_of(inner, expected, unique=True)

    def check(node: Node, report: Report) -> tuple[Any, ...] | None:
        if isinstance(node.value, list):
            found: tuple[Any, ...] | None = several(node, report)
            return found
        one = inner(node, report)
        return None if one is None else (one,)

    return check


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


def _as_it_is(node: Node, _: Report) -> Node:
    return node


_model_name = schema.text("the name of a model", r"[A-Za-z0-9._-]{1,255}")
_URLS = {"url": address, "grpc_url": address, "metrics_url": address}
_MEASUREMENT: Mapping[str, Check] = {
    "window_s": schema.number(0.05, _MAX_SECONDS, unit="seconds"),
    "window_requests": schema.integer(1, 1_000_000),
    "stability_percent": schema.number(exclusive_min=0, maximum=999),
    "max_trials": schema.integer(3, 1000),
    "warm_up_requests": schema.integer(0, 1_000_000),
    "repeats": schema.integer(1, 100),
    "timeout_s": schema.number(1, _MAX_SECONDS, unit="seconds"),
}
_INPUT: Mapping[str, Check] = {
    "prompt_tokens": ranges.lengths,
    "prompt_words": ranges.lengths,
    "output_tokens": ranges.lengths,
    "tensors": _tensors,
    "tokenizer": schema.text("the path of a tokenizer.json"),
    "file": schema.text("the path of a JSON file in perf_analyzer's own form"),
}
_SCENARIO: Mapping[str, Check] = {
    "name": schema.text(_NAME, r"[A-Za-z0-9._-]{1,64}"),
    "models": _one_or_more(_model_name, "a model's name or a list of names"),
    "endpoints": _one_or_more(schema.choice(*ENDPOINTS), f"some of {', '.join(ENDPOINTS)}"),
    "concurrency": ranges.counts(4096),
    "request_rate": ranges.rates(100_000),
    "request_distribution": schema.choice("constant", "poisson"),
    "batch_sizes": ranges.counts(4096),
    "input": _as_it_is,
    "measurement": _as_it_is,
    **_URLS,
}
_TOP: Mapping[str, Check] = {
    "title": schema.text("a title", may_be_empty=True),
    "serve": schema.boolean,
    "seed": schema.integer(0, schema.INT32_MAX),
    "measurement": _as_it_is,
    "scenarios": _as_it_is,
    **_URLS,
}


class _Reader:
    """Reads one file; ``base`` is the folder that relative paths start from."""

    def __init__(self, base: Path, report: Report) -> None:
        self.base, self.report = base, report

    def sweep(self, root: Node, file: str) -> Sweep:
        top = self._checked(root, _TOP, "a map with 'scenarios:'")
        entries = top.pop("scenarios", None)
        node = top.pop("measurement", None)
        measuring = self._measuring(node, Measuring()) if node else Measuring()
        url = self._addresses(root, top)
        if url and top.get("serve"):
            self.report.add(root.get("serve") or root, "with 'serve: true' there is no 'url'")
        scenarios = self._scenarios(root, entries, measuring)
        return Sweep(scenarios=scenarios, url=url, file=file, **top)

    def _scenarios(
        self, root: Node, entries: Node | None, measuring: Measuring
    ) -> tuple[Scenario, ...]:
        if entries is None:
            if isinstance(root.value, dict):
                self.report.add(root, "missing key 'scenarios': the list of what to measure")
            return ()
        if not isinstance(entries.value, list) or not entries.value:
            shown = "an empty list" if entries.value == [] else schema.show(entries)
            self.report.add(entries, f"got {shown}, expected a list of scenarios")
            return ()
        read = [self._scenario(node, measuring) for node in entries.value]
        self._refuse_same_names(entries.value)
        count = sum(scenario.num_loads for scenario in read if scenario)
        if count > MAX_LOADS:
            message = f"{count:,} loads, expected at most {MAX_LOADS:,}: shorten the lists"
            self.report.add(entries, message)
        return tuple(scenario for scenario in read if scenario)

    def _refuse_same_names(self, nodes: list[Node]) -> None:
        seen: set[object] = set()
        for name in (node.get("name") for node in nodes):
            if name is not None and isinstance(name.value, str):
                if name.value in seen:
                    self.report.add(name, f"got {schema.show(name)} twice; each needs its own")
                seen.add(name.value)

    def _scenario(self, node: Node, measuring: Measuring) -> Scenario | None:
        before = len(self.report.problems)
        values = self._checked(node, _SCENARIO, "a map with name and models")
        for required in ("name", "models"):
            if isinstance(node.value, dict) and node.get(required) is None:
                self.report.add(node, f"missing key '{required}'")
        own, inputs = values.pop("measurement", None), values.pop("input", None)
        values["measurement"] = self._measuring(own, measuring) if own else measuring
        values["inputs"] = self._inputs(inputs) if inputs else Inputs()
        values["url"] = self._addresses(node, values)
        self._refuse_batches(node, values)
        if len(self.report.problems) > before:
            return None
        places = {key.name: child for key, child in node.value.items()}  # type: ignore[union-attr]
        if not (values.get("concurrency") or values.get("request_rate")):
            values["concurrency"] = (1,)
        return Scenario(places=places, **values)

    def _refuse_batches(self, node: Node, values: Mapping[str, Any]) -> None:
        flat = [one for one in values.get("endpoints") or () if one in FLAT_JSON]
        place = node.get("batch_sizes")
        if flat and place is not None and max(values.get("batch_sizes") or (1,)) > 1:
            self.report.add(place, f"{flat[0]} carries one request at a time, expected 1")

    def _measuring(self, node: Node, base: Measuring) -> Measuring:
        given = self._checked(node, _MEASUREMENT, "a map such as {window_s: 5, repeats: 3}")
        if "window_s" in given and "window_requests" in given:
            self.report.add(node, "has both window_s and window_requests; expected one")
        kept = {**vars(base)}
        if "window_s" in given:
            kept["window_requests"] = None
        return Measuring(**{**kept, **given})

    def _inputs(self, node: Node) -> Inputs:
        given = self._checked(node, _INPUT, "a map such as {prompt_tokens: 32, output_tokens: 64}")
        if "prompt_tokens" in given and "prompt_words" in given:
            self.report.add(node, "has both prompt_tokens and prompt_words; expected one")
        if "file" in given and len(given) > 1:
            self.report.add(node, "has 'file' beside other keys; the file says all that is sent")
        for key in ("file", "tokenizer"):
            if key in given:
                given[key] = self._existing(node.get(key) or node, given[key])
        names = {"prompt_tokens": "prompt", "prompt_words": "words", "output_tokens": "output"}
        return Inputs(**{names.get(key, key): value for key, value in given.items()})

    def _existing(self, node: Node, written: str) -> str:
        path = self.base / written
        if not path.is_file():
            self.report.add(node, f"got {schema.show(node)}: there is no file {path}")
        return str(path)

    def _addresses(self, node: Node, values: dict[str, Any]) -> Addresses | None:
        """Takes the three URLs out of ``values``."""
        http, grpc, metrics = (values.pop(key, None) for key in _URLS)
        for key in ("grpc_url", "metrics_url"):
            place = node.get(key)
            if place is not None and node.get("url") is None:
                self.report.add(place, "needs 'url', the address of the same server's HTTP")
        return addresses(http, grpc, metrics) if http else None

    def _checked(self, node: Node, checks: Mapping[str, Check], expected: str) -> dict[str, Any]:
        """The values that were given and are right."""
        entries = schema.keys_of(node, checks, self.report, expected)
        found = {name: checks[name](child, self.report) for name, child in entries.items()}
        return {name: value for name, value in found.items() if value is not None}
