"""The search space of a model: its tunable keys of models.yaml (``options.max_num_seqs``), their
current values, and the values to try, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generator.errors import SpecError, UsageError
from generator.spec.model_spec import BatchSize, Instances, Microseconds, ModelSpec
from generator.spec.task_folders import Task
from generator.yaml_file import nodes
from generator.yaml_file.keys import plain, problem
from generator.yaml_file.nodes import did_you_mean
from perf.report.schema import Value
from perf.sweep.scenario import range_of

Settings = Mapping[str, Value]
BATCH, DELAY, INSTANCES = (
    "max_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "instance_group.count",
)
OPTIONS = "options."
_SYNTAX = "expected KEY=VALUE,VALUE,... or KEY=LOW:HIGH (doubling) or KEY=LOW:HIGH:STEP"
# By option: what may make a model faster and leaves its answers alone. Of _BY_CALLERS nothing is
# tried beyond the first value that serves all callers at once: more is the same.
_WORTH_TRYING: Mapping[str, tuple[int, ...]] = {
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256, 512),
    "max_num_batched_tokens": (128, 256, 512, 1024, 2048, 4096),
    "batch_size": (1, 2, 4, 8, 16, 32),
    "num_tokenizer_threads": (2, 4),
    "num_reader_threads": (1, 2, 4),
}
_BATCH_SIZES, _DELAYS = (1, 2, 4, 8, 16, 32, 64, 128), (0, 100, 500, 1000, 5000)
_BY_CALLERS = ("max_num_seqs", "batch_size")


@dataclass(frozen=True)
class Space:
    """The values to try of each key, and what models.yaml says now."""

    dimensions: Mapping[str, tuple[Value, ...]]
    current: Settings


def make_space(
    spec: ModelSpec,
    task: Task,
    searched: Iterable[str],
    worth_trying: Mapping[str, Sequence[Value]],
) -> Space:
    """The space that ``--search`` names, else ``worth_trying``. Raises UsageError."""
    keys = {short(key): key for key in (BATCH, DELAY)}
    if _has_one_group(spec):
        keys[INSTANCES] = INSTANCES
    for name, option in task.options.items():
        if option.choices or option.kind in (int, float, bool):  # no free text
            keys[name] = f"{OPTIONS}{name}"
    kinds = {INSTANCES: Instances, DELAY: Microseconds | None, BATCH: BatchSize}
    wanted: dict[str, list[Value]] = {}
    for argument in searched:
        name, equals, text = (part.strip() for part in argument.partition("="))
        if not equals or not text:
            raise UsageError(f"--search {argument}: {_SYNTAX}")
        if name == INSTANCES and name not in keys:
            several = "has a device_map or several groups, so its instances are not one number"
            raise UsageError(f"--search {name}: model '{spec.name}' {several}")
        if name not in keys and name not in keys.values():
            hint = did_you_mean(name, keys, "keys")
            raise UsageError(f"--search: unknown key '{name}' for task {spec.task}{hint}")
        key = keys.get(name, name)
        wanted[key] = _values(name, text)
        kind = kinds.get(key) or task.options[key.removeprefix(OPTIONS)].annotation
        for value in wanted[key]:
            if message := problem(kind, value):
                raise UsageError(f"--search {name}: {message}")
    tried = wanted or worth_trying
    now, varied = current(spec, tried), {}
    for key, values in tried.items():
        found = [*dict.fromkeys([*values, now[key]])]
        if are_ordered(found):  # so that neighbours behave alike
            found.sort(key=lambda value: -math.inf if value is None else float(value))
        if len(found) > 1:
            varied[key] = tuple(found)
    if not varied:
        raise UsageError(
            f"model '{spec.name}': there is one way to set this, and nothing to choose; "
            f"--search takes {', '.join(keys)}"
        )
    return Space(varied, {key: now[key] for key in varied})


def are_ordered(values: Iterable[Value]) -> bool:
    return all(each is None or type(each) in (int, float) for each in values)


def current(spec: ModelSpec, keys: Iterable[str]) -> dict[str, Value]:
    batching = spec.dynamic_batching
    known: dict[str, Any] = {
        BATCH: spec.max_batch_size,
        DELAY: None if batching is None else batching.max_queue_delay_microseconds,
        INSTANCES: spec.instance_groups[0].count,
        **{f"{OPTIONS}{name}": value for name, value in spec.options.items()},
    }
    return {key: known[key] for key in keys}


def worth_trying(spec: ModelSpec, task: Task, callers: int, cores: int) -> dict[str, list[Value]]:
    """Only keys that this model's engine reads, and that leave answers and shapes as they are."""
    found: dict[str, list[Value]] = {}
    engine = spec.options.get("engine")
    for name, values in _WORTH_TRYING.items():
        if name in task.options and task.options[name].is_for(engine):
            by_callers = name in _BY_CALLERS
            found[f"{OPTIONS}{name}"] = _values_up_to(values, callers) if by_callers else [*values]
    if spec.max_batch_size > 0:  # from 0 to 1 the shape of every request's tensors would change
        found[BATCH] = _values_up_to(_BATCH_SIZES, callers)
        if spec.dynamic_batching is not None:
            found[DELAY] = [*_DELAYS]
    if _has_one_group(spec):
        found[INSTANCES] = [count for count in (1, 2, 4) if count <= max(2, cores // 2)]
    return found


def entry_with(entry: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    changed = {**entry, "options": dict(entry.get("options") or {})}
    for key, value in settings.items():
        if key == DELAY:
            given = entry.get("dynamic_batching")
            batching = {**(given if isinstance(given, dict) else {}), key.rpartition(".")[2]: value}
            changed["dynamic_batching"] = value is not None and batching
        elif key == INSTANCES:
            first = (entry.get("instance_group") or [{}])[0]
            changed["instance_group"] = [{"count": None, **first} | {"count": value}]
        elif key == BATCH:
            changed[BATCH] = value
        else:
            changed["options"][key.removeprefix(OPTIONS)] = value
    return {key: value for key, value in changed.items() if key != "options" or value}


def short(key: str) -> str:
    """The key without its map where the last part is unique, for tables and the command line."""
    return key if key == INSTANCES else key.rpartition(".")[2]


def settings_text(settings: Settings) -> str:
    """Formats settings: ``max_num_seqs=32, instance_group.count=1``."""
    return ", ".join(f"{short(key)}={value_text(value)}" for key, value in settings.items())


def value_text(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _has_one_group(spec: ModelSpec) -> bool:
    return len(spec.instance_groups) == 1 and spec.device_map is None


def _values(name: str, text: str) -> list[Value]:
    """Parses ``8,16``, ``1:64`` and ``1:64:x2`` (doubling), ``1:64:4``; both ends are included."""
    found, reason = list[Value](), ""
    try:
        steps = range_of(f"{text}:x2" if text.count(":") == 1 else text)
        if steps is not None:
            return [*steps, type(steps[0])(text.split(":")[1])]
        found = plain(nodes.parse(f"values: [{text}]".encode(), name))["values"]
    except SpecError:
        pass
    except ValueError as error:
        reason = f"{error}; "
    if not found:
        raise UsageError(f"--search {name}: got '{text}', {reason}{_SYNTAX}")
    return found


def _values_up_to(values: Iterable[int], callers: int) -> list[Value]:
    found = list(values)
    beyond = next((at for at, value in enumerate(found) if value >= callers), len(found))
    return [*found[: beyond + 1]]
