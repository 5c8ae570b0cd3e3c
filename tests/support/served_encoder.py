"""Encoder models on the stub server: generated from models.yaml like any other, in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import StubServer
from wire import Array, Reply, Request, strings

from hf_triton.cli.verbs.generate import generate
from hf_triton.runtime.request.tensors import RequestFields

_TYPES = {bool: np.bool_, int: np.int32, float: np.float32}


@contextlib.contextmanager
def served(
    folder: Path, task: str, model: Path, *, options: dict[str, Any] | None = None, **keys: Any
) -> Iterator[StubServer]:
    """Serves ``model`` as a float32 model of ``task``; ``keys`` are models.yaml's."""
    entry = {"name": "served", "task": task, "model": str(model), "dtype": "float32", **keys}
    # JSON is YAML.
    config = folder / f"{task}.yaml"
    config.write_text(json.dumps({"models": [{**entry, "options": options or {}}]}))
    repository = folder / f"repository-{task}"
    generate(config, repository, force=True)
    with StubServer(repository / "served") as server:
        yield server


def request(outputs: tuple[str, ...] = (), **tensors: Any) -> Request:
    """A request of max_batch_size 0: each value a tensor ``[1]``, or a list of its elements."""
    return Request({name: tensor(value) for name, value in tensors.items()}, outputs=outputs)


def rows(outputs: tuple[str, ...] = (), **tensors: list[Any]) -> Request:
    """A request of max_batch_size above 0: each value is a list of rows."""
    arrays = {name: np.stack([tensor(row) for row in values]) for name, values in tensors.items()}
    return Request(arrays, outputs=outputs)


def tensor(value: Any) -> Array:
    """(1,) of one value, (n,) of a list, in the contract's data type for it."""
    values = value if isinstance(value, list) else [value]
    if all(isinstance(one, str | bytes) for one in values):
        return strings(*values)
    return np.array(values, dtype=_TYPES[type(values[0])])


def fields(**tensors: Any) -> RequestFields:
    """The same as a task reads it, without a server."""
    arrays = {name: tensor(value) for name, value in tensors.items()}
    return RequestFields(arrays, {}, batched=False)


def refused(server: StubServer, *parts: str, **tensors: Any) -> None:
    """Asserts that a request of these tensors gets a 400 with all ``parts`` in its text."""
    reply = server.infer(request(**tensors))
    assert reply.status == 400, reply
    assert all(part in reply.error for part in parts), reply.error


def pipeline(task: str, model: Path) -> Any:
    """transformers' own, whose answers are expected."""
    import transformers

    make: Any = transformers.pipeline
    return make(task, model=str(model), device="cpu")


def written(reply: Reply) -> Any:
    """The parsed JSON of a good answer's one output."""
    assert reply.ok, reply.error
    (text,) = reply.texts("output")
    return json.loads(text)


def assert_same(got: Any, expected: Any) -> None:
    """Scored dictionaries, or lists of them, are the pipeline's."""
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, list):
            assert_same(one, other)
            continue
        assert list(one) == list(other)
        assert one.pop("score") == pytest.approx(float(other["score"]), abs=1e-4)
        assert one == {name: other[name] for name in one}


def outputs_of(reply: Reply) -> dict[str, Array]:
    """The outputs of a good answer."""
    assert reply.ok, reply.error
    return dict(reply.outputs)
