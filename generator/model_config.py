"""config.pbtxt, parsed as Triton's own ModelConfig and held against the rules Triton has for it.

A config that parses can still be refused when its model loads; the rules here are those that Triton
checks only then (core/src/model_config_utils.cc, ValidateModelConfig and ValidateInstanceGroup),
and two of our own: no tensor name twice, and no version policy without the generated version.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from generator.errors import TemplateError

if TYPE_CHECKING:
    from google.protobuf.message import Message

GENERATED_VERSION = 1
_KIND_CPU, _KIND_MODEL = "KIND_CPU", "KIND_MODEL"


def check(text: str, name: str) -> None:
    """Raises TemplateError, with every rule that is broken, unless Triton would load ``text``."""
    # Parsing takes milliseconds and most models share a config but for its name: parsed once.
    line = f'name: "{name}"'
    found = re.search(r'^name: "[^"]*"$', text, re.MULTILINE)
    problems = _problems(text.replace(line, 'name: "model"', 1) if found else text)
    if found is None or found[0] != line:
        problems = (*problems, f"has no line {line}, its folder's name")
    if problems:
        raise TemplateError("\n".join(f"{name}/config.pbtxt: {problem}" for problem in problems))


def parse(text: str) -> Message:
    """The ModelConfig that ``text`` is. Raises TemplateError where it is none."""
    # Imported here: gRPC's import costs more than validating a small models.yaml.
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        config: Message = text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise TemplateError(f"can't be parsed: {error}") from None
    return config


def rules_broken(config: Any) -> Iterator[str]:
    """What Triton would refuse at load, one line each."""
    if not config.backend:
        yield "backend is missing"
    if config.max_batch_size < 0:
        yield f"max_batch_size is {config.max_batch_size}, must not be negative"
    yield from _tensor_rules("input", config.input)
    yield from _tensor_rules("output", config.output)
    yield from _batching_rules(config)
    for group in config.instance_group:
        yield from _instance_group_rules(group)
    yield from _version_rules(config.version_policy)


@functools.lru_cache(maxsize=4096)
def _problems(text: str) -> tuple[str, ...]:
    try:
        return tuple(rules_broken(parse(text)))
    except TemplateError as error:
        return (str(error),)


def _tensor_rules(what: str, tensors: Any) -> Iterator[str]:
    names = [tensor.name for tensor in tensors]
    if not names:
        yield f"no {what} is declared"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{what} {name} is declared twice"
    for tensor in tensors:
        if not tensor.name:
            yield f"an {what} has no name"
        if tensor.data_type == 0:
            yield f"{what} {tensor.name} has no data_type"
        if not tensor.dims:
            yield f"{what} {tensor.name} has no dims"
        if any(size < 1 and size != -1 for size in tensor.dims):
            yield f"{what} {tensor.name} has dims {list(tensor.dims)}, each must be -1 or above 0"


def _batching_rules(config: Any) -> Iterator[str]:
    for size in config.dynamic_batching.preferred_batch_size:
        if not 1 <= size <= config.max_batch_size:
            largest = config.max_batch_size
            yield f"preferred_batch_size {size} is not from 1 to max_batch_size, {largest}"


def _instance_group_rules(group: Any) -> Iterator[str]:
    kind = group.Kind.Name(group.kind)
    if group.count < 1:
        yield f"an instance_group has count {group.count}, must be at least 1"
    if group.gpus and kind in (_KIND_CPU, _KIND_MODEL):
        yield f"an instance_group of {kind} lists gpus"
    if any(gpu < 0 for gpu in group.gpus) or len(set(group.gpus)) < len(group.gpus):
        yield f"an instance_group has gpus {list(group.gpus)}, a negative one or one twice"


def _version_rules(policy: Any) -> Iterator[str]:
    chosen = policy.WhichOneof("policy_choice")
    if chosen == "latest" and policy.latest.num_versions < 1:
        yield "version_policy latest has num_versions 0, must be at least 1"
    if chosen == "specific" and GENERATED_VERSION not in policy.specific.versions:
        yield f"version_policy specific leaves out version {GENERATED_VERSION}, the generated one"
