"""From a scenario's names to what is measured: which model of Triton's answers which endpoint, and
whether it can. Every mistake is reported at once, where the scenario makes it.

Asks the server where there is one, else reads the generated repository (``--dry-run``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.errors import GeneratorError, Problem
from generator.render import model_config
from generator.spec.triton_models import ENGINE_SUFFIX
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import nearest
from perf.sweep.scenario.model import STREAMS, Scenario

ConfigOf = Callable[[str], Any]
"""A model's ModelConfig, None where there is no such model."""


@dataclass(frozen=True)
class Target:
    """``name`` is the user's, ``model`` Triton's that answers this endpoint."""

    name: str
    endpoint: str
    model: str
    config: Any  # a ModelConfig

    @property
    def inputs(self) -> dict[str, Any]:
        """The declared inputs by name."""
        return {tensor.name: tensor for tensor in self.config.input}

    @property
    def labels(self) -> tuple[str, ...]:
        """The names under which the server counts its work."""
        return tuple(dict.fromkeys((self.name.removesuffix(ENGINE_SUFFIX), self.name, self.model)))


class Targets:
    """Finds targets, and keeps what is wrong with the scenarios."""

    def __init__(self, config_of: ConfigOf, names: Callable[[], Iterable[str]]) -> None:
        self._config_of, self._names = config_of, names
        self._configs: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def of(self, scenario: Scenario) -> list[Target]:
        """Every model with every endpoint of the scenario that it has."""
        found = []
        for position, name in enumerate(scenario.models):
            if self._config(name) is None and self._config(name + ENGINE_SUFFIX) is None:
                place = _item(scenario.place("models"), position)
                self.add(place, scenario, self._missing(name))
                continue
            for endpoint in scenario.endpoints or self._usual(name):
                target = self._target(scenario, name, endpoint)
                found += [target] if target else []
        return found

    def add(self, place: Node | None, scenario: Scenario, message: str) -> None:
        """Notes a problem; ``place`` is None where models.yaml alone said what to measure."""
        where = place.where if place else scenario.name
        line, column = (place.line, place.column) if place else (0, 0)
        self.problems.append(Problem(line, column, where, message))

    def _usual(self, name: str) -> Sequence[str]:
        """Where a scenario says nothing: what answers at once, and streams where there are."""
        if not _answers_at_once(self._config(name)):
            return ("grpc-stream",)
        streams = self._config(name + ENGINE_SUFFIX) is not None
        return ("http-infer", "grpc-stream") if streams else ("http-infer",)

    def _target(self, scenario: Scenario, name: str, endpoint: str) -> Target | None:
        streams = endpoint in STREAMS
        candidates = (name + ENGINE_SUFFIX, name) if streams else (name,)
        model = next((one for one in candidates if self._config(one) is not None), name)
        config = self._config(model)
        if _answers_at_once(config) is streams:
            told = "answers only streams: grpc-stream"
            if streams:
                told = "does not stream; expected http-infer, http-generate or grpc-infer"
            place = _named(scenario.place("endpoints"), endpoint)
            self.add(place, scenario, f"model '{name}' {told}")
            return None
        most = max(config.max_batch_size, 1)
        for position, size in enumerate(scenario.batch_sizes):
            if size > most:
                item = _item(scenario.place("batch_sizes"), position)
                self.add(item, scenario, f"model '{model}' takes at most {most} in a batch")
        return Target(name, endpoint, model, config)

    def _config(self, name: str) -> Any:
        if name not in self._configs:
            self._configs[name] = self._config_of(name)
        return self._configs[name]

    def _missing(self, name: str) -> str:
        known = sorted(self._names())
        close = nearest(name, known)
        meant = f"; did you mean '{close}'?" if close else ""
        return f"there is no model '{name}'; there are: {', '.join(known) or 'none'}{meant}"


def _item(node: Node | None, position: int) -> Node | None:
    """An item of a list, or what stands in the list's place."""
    if node is not None and isinstance(node.value, list) and position < len(node.value):
        return node.value[position]
    return node


def _named(node: Node | None, value: str) -> Node | None:
    items = node.value if node is not None and isinstance(node.value, list) else []
    return next((item for item in items if item.value == value), node)


def _answers_at_once(config: Any) -> bool:
    """Whether there is such a model, and it does not stream."""
    return config is not None and not config.model_transaction_policy.decoupled


def of_json(values: dict[str, Any] | None) -> Any:
    """Triton's JSON of a ModelConfig as the message, None for None."""
    if values is None:
        return None
    from google.protobuf import json_format
    from tritonclient.grpc import model_config_pb2

    message = model_config_pb2.ModelConfig()
    return json_format.ParseDict(values, message, ignore_unknown_fields=True)


def of_repository(repository: Path) -> ConfigOf:
    """Reads configs that were generated."""

    def config_of(name: str) -> Any:
        try:
            text = (repository / name / "config.pbtxt").read_text(encoding="utf-8")
            return model_config.parse(text)
        except (OSError, GeneratorError):
            return None

    return config_of
