"""Checks that a second copy of each model that is to be replaced fits beside the running one.

The copies that run publish what they took when they were loaded and what is free on their devices
(hf_triton/runtime/engine/triton_model.py). A copy of unknown size counts as one that fits. Reads
only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from generator.render import model_config
from generator.render.memory import CPU, folder_bytes, weight_bytes
from hf_triton.serving.apply.planning import ApplyPlan, FolderChange, GroupChange, content_of
from hf_triton.text_generation.options import FREE_SHARE
from hf_triton.tritonserver.http_api import Sample

_GIB = 2**30
_WEIGHT_KEYS = ("model", "local", "revision", "dtype", "quantization")


@dataclass(frozen=True)
class RunningCopy:
    """Memory that the instances of a Triton model publish: bytes by device; ``cache`` is
    that of keys and values, all instances together.
    """

    loaded: Mapping[str, float]
    free: Mapping[str, float]
    cache: float
    num_instances: int


def with_shortages(plan: ApplyPlan, metrics: Sequence[Sample]) -> ApplyPlan:
    """Adds to the plan the models that can't be loaded beside their running copies, and those
    that can while no other is loaded. ``metrics`` are the server's.
    """
    shortages: dict[str, str] = {}
    one_by_one: set[str] = set()
    left: dict[str, float] = {}
    for group in plan.groups:
        if group.refusal or group.needs_gap:
            continue
        needed, free = _of_group(group, metrics)
        left = {**free, **left}
        short = [device for device in needed if needed[device] > free[device]]
        if short:
            device = max(short, key=lambda one: needed[one] - free[one])
            shortages[group.name] = (
                f"a second copy needs {needed[device] / _GIB:.1f} GiB on {device}, and "
                f"{free[device] / _GIB:.1f} GiB are free"
            )
        elif any(needed[device] > left[device] for device in needed):
            one_by_one.add(group.name)
        else:
            left.update({device: left[device] - needed[device] for device in needed})
    return replace(plan, shortages=shortages, one_by_one=frozenset(one_by_one))


def _of_group(
    group: GroupChange, metrics: Sequence[Sample]
) -> tuple[dict[str, float], dict[str, float]]:
    """The bytes that a second copy needs, and those that are free, by device."""
    needed: Counter[str] = Counter()
    free: dict[str, float] = {}
    for folder in group.folders:
        if not folder.is_new_version:
            continue
        # An engine publishes under the name that models.yaml gives the model.
        names = {folder.name} if folder is group.folders[0] else {folder.name, group.name}
        copy = running_copy(metrics, names, max(folder.served.ready))
        if copy is not None:
            for device, count in _needed_bytes(folder, copy).items():
                needed[device] += int(count)
            free.update(copy.free)
    return dict(needed), free


def _needed_bytes(folder: FolderChange, copy: RunningCopy) -> dict[str, float]:
    """The bytes of a second copy, by device. If it is placed otherwise (other devices, instances
    or engine), at least its weights, by their files; if their size is unknown, at least the cache.
    """
    old, new = _values(folder, old=True), _values(folder, old=False)
    gpus = [device for device in copy.loaded if device != CPU]
    placed = _placed(new, folder.config)
    if _placed(old, folder.config_before) != placed:
        estimate = folder_bytes(folder.plan.folder, new, gpus, groups=placed[-1] or ())
        return {device: size for device, size in estimate.items() if device in copy.free}
    devices = gpus or [CPU]
    total = sum(copy.loaded[device] for device in devices)
    # On the CPU it is taken as it is written. With less free than the cache's share leaves, it
    # would be smaller than now.
    cached, cache = (copy.cache, copy.cache / FREE_SHARE["cuda"]) if gpus else (0.0, 0.0)
    options = new["options"]
    if options.get("kv_cache_gib") is not None:
        cache = float(options["kv_cache_gib"] * _GIB * copy.num_instances)
    if any(old.get(key) != new.get(key) for key in _WEIGHT_KEYS):
        known = weight_bytes(folder.plan.folder, new) * copy.num_instances
        return {one: (known + cache) * copy.loaded[one] / total for one in devices}
    grown = (total + cache - cached) / total
    return {one: size * (grown if one in devices else 1) for one, size in copy.loaded.items()}


def _placed(values: Mapping[str, Any], config: bytes) -> tuple[Any, ...]:
    """The values that decide on which devices, how often and by what a model is computed."""
    groups = model_config.as_dict(model_config.parse(config.decode())).get("instance_group")
    return values.get("device_map"), values["options"].get("engine"), groups


def _values(folder: FolderChange, *, old: bool) -> dict[str, Any]:
    """The values of a folder's model.json: ``old`` as it is on disk, else as it will be."""
    text = content_of(folder.plan, f"{folder.plan.version}/model.json", old=old)
    values = json.loads(text or b"{}")
    return {**values, "options": values.get("options") or {}}


def running_copy(
    metrics: Sequence[Sample], names: Collection[str], version: int | None = None
) -> RunningCopy | None:
    """The copy that instances of models of these names publish, of one version or of all, or None
    where they publish nothing of their memory.
    """
    loaded: Counter[str] = Counter()
    free: dict[str, float] = {}
    cache = 0.0
    instances = set()
    for name, labels, value in metrics:
        is_wanted = version is None or labels.get("version") == str(version)
        if not is_wanted or labels.get("model") not in names:
            continue
        if name == "hf_triton_kv_cache_bytes":
            cache += value
        elif name == "hf_triton_memory_bytes" and labels["kind"] == "free":
            free[labels["device"]] = min(value, free.get(labels["device"], value))
        elif name == "hf_triton_memory_bytes":
            loaded[labels["device"]] += int(value)
            instances.add(labels["instance"])
    if not any(loaded.values()):
        return None
    return RunningCopy(loaded, free, cache, len(instances))
