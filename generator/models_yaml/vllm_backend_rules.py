"""Refuses keys that ``layout: vllm-backend`` can't honour: NVIDIA's vLLM backend knows vLLM's
arguments, and runs none of our code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from generator.models_yaml.entry import Entry
from generator.spec import vllm_arguments
from generator.spec.model_spec import InstanceGroup, ModelKeys
from generator.spec.task_folders import Task
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import show

_KEYS = (
    *("name", "task", "model", "revision", "dtype", "trust_remote_code", "allow_pickle"),
    *("instance_group", "version_policy", "layout", "ensemble", "options"),
)
_OPTIONS = ("engine", "max_model_len", "max_num_seqs", "kv_cache_gib", "vllm")
_ENGINES = (None, "auto", "vllm")
_BATCHES = "vLLM batches requests itself, and takes tensors of shape [1]"
_REASONS = {
    "streaming": "it streams whatever a request wants streamed",
    "max_batch_size": _BATCHES,
    "dynamic_batching": _BATCHES,
    "python_env": "NVIDIA's container brings vLLM's packages",
}
# What our own vLLM engine does not take either.
_ELSEWHERE = {
    "adapters": "it reads adapters from a multi_lora.json of your own; leave it out, or use "
    "layout: single without engine: vllm",
    "adapters_from": "it reads adapters from a multi_lora.json of your own",
    "max_loaded_adapters": "say max_loras in options.vllm",
    "device_map": "tensor_parallel_size in options.vllm spreads a model; leave it out",
    "quantization": "vLLM quantizes by arguments of its own; say quantization in options.vllm",
}
_OPTION_REASONS = {"default_max_tokens": "a request says max_tokens in sampling_parameters"}
_CANT = "NVIDIA's vLLM backend can't honour it: {}"
_REFUSED = f"{_CANT}; leave it out, or use layout: single with options: {{{{engine: vllm}}}}"
_OWN_CODE = "it runs none of our code around a request"


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Yields keys that contradict this layout: where, and what is wrong."""
    given, keys, task = entry.given, entry.keys, entry.task
    if keys.layout != "vllm-backend":
        return
    if task is not None and not task.has_vllm_backend:
        reason = f"NVIDIA's vLLM backend generates text, and this is {task.tag}"
        yield given["layout"], f"got vllm-backend, expected single: {reason}"
        return
    for name, node in given.items():
        is_set = hasattr(keys, name) and name not in entry.wrong and node.value is not None
        if name not in _KEYS and is_set and getattr(keys, name) != _left_out(name):
            elsewhere = _ELSEWHERE.get(name)
            refused = _REFUSED.format(_REASONS.get(name, _OWN_CODE))
            yield node, _CANT.format(elsewhere) if elsewhere else refused
    if task is not None and entry.options:
        yield from _broken_options(given.get("options"), task, entry.options)
    if keys.instance_group:
        yield from _broken_groups(given["instance_group"], keys.instance_group, entry.options)


def _left_out(name: str) -> object:
    """The value of a key that is left out: such a model streams."""
    return True if name == "streaming" else getattr(ModelKeys(), name)


def _broken_options(
    node: Node | None, task: Task, options: Mapping[str, object]
) -> Iterator[tuple[Node, str]]:
    for name, value in options.items():
        place = node.get(name) if node is not None else None
        if place is None or value == task.options[name].default:
            continue
        if name == "engine" and value not in _ENGINES:
            yield place, f"got {show(place)}, expected vllm: the layout is NVIDIA's vLLM backend"
        elif name not in _OPTIONS:
            reason = _OPTION_REASONS.get(name, _OWN_CODE)
            yield place, _REFUSED.format(reason)


def _broken_groups(
    node: Node, groups: tuple[InstanceGroup, ...], options: Mapping[str, object]
) -> Iterator[tuple[Node, str]]:
    """The backend takes an instance of KIND_GPU to its GPU, one of KIND_MODEL to all it sees."""
    num_gpus = vllm_arguments.num_gpus(options)
    expected = "expected [{kind: KIND_MODEL}]"
    if any(group.kind == "KIND_CPU" for group in groups):
        yield node, f"got KIND_CPU, {expected}: NVIDIA's vLLM container computes on GPUs"
    elif num_gpus > 1 and any(group.kind != "KIND_MODEL" for group in groups):
        reason = f"options.vllm spreads one engine over {num_gpus} GPUs"
        yield node, f"got {_kinds(groups)}, {expected}: {reason}"
    elif sum(group.count for group in groups if group.kind == "KIND_MODEL") > 1:
        reason = "a second engine would want the same GPUs"
        yield node, f"got several instances of KIND_MODEL, {expected}: {reason}"


def _kinds(groups: tuple[InstanceGroup, ...]) -> str:
    return ", ".join(sorted({group.kind for group in groups}))
