"""The keys ``layout`` and ``ensemble``: a model as three steps, tokenizer, model, postprocessing.

Knows what they may hold and what of the other keys has no meaning then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from generator.models_yaml.features.entry import Entry
from generator.spec.model_spec import DynamicBatching, Ensemble
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report

BACKENDS = ("python", "onnxruntime", "tensorrt")
_MAX_INSTANCES = 128
_NATIVE_ONLY = ("model_max_batch_size", "pad_to_multiple_of", "token_type_ids")
_KEYS: dict[str, schema.Check] = {
    "backend": schema.choice(*BACKENDS),
    "tokenizer_instances": schema.integer(1, _MAX_INSTANCES, "processes"),
    "postprocessing_instances": schema.integer(1, _MAX_INSTANCES, "processes"),
    "model_max_batch_size": schema.integer(1, schema.INT32_MAX, "rows of tokens"),
    "pad_to_multiple_of": schema.integer(1, 4096, "tokens"),
    "token_type_ids": schema.boolean,
}


def check(node: Node, report: Report) -> Ensemble:
    """What ``ensemble:`` says, defaults filled in."""
    expected = f"a map with {', '.join(_KEYS)}"
    return Ensemble(**schema.mapping(_KEYS, expected)(node, report))


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """What of a model's keys does not go together with its layout: where, and what is wrong."""
    given, values, task = entry.given, entry.values, entry.task
    if values.get("layout") != "ensemble":
        return
    if task is not None and task.output is None:
        tasks = ", ".join(tag for tag, known in entry.tasks.items() if known.output)
        reason = f"{task.tag} has no tokenizer and postprocessing apart from its engine"
        yield given["layout"], f"got ensemble, expected single: {reason}; ensemble is for {tasks}"
        return
    for name in ("hooks", "response_cache"):
        if values.get(name) is not None:
            reason = "no step of an ensemble sees both a request and its answer"
            yield given[name], f"needs layout single: {reason}"
    ensemble: Ensemble = values["ensemble"]
    yield from (_native(given, values) if ensemble.is_native else _python(given, values))


def _python(given: Mapping[str, Node], values: Mapping[str, Any]) -> Iterator[tuple[Node, str]]:
    asked = given.get("ensemble")
    backend = asked.get("backend") if asked else None
    for name in _NATIVE_ONLY:
        node = asked.get(name) if asked else None
        if node is not None and (backend is None or backend.value == "python"):
            native = " or ".join(BACKENDS[1:])
            yield node, f"needs backend {native}: on python the model step merges any rows itself"
    if values["dynamic_batching"] not in (None, DynamicBatching()):
        reason = "on the backend python the model step merges requests itself"
        yield given["dynamic_batching"], f"is of no use in this ensemble: {reason}"


def _native(given: Mapping[str, Node], values: Mapping[str, Any]) -> Iterator[tuple[Node, str]]:
    backend = values["ensemble"].backend
    if values["dtype"] not in (None, "auto", "float32"):
        reason = f"the output of a model on {backend} is FP32; what it computes in, its file says"
        yield given["dtype"], f"got {values['dtype']}, expected float32 or auto: {reason}"
    if values["device_map"] is not None:
        reason = f"{backend} computes on each device of instance_group by itself"
        yield given["device_map"], f"got {values['device_map']}, expected null: {reason}"
    kinds = ("KIND_AUTO", "KIND_GPU") + (() if backend == "tensorrt" else ("KIND_CPU",))
    for group in values["instance_group"] or ():
        if group.kind not in kinds:
            allowed = ", ".join(sorted(kinds))
            yield given["instance_group"], f"{backend} can't run {group.kind}, only {allowed}"
