"""What can be tuned of a model: its keys in models.yaml, what they are now, what is worth trying.

Keys are written as paths in models.yaml: ``max_batch_size``, ``options.max_num_seqs``. Knows the
schema and the tasks' options; no server, no optimiser.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from generator.models_yaml.model_keys import KEYS, MAX_INSTANCES
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report
from perf.report.schema import Value
from perf.tune.settings.space import Settings

BATCH, DELAY, INSTANCES = (
    "max_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "instance_group.count",
)
OPTIONS = "options."

# By option: what may make a model faster and leaves its answers alone. What is worth trying goes
# up to the first value that serves all callers at once where that is all it is for (_BY_CALLERS).
_WORTH_TRYING: Mapping[str, tuple[Value, ...]] = {
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256, 512),
    "max_num_batched_tokens": (128, 256, 512, 1024, 2048, 4096),
    "batch_size": (1, 2, 4, 8, 16, 32),
    "num_tokenizer_threads": (2, 4),
    "num_reader_threads": (1, 2, 4),
}
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_DELAYS = (0, 100, 500, 1000, 5000)
_BY_CALLERS = ("max_num_seqs", "batch_size")
_SHARES_OF_CACHE = (0.25, 0.5, 1.0, 2.0)


def tunable_keys(spec: ModelSpec, task: Task) -> list[str]:
    """Every key that may be searched: Triton's, and the task's options but free text."""
    options = [
        f"{OPTIONS}{name}"
        for name, option in task.options.items()
        if option.choices or option.kind in (int, float, bool)
    ]
    return [BATCH, DELAY, *([INSTANCES] if has_one_group(spec) else []), *options]


def has_one_group(spec: ModelSpec) -> bool:
    """Whether a number of instances is one number, and may be another."""
    return len(spec.instance_groups) == 1 and spec.device_map is None


def short(key: str) -> str:
    """As tables and the command line write a key: without its map where that says nothing."""
    return key if key == INSTANCES else key.rpartition(".")[2]


def settings_text(settings: Settings) -> str:
    """Such as ``max_num_seqs=32, instance_group.count=1``."""
    return ", ".join(f"{short(key)}={value_text(value)}" for key, value in settings.items())


def value_text(value: Value) -> str:
    """As models.yaml writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def current(spec: ModelSpec, keys: Iterable[str]) -> dict[str, Value]:
    """What models.yaml says for each of these keys, defaults filled in."""
    batching = spec.dynamic_batching
    known: dict[str, Any] = {
        BATCH: spec.max_batch_size,
        DELAY: None if batching is None else batching.max_queue_delay_microseconds,
        INSTANCES: spec.instance_groups[0].count,
        **{f"{OPTIONS}{name}": value for name, value in spec.options.items()},
    }
    return {key: known[key] for key in keys}


def problem(key: str, value: Value, task: Task) -> str | None:
    """Why models.yaml can't have this value for this key by itself."""
    report = Report()
    node = Node(value, 0, 0, key, str(value))
    if key == INSTANCES:
        schema.integer(1, MAX_INSTANCES)(node, report)
    elif key == DELAY:
        if value is not None:
            schema.integer(0, schema.UINT64_MAX, "microseconds")(node, report)
    elif key == BATCH:
        KEYS[BATCH].check(node, report)
    else:
        task.options[key.removeprefix(OPTIONS)].check(node, report)
    return report.problems[0].message if report.problems else None


def worth_trying(spec: ModelSpec, task: Task, callers: int, cores: int) -> dict[str, list[Value]]:
    """Values by key, where the user does not say: only keys that this model's engine looks at, and
    never what would change its answers or the shape of its requests.
    """
    found: dict[str, list[Value]] = {}
    engine = spec.options.get("engine")
    for name, values in _WORTH_TRYING.items():
        if name in task.options and task.options[name].is_for(engine):
            found[f"{OPTIONS}{name}"] = (
                _up_to(values, callers) if name in _BY_CALLERS else [*values]
            )
    budget = spec.options.get("kv_cache_gib")
    if isinstance(budget, int | float) and task.options["kv_cache_gib"].is_for(engine):
        found[f"{OPTIONS}kv_cache_gib"] = [budget * share for share in _SHARES_OF_CACHE]
    if spec.max_batch_size > 0:  # from 0 to 1 the shape of every request's tensors would change
        found[BATCH] = _up_to(_BATCH_SIZES, callers)
        if spec.dynamic_batching is not None:
            found[DELAY] = [*_DELAYS]
    if has_one_group(spec):
        found[INSTANCES] = [count for count in (1, 2, 4) if count <= max(2, cores // 2)]
    return found


def _up_to(values: Iterable[Value], callers: int) -> list[Value]:
    """Those below ``callers``, and the first that is not: beyond it, more is the same."""
    kept: list[Value] = []
    for value in values:
        kept.append(value)
        if isinstance(value, int) and value >= callers:
            break
    return kept


def entry_with(entry: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A model's entry of models.yaml, as plain values, with these settings in it."""
    changed = {**entry, "options": dict(entry.get("options") or {})}
    for key, value in settings.items():
        if key == DELAY:
            changed["dynamic_batching"] = _batching(entry, value)
        elif key == INSTANCES:
            first = (entry.get("instance_group") or [{}])[0]
            changed["instance_group"] = [{**first, "count": value}]
        elif key == BATCH:
            changed[BATCH] = value
        else:
            changed["options"][key.removeprefix(OPTIONS)] = value
    return {key: value for key, value in changed.items() if key != "options" or value}


def _batching(entry: Mapping[str, Any], delay: Value) -> object:
    """A delay of 0 is Triton's own default, and the only one that goes without batches."""
    if delay is None:
        return False
    given = entry.get("dynamic_batching", True)
    kept = dict(given) if isinstance(given, dict) else {}
    kept.pop("max_queue_delay_microseconds", None)
    return kept | ({"max_queue_delay_microseconds": delay} if delay else {}) or True


def plain(node: Node) -> Any:
    """What a node of models.yaml says, as plain values."""
    if isinstance(node.value, dict):
        return {key.name: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value
