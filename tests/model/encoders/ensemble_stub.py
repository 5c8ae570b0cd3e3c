"""Plays Triton's part for an ensemble: takes each request through the steps, as its config says.

Follows what 24.10 was seen to do: parameters go to every step, an optional input that a request
lacks is left out, the last step is asked for all outputs, and an error ends the request with
``in ensemble '<name>', `` before its text.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stub_server import StubServer
from wire import Array, Reply, Request

from generator.render import model_config
from hf_triton.cli.verbs.generate import generate


class StubEnsemble:
    """An ensemble whose steps are loaded."""

    def __init__(self, config: Any, steps: dict[str, StubServer]) -> None:
        self._config = config
        self.steps = steps

    def infer(self, request: Request) -> Reply:
        tensors = dict(request.tensors)
        for step in self._config.ensemble_scheduling.step:
            inputs = {
                name: tensors[given] for name, given in step.input_map.items() if given in tensors
            }
            reply = self.steps[step.model_name].infer(Request(inputs, request.parameters))
            if not reply.ok:
                return Reply(reply.status, f"in ensemble '{self._config.name}', {reply.error}")
            tensors |= {step.output_map[name]: array for name, array in reply.outputs.items()}
        names = request.outputs or [output.name for output in self._config.output]
        return Reply(200, outputs={name: tensors[name] for name in names if name in tensors})


def generated(folder: Path, task: str, model: Path, **keys: Any) -> Path:
    """The repository with ``model`` as ``single`` and, an ensemble, as ``parts``."""
    entry = {"task": task, "model": str(model), "dtype": "float32", **keys}
    single = {key: value for key, value in entry.items() if key != "ensemble"}
    entries = [{**single, "name": "single"}, {**entry, "name": "parts", "layout": "ensemble"}]
    config, repository = folder / "models.yaml", folder / "repository"
    config.write_text(json.dumps({"models": entries}))  # JSON is YAML
    generate(config, repository)
    return repository


@contextlib.contextmanager
def both_layouts(
    folder: Path, task: str, model: Path, *, options: dict[str, Any] | None = None, **keys: Any
) -> Iterator[tuple[StubServer, StubEnsemble]]:
    """One model as a single one and as an ensemble; ``keys`` are models.yaml's."""
    repository = generated(folder, task, model, options=options or {}, **keys)
    outer: Any = model_config.parse((repository / "parts" / "config.pbtxt").read_text())
    with contextlib.ExitStack() as stack:
        names = ["single", *(step.model_name for step in outer.ensemble_scheduling.step)]
        servers = {name: stack.enter_context(StubServer(repository / name)) for name in names}
        yield servers.pop("single"), StubEnsemble(outer, servers)


def close(one: Array, other: Array) -> bool:
    """Equal texts, or numbers within 1e-4."""
    if one.dtype == object:
        return bool((one == other).all()) or _same_json(one, other)
    return one.shape == other.shape and np.allclose(one, other, atol=1e-4, rtol=0)


def _same_json(one: Array, other: Array) -> bool:
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    return one.shape == other.shape and all(_same(json.loads(a), json.loads(b)) for a, b in pairs)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float):
        return bool(abs(one - other) < 1e-4)
    return bool(one == other)
