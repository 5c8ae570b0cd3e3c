"""One entry of models.yaml as the rules between its keys see it: each value is right by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from generator.spec.task_folders import Task
from generator.yaml_file.nodes import Node


class Entry(NamedTuple):
    """Keys with the defaults merged in; a refused value is None, refused ``options`` are empty."""

    given: Mapping[str, Node]
    values: Mapping[str, Any]
    task: Task | None
    options: Mapping[str, Any]
    own_options: Node | None  # without the defaults'
    tasks: Mapping[str, Task]
