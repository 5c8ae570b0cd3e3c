"""A model of one .gguf file: ``model: folder/file.gguf``, or ``gguf_file:`` of a model elsewhere.

Knows the key and the rules between it and the model's others; transformers tells at load what it
can't read of a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from generator.models_yaml.features.entry import Entry
from generator.spec.model_source import Source
from generator.spec.runtime_rules import is_safe_path
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.regular_file import check_regular
from generator.yaml_file.schema import Report

SUFFIX = ".gguf"
_TASK = "text-generation"


def check(node: Node, report: Report) -> str | None:
    """A file's path in the model's repository."""
    expected = f"a file of the model's repository that ends in {SUFFIX}"
    name: str | None = schema.text(expected, rf".+\{SUFFIX}")(node, report)
    if name is not None and not is_safe_path(name):
        report.expected(node, expected)
    return name


def is_file(value: object) -> bool:
    """Whether ``model:`` names a file, not a folder or a repository."""
    return isinstance(value, str) and value.endswith(SUFFIX) and "://" not in value


def find_file(node: Node, value: str, base: Path, report: Report) -> Source | None:
    """The source of a .gguf file on this machine; None where ``value`` is another's, or one that
    can't be served, which is reported.
    """
    path = os.path.expanduser(value)  # noqa: PTH111, as of folders: it never raises
    place = Path(os.path.abspath(base / path))  # noqa: PTH100, links stay as written
    try:
        check_regular(place)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        report.add(node, f"got {schema.show(node)}, a local file, but {place} can't be read: {why}")
    else:
        return Source(path, place)
    return None


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Each rule that a model of a .gguf file breaks: where, and what is wrong."""
    given, values, task = entry.given, entry.values, entry.task
    node, model = given.get("gguf_file"), given.get("model")
    names_file = is_file(values.get("model"))
    place = model if names_file else node
    if place is None or not (names_file or values.get("gguf_file")):
        return
    if task is not None and task.tag != _TASK:
        yield place, f"a {SUFFIX} file is served as {_TASK}, and this is {task.tag}"
    elif entry.options.get("engine") == "vllm" or values.get("layout") == "vllm-backend":
        yield place, f"vLLM reads no {SUFFIX} file: leave engine and layout out"
    elif values.get("quantization") is not None:
        yield (
            given["quantization"],
            f"expected null: the weights of a {SUFFIX} file are as they are",
        )
