"""``hf-triton tasks``: lists the tasks and their ``options:``."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator

from generator.spec.task_folders import Option, Task, find_tasks


def run(_args: argparse.Namespace) -> int:
    print("\n\n".join("\n".join(_as_text(task)) for task in find_tasks().values()))
    return 0


def _as_text(task: Task) -> Iterator[str]:
    yield f"{task.tag} (streams unless 'streaming: false')" if task.streams else task.tag
    for option in task.options.values():
        default = "null" if option.default is None else _word(option.default)
        yield f"  {option.name}: {describe_kind(option)} (default {default})"
        yield from textwrap.wrap(
            option.help, 92, initial_indent="      ", subsequent_indent=" " * 6
        )


def describe_kind(option: Option) -> str:
    """Describes a type: ``whole number, 1 to 1024, tokens``."""
    if option.choices:
        return " | ".join(_word(choice) for choice in option.choices)
    names = {
        bool: "true | false",
        int: "whole number",
        float: "number",
        str: "text",
        dict: "map",
    }
    engines = f"engine {' or '.join(option.engines)}" if option.engines else None
    return ", ".join(filter(None, (names[option.kind], _range(option), option.unit, engines)))


def _range(option: Option) -> str:
    if option.exclusive_min is not None:
        upper = "" if option.maximum is None else f" and at most {option.maximum}"
        return f"above {option.exclusive_min}{upper}"
    if option.minimum is not None and option.maximum is not None:
        return f"{option.minimum} to {option.maximum}"
    if option.minimum is not None:
        return f"at least {option.minimum}"
    return "" if option.maximum is None else f"at most {option.maximum}"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
