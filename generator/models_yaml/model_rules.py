"""The rules of models.yaml that hold between the keys of one model.

They see values that are each right by themselves, and name the value that has to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from generator.models_yaml.features.entry import Entry
from generator.spec.model_spec import DynamicBatching
from generator.spec.task_folders import Task
from generator.spec.vllm_arguments import num_gpus
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node


class BatchLimit(NamedTuple):
    """The key that says how many rows Triton may put together, and what it says."""

    key: str
    value: int


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Each rule that a model breaks: where, and what is wrong."""
    given, values, task = entry.given, entry.values, entry.task
    if "dynamic_batching" in given and values.get("max_batch_size") is not None:
        if values.get("layout") != "ensemble":
            limit = BatchLimit("max_batch_size", values["max_batch_size"])
            yield from _batching(given["dynamic_batching"], values, limit)
        elif values["ensemble"].is_native:
            rows = values["ensemble"].model_max_batch_size
            limit = BatchLimit("ensemble.model_max_batch_size", rows)
            yield from _batching(given["dynamic_batching"], values, limit)
    if "instance_group" in given and values.get("device_map") is not None:
        yield from _instances(given["instance_group"], values)
    if values.get("metrics") and ("hooks" not in given or given["hooks"].value is None):
        yield given["metrics"], "needs hooks: nothing else observes these metrics"
    if values.get("idle_s") is not None and "load" not in given:
        yield given["idle_s"], "needs load: on_demand: nothing else is put out of memory"
    if values.get("response_cache") is not None and task is not None:
        yield from _response_cache(given["response_cache"], values, task)


def _batching(
    node: Node, values: Mapping[str, Any], limit: BatchLimit
) -> Iterator[tuple[Node, str]]:
    largest = limit.value
    sizes = node.get("preferred_batch_size")
    if largest == 0 and values["dynamic_batching"] not in (None, DynamicBatching()):
        # Triton takes a delay there, and then hands over one request at a time all the same.
        yield node, "needs max_batch_size above 0, which is 0: Triton forms no batches"
    elif sizes is not None and isinstance(sizes.value, list):
        for item in sizes.value:
            if type(item.value) is int and item.value > largest:
                expected = f"expected at most {limit.key}, which is {largest}"
                yield item, f"got {schema.show(item)}, {expected}"


def _instances(node: Node, values: Mapping[str, Any]) -> Iterator[tuple[Node, str]]:
    """A device map spreads one copy over every GPU: a second would want the same memory."""
    groups = values["instance_group"] or ()
    on_gpu = [group for group in groups if group.kind in ("KIND_GPU", "KIND_AUTO")]
    everywhere = any(group.kind == "KIND_GPU" and not group.gpus for group in on_gpu)
    if everywhere or sum(group.count * max(1, len(group.gpus)) for group in on_gpu) > 1:
        spread = f"device_map {values['device_map']} spreads one copy over all GPUs"
        expected = "expected [{count: 1, kind: KIND_MODEL}]"
        yield node, f"{spread}, and this asks for several; {expected}"


def engine_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Reports options that the model's engine does not know, if the entry itself gives them.
    Options under ``defaults:`` are for all engines, so an engine may ignore some.
    """
    own, task, engine = entry.own_options, entry.task, entry.options.get("engine")
    if own is None or task is None:
        return
    for name, value in entry.options.items():
        option, place = task.options[name], own.get(name)
        if place is not None and value and not option.is_for(engine):
            knows = f"only engine {' or '.join(option.engines)} knows it"
            yield place, f"got {schema.show(place)}, but engine is {engine}: {knows}"


def vllm_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Reports ``options.vllm`` without engine vllm, and several instances of a model that vLLM
    spreads over several GPUs. NVIDIA's vLLM backend has rules of its own.
    """
    given, values, options = entry.given, entry.values, entry.options
    if values.get("layout") == "vllm-backend":
        return
    if options.get("engine") == "vllm" and values.get("device_map") is not None:
        reason = "tensor_parallel_size in options.vllm spreads a model"
        yield given["device_map"], f"got {values['device_map']}, expected null: {reason}"
    if options.get("vllm") is None:
        return
    if options["engine"] == "auto":
        place = given["options"].get("vllm") or given["options"]
        yield place, "got arguments for vLLM, but engine is auto; set engine: vllm"
    num = num_gpus(options)
    for group in values.get("instance_group") or ():
        if num > 1 and "instance_group" in given and group.kind in ("KIND_GPU", "KIND_AUTO"):
            wanted = f"options.vllm spreads one copy over {num} GPUs"
            message = f"got {group.kind}, which is one instance for each GPU, but {wanted}"
            yield (
                given["instance_group"],
                f"{message}; expected [{{count: 1, kind: KIND_MODEL}}]",
            )


def _response_cache(
    node: Node, values: Mapping[str, Any], task: Task
) -> Iterator[tuple[Node, str]]:
    """Reports a response cache for tasks whose answers to one request may differ."""
    if not task.is_deterministic:
        reason = f"two answers of {task.tag} to one request may differ"
        yield node, f"expected false: {reason}, and a kept one would be repeated"
    elif values["streaming"]:
        yield node, "expected false: a streamed answer can't be kept; or set streaming: false"
