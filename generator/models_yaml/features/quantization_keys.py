"""``quantization:`` of a model: the methods, what each can be told, and where it works.

The arguments are those of transformers' configuration for the method, under its names; what is
done with them is hf_triton/runtime/weights/quantization.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from generator.models_yaml.features.entry import Entry
from generator.spec.model_spec import Quantization
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Check, Report

_MODULES = schema.list_of(schema.text("a module's name"), "a list of modules' names", unique=True)
_TORCHAO: dict[str, Check] = {"modules_to_not_convert": _MODULES}
_BITSANDBYTES: dict[str, Check] = {
    "llm_int8_skip_modules": _MODULES,
    "llm_int8_enable_fp32_cpu_offload": schema.boolean,
}
METHODS: dict[str, dict[str, Check]] = {
    "int8": _TORCHAO,
    "int8_dynamic": _TORCHAO,
    "int4": {**_TORCHAO, "group_size": schema.choice(32, 64, 128, 256)},
    "bitsandbytes_8bit": {
        **_BITSANDBYTES,
        "llm_int8_threshold": schema.number(0),
    },
    "bitsandbytes_4bit": {
        **_BITSANDBYTES,
        "bnb_4bit_quant_type": schema.choice("fp4", "nf4"),
        "bnb_4bit_compute_dtype": schema.choice("float32", "float16", "bfloat16"),
        "bnb_4bit_use_double_quant": schema.boolean,
    },
}
# Engines that take no weights quantized at load, each with what it has instead.
_ENGINES = {
    "vllm": "vLLM quantizes by its own arguments, under options.vllm",
    "onnxruntime": "onnxruntime quantizes what it exports, by options.quantization",
    "torch-compile": "torch-compile computes whole weights; engine torch computes quantized ones",
}
_EXPECTED = f"one of {', '.join(METHODS)}, or a map with such a 'method'"


def check(node: Node, report: Report) -> Quantization | None:
    """A method's name, or a map of ``method`` and its arguments; null is none."""
    if node.value is None:
        return None
    if isinstance(node.value, dict):
        return _with_arguments(node, report)
    return _method(node, report, _EXPECTED)


def _method(node: Node, report: Report, expected: str) -> Quantization | None:
    if isinstance(node.value, str) and node.value in METHODS:
        return Quantization(node.value)
    report.expected(node, expected)
    return None


def _with_arguments(node: Node, report: Report) -> Quantization | None:
    named = node.get("method")
    if named is None:
        report.add(node, f"missing key 'method': one of {', '.join(METHODS)}")
        return None
    quantization = _method(named, report, f"one of {', '.join(METHODS)}")
    if quantization is None:
        return None
    checks = {"method": schema.text("a method"), **METHODS[quantization.method]}
    arguments = schema.mapping(checks, _EXPECTED)(node, report)
    del arguments["method"]
    return Quantization(quantization.method, arguments)


def broken_rules(entry: Entry) -> Iterator[tuple[Node, str]]:
    """Each rule that a model breaks: where, and what is wrong."""
    given, values, task = entry.given, entry.values, entry.task
    quantization = values.get("quantization")
    if quantization is None:
        return
    node, options = given["quantization"], given.get("options")
    engine = options.get("engine") if options is not None else None
    if task is not None and not task.quantizes:
        yield node, f"expected null: models of the task {task.tag} keep their weights whole"
    elif engine is not None and engine.value in _ENGINES:
        yield node, f"expected null: {_ENGINES[engine.value]}"
    elif values.get("layout") == "ensemble" and values["ensemble"].is_native:
        yield node, "expected null: ensemble.backend computes an exported file as it is"
    elif quantization.method == "int4":
        yield from _int4(node, given, values)


def _int4(
    node: Node, given: Mapping[str, Node], values: Mapping[str, Any]
) -> Iterator[tuple[Node, str]]:
    """What torchao's int4 product, a CUDA kernel in bfloat16, can't do."""
    groups = values.get("instance_group") or ()
    if any(group.kind == "KIND_CPU" for group in groups):
        message = "int4 needs a GPU, and instance_group has KIND_CPU; expected bitsandbytes_4bit"
        yield node, f"{message}, which runs on both, or int8"
    if values.get("dtype") not in (None, "auto", "bfloat16"):
        yield given["dtype"], f"got {values['dtype']}, expected bfloat16: int4 computes in no other"
