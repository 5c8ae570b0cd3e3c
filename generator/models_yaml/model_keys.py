"""The keys that a model in models.yaml can have, each with its check and its default.

One table; rules between several keys are in model_rules.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from generator.models_yaml.features import (
    adapter_keys,
    ensemble_keys,
    gguf_keys,
    metric_keys,
    quantization_keys,
)
from generator.models_yaml.features import python_env_keys as python_env_keys
from generator.spec import model_source
from generator.spec.model_spec import (
    MAX_ADAPTERS,
    DynamicBatching,
    Ensemble,
    InstanceGroup,
    ResponseCache,
    VersionPolicy,
)
from generator.yaml_file import schema
from generator.yaml_file.nodes import Key, Node
from generator.yaml_file.schema import Check, Report

MAX_NAME = 128
DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
INSTANCE_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")
# Each model that is not always loaded says so in its config.pbtxt.
LOADS = ("always", "on_demand", "manual")
MAX_IDLE_S = 30 * 24 * 3600
LAYOUTS = ("single", "ensemble", "vllm-backend")
MAX_INSTANCES = 128
MAX_CACHE_MIB = 2**20
_MERGED_MAPS = ("options", "dynamic_batching", "ensemble")
# Other names that people have for tasks: the Hub's tags, and pipelines of transformers.
_OTHER_NAMES = {
    "sentence-similarity": "feature-extraction",
    "embeddings": "feature-extraction",
    "sentiment-analysis": "text-classification",
    "text-ranking": "text-classification",
    "reranking": "text-classification",
    "ner": "token-classification",
    "conversational": "text-generation",
    **dict.fromkeys(("image-to-text", "visual-question-answering", "vqa"), "image-text-to-text"),
    "asr": "automatic-speech-recognition",
    "speech-to-text": "automatic-speech-recognition",
}
# What pipelines of transformers were called that no longer are: one model, several names.
_TEXT_TO_TEXT = re.compile(r"(summarization|translation)(_\w+)?")
_PIPELINES = re.compile(
    r"(zero-shot-)?(image|audio|object|video|mask|depth|keypoint)-[a-z-]+"
    r"|text-to-(audio|speech)|any-to-any"
    r"|(document|table)-question-answering"
)


def _dynamic_batching(node: Node, report: Report) -> DynamicBatching | None:
    if isinstance(node.value, bool):
        return DynamicBatching() if node.value else None
    keys = {
        "preferred_batch_size": schema.list_of(
            schema.integer(1, schema.INT32_MAX), "a list of batch sizes", unique=True
        ),
        "max_queue_delay_microseconds": schema.integer(0, schema.UINT64_MAX, "microseconds"),
    }
    return DynamicBatching(**schema.mapping(keys, "true, false or a map")(node, report))


def _instance_group(node: Node, report: Report) -> InstanceGroup:
    gpu_ids = schema.list_of(schema.integer(0, 1023), "a list of GPU numbers", unique=True)
    keys = {
        "count": schema.integer(1, MAX_INSTANCES),
        "kind": schema.choice(*INSTANCE_KINDS),
        "gpus": gpu_ids,
    }
    group = InstanceGroup(**schema.mapping(keys, "a map with count, kind, gpus")(node, report))
    gpus = node.get("gpus")
    if gpus is not None and group.kind in ("KIND_CPU", "KIND_MODEL"):
        report.add(gpus, f"{group.kind} takes no gpus; only KIND_GPU and KIND_AUTO do")
    return group


def _version_policy(node: Node, report: Report) -> VersionPolicy:
    versions = schema.list_of(schema.integer(1, 2**63 - 1), "a list of versions", unique=True)
    keys: dict[str, Check] = {
        "latest": schema.mapping({"num_versions": schema.integer(1, 2**32 - 1)}, "a map"),
        "all": schema.mapping({}, "an empty map, {}"),
        "specific": schema.mapping({"versions": versions}, "a map"),
    }
    given = schema.mapping(keys, "a map")(node, report)
    if isinstance(node.value, dict) and len(node.value) != 1:
        report.add(node, f"got {len(node.value)} keys, expected one of latest, all, specific")
    specific = given.get("specific", {}).get("versions", ())
    if "specific" in given and 1 not in specific:
        report.add(node, "versions must include 1, the version that is generated")
    latest = given["latest"].get("num_versions", 1) if "latest" in given else None
    return VersionPolicy(latest, "all" in given, specific)


def _response_cache(node: Node, report: Report) -> ResponseCache | None:
    if isinstance(node.value, bool):
        return ResponseCache() if node.value else None
    keys = {"size_mib": schema.integer(1, MAX_CACHE_MIB, "MiB in each instance")}
    return ResponseCache(**schema.mapping(keys, "true, false or a map")(node, report))


# What OpenAI's clients may send: other vendors' names have slashes in them, Ollama's colons.
_SERVED_NAMES = schema.list_of(
    schema.text(
        "letters (a-z, A-Z), digits and _ - . / : between them, at most 128 characters",
        rf"(?=.{{1,{MAX_NAME}}}\Z)[A-Za-z0-9]([A-Za-z0-9_.:/-]*[A-Za-z0-9])?",
    ),
    "a list of names",
    unique=True,
)


def _anything(node: Node, report: Report) -> Node:  # noqa: ARG001, a Check takes both
    """Checked elsewhere: what it may hold depends on other keys."""
    return node


@dataclass(frozen=True)
class KeyRule:
    """One key of a model: how it is checked and what it is when left out."""

    check: Check
    default: object = None
    required: bool = False


KEYS: dict[str, KeyRule] = {
    "name": KeyRule(schema.name(MAX_NAME), required=True),
    "served_names": KeyRule(schema.nullable(_SERVED_NAMES), ()),
    "task": KeyRule(schema.text("a task's name"), required=True),
    "model": KeyRule(schema.text("a Hub id or a local path"), required=True),
    "revision": KeyRule(model_source.REVISION),
    "gguf_file": KeyRule(schema.nullable(gguf_keys.check)),
    "adapters": KeyRule(schema.nullable(adapter_keys.check), ()),
    "adapters_from": KeyRule(schema.nullable(adapter_keys.SOURCES), ()),
    "max_loaded_adapters": KeyRule(schema.nullable(schema.integer(1, MAX_ADAPTERS, "adapters"))),
    "dtype": KeyRule(schema.choice(*DTYPES), "auto"),
    "quantization": KeyRule(quantization_keys.check),
    "device_map": KeyRule(schema.nullable(schema.choice(*DEVICE_MAPS))),
    "trust_remote_code": KeyRule(schema.boolean, False),
    "allow_pickle": KeyRule(schema.boolean, False),
    "allow_missing_weights": KeyRule(schema.boolean, False),
    "max_batch_size": KeyRule(schema.integer(0, schema.INT32_MAX), 0),
    "dynamic_batching": KeyRule(_dynamic_batching, DynamicBatching()),
    "instance_group": KeyRule(
        schema.nullable(schema.list_of(_instance_group, "a list of maps with count, kind, gpus"))
    ),
    "version_policy": KeyRule(schema.nullable(_version_policy)),
    "streaming": KeyRule(schema.boolean),  # left out: whether the task streams
    "hooks": KeyRule(schema.nullable(schema.text("a Python file"))),
    "python_env": KeyRule(python_env_keys.check),
    "metrics": KeyRule(metric_keys.check, ()),
    "response_cache": KeyRule(_response_cache),
    "load": KeyRule(schema.choice(*LOADS), "always"),
    "idle_s": KeyRule(schema.nullable(schema.integer(1, MAX_IDLE_S, "seconds"))),
    "layout": KeyRule(schema.choice(*LAYOUTS), "single"),
    "ensemble": KeyRule(ensemble_keys.check, Ensemble()),
    "canary": KeyRule(_anything),
    "options": KeyRule(_anything),
}

# Keys that there were, and what to use instead.
GONE = {
    "draft_model": "say speculative_method: ngram in options, or engine: vllm with its "
    "speculative_config",
    "shadow": "let a gateway mirror requests to the other model, as Envoy, NGINX and Kubernetes' "
    "Gateway API do",
}


def task_hint(tag: str, tasks: Collection[str]) -> str:
    """``; did you mean ...`` for another name of one of ``tasks``; empty where it is none."""
    other = _OTHER_NAMES.get(tag)
    if _TEXT_TO_TEXT.fullmatch(tag):
        other = "text2text-generation"
    if other in tasks:
        return f"; did you mean '{other}'?"
    if "pipeline" in tasks and _PIPELINES.fullmatch(tag):
        return f"; did you mean 'pipeline', with options: {{pipeline: {tag}}}?"
    return ""


def merge(defaults: Mapping[str, Node], own: Mapping[str, Node]) -> dict[str, Node]:
    """``own`` over ``defaults``: its maps key by key, everything else whole."""
    merged = {**defaults, **own}
    for name in _MERGED_MAPS:
        lower, upper = defaults.get(name), own.get(name)
        if lower is not None and upper is not None:
            merged[name] = _merge_maps(lower, upper)
    return merged


def _merge_maps(lower: Node, upper: Node) -> Node:
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return upper
    overridden = {key.name for key in upper.value}
    kept: dict[Key, Node] = {
        key: node for key, node in lower.value.items() if key.name not in overridden
    }
    return dataclasses.replace(upper, value={**kept, **upper.value})
