"""The rules of models.yaml between the keys of one model, whose values are each right alone, and
between models, checked when all entries are read: no two may want the same folder, nor two metrics
under one name, and a canary's arms must be able to answer for their model.

Of folders letters' case does not count: on some file systems ``Demo`` and ``demo`` are one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from generator.spec.model_source import GGUF_SUFFIX, names_gguf
from generator.spec.model_spec import (
    BACKENDS,
    MAX_NAME,
    OVERRIDES,
    Arm,
    DynamicBatching,
    Ensemble,
    Metric,
    ModelKeys,
    ModelSpec,
    num_gpus,
)
from generator.spec.task_folders import Task, find_tasks
from generator.spec.triton_models import ENGINE_SUFFIX, STEP_SUFFIXES
from generator.yaml_file.keys import read
from generator.yaml_file.nodes import Key, Node, Report, did_you_mean, scalars, show

_MERGED_MAPS = ("options", "dynamic_batching", "ensemble")
_NATIVE_ONLY = ("model_max_batch_size", "pad_to_multiple_of", "token_type_ids")
_GGUF_TASK = "text-generation"
# Engines that take no weights quantized at load, each with what it has instead.
_NOT_QUANTIZING = {
    "vllm": "vLLM quantizes by its own arguments, under options.vllm",
    "onnxruntime": "onnxruntime quantizes what it exports, by options.quantization",
}


class Entry(NamedTuple):
    """An entry of models.yaml. ``given`` are the nodes of its keys with those from ``defaults:``,
    ``own`` is the entry without them. In ``keys`` each ``wrong`` key has its default; wrong
    ``options`` are empty.
    """

    given: Mapping[str, Node]
    own: Node
    keys: ModelKeys
    wrong: Set[str]
    task: Task | None
    options: Mapping[str, Any]

    def option(self, name: str) -> Node | None:
        options = self.given.get("options")
        return None if options is None else options.get(name)


def merge(defaults: Node | None, own: Node) -> Node:
    """``own`` over ``defaults``: its maps key by key, everything else whole."""
    if not (defaults and isinstance(own.value, dict) and isinstance(defaults.value, dict)):
        return own
    overridden = {key.name for key in own.value}
    kept = {key: node for key, node in defaults.value.items() if key.name not in overridden}
    merged = {
        key: merge(defaults.get(key.name), node) if key.name in _MERGED_MAPS else node
        for key, node in own.value.items()
    }
    return own._replace(value={**kept, **merged})


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    given, keys, task = entry.given, entry.keys, entry.task
    yield from _sources(entry)
    if keys.streaming and task is not None and not task.streams:
        message = f"got true, expected false: {task.tag} answers a request in one piece"
        yield given["streaming"], message
    yield from _batching(entry)
    if keys.instance_group and keys.device_map is not None:
        yield from _instances(entry)
    metrics = given.get("metrics")
    if metrics is not None and metrics.entries and not (keys.hooks or "hooks" in entry.wrong):
        yield metrics, "needs hooks: only hooks observe these metrics"
    if keys.idle_s is not None and "load" not in given:
        yield given["idle_s"], "needs load: on_demand: only such a model is unloaded when idle"
    if keys.response_cache is not None:
        yield from _response_cache(entry)
    yield from _adapters(entry)
    yield from _engine(entry)
    yield from _vllm(entry)
    yield from _ensemble(entry)
    yield from _quantization(entry)
    yield from _gguf(entry)
    if keys.canary is not None and keys.layout == "ensemble":
        why = "an ensemble's requests pass through Triton's own scheduler, which has no arms"
        yield given["canary"], f"needs layout: single; {why}"


def _sources(entry: Entry) -> Iterator[tuple[Node, str]]:
    keys, given = entry.keys, entry.given
    if keys.revision is not None and (kind := keys.model.without_revisions):
        yield given["revision"], f"only a model on the Hub has revisions, and 'model' is {kind}"
    if keys.model.is_local and keys.gguf_file is not None:
        yield given["gguf_file"], "for a file of a local folder write model: FOLDER/FILE.gguf"


def _batching(entry: Entry) -> Iterator[tuple[Node, str]]:
    keys, node = entry.keys, entry.given.get("dynamic_batching")
    ensemble = keys.ensemble or Ensemble()
    if node is None or entry.wrong & {"max_batch_size", "dynamic_batching", "ensemble"}:
        return
    key, limit = "max_batch_size", keys.max_batch_size
    if keys.layout == "ensemble":
        if not ensemble.is_native:
            return
        key, limit = "ensemble.model_max_batch_size", ensemble.model_max_batch_size
    if limit == 0 and keys.dynamic_batching not in (None, DynamicBatching()):
        # Triton takes a delay there, and then hands over one request at a time all the same.
        yield node, "needs max_batch_size above 0, which is 0: Triton forms no batches"
        return
    sizes = node.get("preferred_batch_size")
    for item in sizes.items if sizes is not None else ():
        if isinstance(item.value, int) and item.value > limit:
            expected = f"expected at most {key}, which is {limit}"
            yield item, f"got {show(item)}, {expected}"


def _instances(entry: Entry) -> Iterator[tuple[Node, str]]:
    """A device map spreads one copy over every GPU: a second would want the same memory."""
    groups = entry.keys.instance_group or ()
    on_gpu = [group for group in groups if group.kind in ("KIND_GPU", "KIND_AUTO")]
    everywhere = any(group.kind == "KIND_GPU" and not group.gpus for group in on_gpu)
    if everywhere or sum(group.num_instances for group in on_gpu) > 1:
        spread = f"device_map {entry.keys.device_map} spreads one copy over all GPUs"
        expected = "expected [{count: 1, kind: KIND_MODEL}]"
        yield entry.given["instance_group"], f"{spread}, but this asks for several; {expected}"


def _response_cache(entry: Entry) -> Iterator[tuple[Node, str]]:
    node, task = entry.given["response_cache"], entry.task
    if task is not None and not task.is_deterministic:
        reason = f"two answers of {task.tag} to one request may differ"
        yield node, f"expected false: {reason}, and a cached one would be repeated"
    elif entry.keys.streaming:
        yield node, "expected false: a streamed answer can't be cached; or set streaming: false"


def _adapters(entry: Entry) -> Iterator[tuple[Node, str]]:
    given, keys, task = entry.given, entry.keys, entry.task
    found = [key for key in ("adapters", "adapters_from") if getattr(keys, key)]
    if task is None or not found:
        return
    if not task.has_adapters:
        for key in found:
            yield given[key], f"expected none: no model of {task.tag} serves adapters"
        return
    engine = entry.option("engine")
    if engine is not None and engine.value == "generate":
        yield engine, "got 'generate', which serves no adapters; expected auto, in_flight or vllm"
    canary = given.get("canary")
    if keys.adapters_from and canary is not None and canary.value:
        reason = "its canary sends requests to other arms, which would lack these adapters"
        yield given["adapters_from"], f"expected none: {reason}"


def _engine(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Reports options that the engine does not know. Those of ``defaults:`` are for all engines."""
    own, task, engine = entry.own.get("options"), entry.task, entry.options.get("engine")
    if own is None or task is None:
        return
    for name, value in entry.options.items():
        option, place = task.options[name], own.get(name)
        if place is not None and value and not option.is_for(engine):
            knows = f"only engine {' or '.join(option.engines)} has it"
            yield place, f"got {show(place)}, but engine is {engine}: {knows}"


def _vllm(entry: Entry) -> Iterator[tuple[Node, str]]:
    given, keys, options = entry.given, entry.keys, entry.options
    if options.get("engine") == "vllm" and keys.device_map is not None:
        reason = "tensor_parallel_size in options.vllm spreads a model"
        yield given["device_map"], f"got {keys.device_map}, expected null: {reason}"
    if options.get("vllm") is None:
        return
    if options["engine"] == "auto":
        place = entry.option("vllm") or given["options"]
        yield place, "got arguments for vLLM, but engine is auto; set engine: vllm"
    num = num_gpus(options)
    for group in keys.instance_group or ():
        if num > 1 and group.kind in ("KIND_GPU", "KIND_AUTO"):
            wanted = f"options.vllm spreads one copy over {num} GPUs"
            message = f"got {group.kind}, which is one instance for each GPU, but {wanted}"
            expected = "expected [{count: 1, kind: KIND_MODEL}]"
            yield given["instance_group"], f"{message}; {expected}"


def _ensemble(entry: Entry) -> Iterator[tuple[Node, str]]:
    given, keys, task = entry.given, entry.keys, entry.task
    if keys.layout != "ensemble":
        node = entry.own.get("ensemble")
        if node is not None and "layout" not in entry.wrong:
            yield node, "has no effect without 'layout: ensemble'"
        return
    if task is not None and task.output is None:
        tasks = ", ".join(tag for tag, known in find_tasks().items() if known.output)
        reason = f"{task.tag} has no tokenizer and postprocessing apart from its engine"
        yield given["layout"], f"got ensemble, expected single: {reason}; ensemble is for {tasks}"
        return
    for name in ("hooks", "response_cache"):
        if getattr(keys, name) is not None:
            reason = "no step of an ensemble sees both a request and its answer"
            yield given[name], f"needs layout single: {reason}"
    if "ensemble" not in entry.wrong:
        native = keys.ensemble is not None and keys.ensemble.is_native
        yield from (_native_steps(entry) if native else _python_steps(entry))


def _python_steps(entry: Entry) -> Iterator[tuple[Node, str]]:
    asked = entry.given.get("ensemble")
    for name in _NATIVE_ONLY:
        node = asked.get(name) if asked else None
        if node is not None:
            native = " or ".join(BACKENDS[1:])
            yield node, f"needs backend {native}: on python the model step merges any rows itself"
    if entry.keys.dynamic_batching not in (None, DynamicBatching()):
        reason = "on the backend python the model step merges requests itself"
        yield entry.given["dynamic_batching"], f"has no effect in this ensemble: {reason}"


def _native_steps(entry: Entry) -> Iterator[tuple[Node, str]]:
    given, keys = entry.given, entry.keys
    backend = (keys.ensemble or Ensemble()).backend
    if keys.dtype not in ("auto", "float32"):
        reason = f"a model on {backend} puts out FP32, and computes in the type that its file names"
        yield given["dtype"], f"got {keys.dtype}, expected float32 or auto: {reason}"
    if keys.device_map is not None:
        reason = f"{backend} computes on each device of instance_group by itself"
        yield given["device_map"], f"got {keys.device_map}, expected null: {reason}"
    kinds = ("KIND_AUTO", "KIND_GPU") + (() if backend == "tensorrt" else ("KIND_CPU",))
    for group in keys.instance_group or ():
        if group.kind not in kinds:
            allowed = ", ".join(sorted(kinds))
            yield given["instance_group"], f"{backend} can't run {group.kind}, only {allowed}"


def _quantization(entry: Entry) -> Iterator[tuple[Node, str]]:
    keys, task = entry.keys, entry.task
    if keys.quantization is None:
        return
    node, engine = entry.given["quantization"], entry.option("engine")
    ensemble = keys.ensemble or Ensemble()
    if task is not None and not task.quantizes:
        yield node, f"expected null: models of the task {task.tag} keep their weights whole"
    elif engine is not None and engine.value in _NOT_QUANTIZING:
        yield node, f"expected null: {_NOT_QUANTIZING[str(engine.value)]}"
    elif keys.layout == "ensemble" and ensemble.is_native:
        yield node, "expected null: ensemble.backend computes an exported file as it is"
    elif keys.quantization.method == "int4":  # torchao's product: a CUDA kernel in bfloat16
        if any(group.kind == "KIND_CPU" for group in keys.instance_group or ()):
            message = "int4 needs a GPU, and instance_group has KIND_CPU"
            yield node, f"{message}; expected bitsandbytes_4bit, which runs on both, or int8"
        if keys.dtype not in ("auto", "bfloat16"):
            message = f"got {keys.dtype}, expected bfloat16: int4 computes only in it"
            yield entry.given["dtype"], message


def _gguf(entry: Entry) -> Iterator[tuple[Node, str]]:
    given, keys, task = entry.given, entry.keys, entry.task
    model = given.get("model")
    is_file = model is not None and isinstance(model.value, str) and names_gguf(model.value)
    place = model if is_file else given.get("gguf_file")
    if place is None or place.value is None or not (is_file or keys.gguf_file):
        return
    if task is not None and task.tag != _GGUF_TASK:
        yield place, f"a {GGUF_SUFFIX} file is served as {_GGUF_TASK}, and this is {task.tag}"
    elif entry.options.get("engine") == "vllm":
        yield place, f"vLLM can't read a {GGUF_SUFFIX} file: leave engine out"
    elif keys.quantization is not None:
        reason = f"the weights of a {GGUF_SUFFIX} file are quantized already"
        yield given["quantization"], f"expected null: {reason}"


def refuse_clashes(entries: Sequence[Entry], report: Report) -> None:
    """Reports each name that another model has taken, and each too long for its other folders."""
    claims = [(node, _suffixes(entry)) for entry in entries for node in _texts(entry, "name")]
    claims += [(node, ()) for entry in entries for node in _texts(entry, "served_names")]
    folders = {
        f"{node.value}{suffix}".lower(): (node, suffix)
        for node, suffixes in claims
        for suffix in suffixes
    }
    first: dict[str, Node] = {}
    for node, suffixes in claims:
        name, got = str(node.value), f"got {show(node)}"
        other = first.setdefault(name.lower(), node)
        if other is not node:
            why = "which differs only in case from the name"
            if other.value == name:
                why = "already the name of the model"
            report.add(node, f"{got}, {why} in line {other.line}")
        elif name.lower() in folders:
            report.add(node, f"{got}, but {_folder_conflict(*folders[name.lower()])}")
        suffix = max(suffixes, key=len, default="")
        longest = MAX_NAME - len(suffix)
        if longest < len(name) <= MAX_NAME:
            what = "a model that streams" if suffix == ENGINE_SUFFIX else "an ensemble"
            why = f"{what} needs {len(suffix)} more for '<name>{suffix}'"
            report.add(node, f"got {len(name)} characters, expected at most {longest}: {why}")


def _suffixes(entry: Entry) -> tuple[str, ...]:
    """The ends of the names of the entry's other folders."""
    if entry.keys.layout == "ensemble":
        return STEP_SUFFIXES
    return (ENGINE_SUFFIX,) if entry.keys.streaming else ()


def _texts(entry: Entry, key: str) -> list[Node]:
    """A text, or those of a list, that the entry itself has under ``key``."""
    node = entry.own.get(key)
    found = () if node is None else scalars(node)
    return [one for one in found if isinstance(one.value, str)]


def _folder_conflict(owner: Node, suffix: str) -> str:
    folder, line = f"{owner.value}{suffix}", owner.line
    if suffix == ENGINE_SUFFIX:
        holds = f"'{folder}' holds the engine of the model in line {line}, which streams"
        return f"{holds}; rename one of them, or set 'streaming: false' there"
    return f"'{folder}' is a step of the ensemble in line {line}; rename one of them"


def refuse_differences(entries: Iterable[Entry], report: Report) -> None:
    """Reports a metric that another model declares otherwise: on /metrics they are one."""
    first: dict[str, tuple[Node, Metric]] = {}
    for entry in entries:
        for name, metric in entry.keys.metrics.items():
            node = entry.given["metrics"].entries[name]
            other, declared = first.setdefault(name, (node, metric))
            if declared != metric:
                line = f"the metric of this name in line {other.line}"
                report.add(node, f"differs from {line}; expected the same, or another name")


@dataclass(frozen=True)
class Branch:
    node: Node
    arm: Arm

    def entry(self, owner: str) -> Node:
        place = self.node.get("name") or self.node
        key = Key("name", place.line, place.column, place.where)
        name = place._replace(value=self.arm.model_of(owner), written="")
        given = self.node.value.items() if isinstance(self.node.value, dict) else ()
        overrides = {key: node for key, node in given if key.name in OVERRIDES}
        return self.node._replace(value={key: name, **overrides})

    def inherited(self, whole: Node) -> Node:
        left_out = {"name", "served_names", "canary"}
        if "model" in self.arm.overrides:
            left_out.add("revision")  # of another repository
        given = whole.value.items() if isinstance(whole.value, dict) else ()
        kept = {key: node for key, node in given if key.name not in left_out}
        return whole._replace(value=kept)


def branches(canary: Node | None) -> list[Branch]:
    """The arms that are right by themselves; mistakes are reported with the model's own."""
    arms = None if canary is None else canary.get("arms")
    nodes = [] if arms is None else arms.items
    found = ((node, read(Arm, node, Report())) for node in nodes)
    return [Branch(node, arm) for node, arm in found if arm is not None]


def refuse_targets(entries: Sequence[Entry], specs: Iterable[ModelSpec], report: Report) -> None:
    """Reports each arm of another entry that can't answer for its owner; ``specs`` are the correct
    entries.
    """
    names = (str(node.value) for entry in entries for node in _texts(entry, "name"))
    known = dict.fromkeys(names)
    by_name = {spec.name: spec for spec in specs}
    for entry in entries:
        for branch in branches(entry.given.get("canary")) if _texts(entry, "name") else ():
            node, mine = branch.node.get("to"), str(entry.given["name"].value)
            if node is not None and branch.arm.to is not None:
                others = [name for name in known if name != mine]
                for message in _arm_problems(node, mine, others, by_name):
                    report.add(node, message)


def _arm_problems(
    node: Node, mine: str, others: Collection[str], specs: Mapping[str, ModelSpec]
) -> Iterator[str]:
    name, got = str(node.value), f"got {show(node)}, which is"
    owner, other = specs.get(mine), specs.get(name)
    if name == mine:
        yield f"{got} this model itself; expected another one"
    elif name not in others:
        yield f"{got} no model of this file{did_you_mean(name, others, 'models')}"
    elif owner is not None and other is not None:
        yield from _differences(owner, other)


def _differences(owner: ModelSpec, other: ModelSpec) -> Iterator[str]:
    """Yields the reasons why ``other`` can't take the requests of ``owner``."""
    if other.load != "always":
        waits = "routed requests don't wait for its load; expected load: always"
        yield f"'{other.name}' has load: {other.load}, and {waits}"
    if other.canary is not None:
        yield (
            f"'{other.name}' has a canary of its own, and a routed request is not routed again; "
            "name the model that is meant, or remove it there"
        )
    if other.ensemble is not None:
        yield f"'{other.name}' is an ensemble, which only Triton itself can ask; set layout: single"
        return
    if other.task != owner.task:
        yield f"'{other.name}' is for {other.task}, expected a model for {owner.task}"
        return
    for key, own_value, other_value in (
        ("streaming", str(owner.streaming).lower(), str(other.streaming).lower()),
        ("max_batch_size", str(owner.max_batch_size), str(other.max_batch_size)),
    ):
        if own_value != other_value:
            same = "it gets the same requests"
            yield f"'{other.name}' has {key} {other_value}, expected {own_value} as here: {same}"
    known = {adapter.name for adapter in other.adapters or ()}
    if missing := [one.name for one in owner.adapters or () if one.name not in known]:
        lacks = f"lacks the adapters {', '.join(missing)}"
        yield f"'{other.name}' {lacks}, which requests may name"
