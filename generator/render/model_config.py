"""Parses config.pbtxt as Triton's own ModelConfig, and checks Triton's rules for it.

A config that parses can still be refused when its model loads; the rules here are those that Triton
checks only then (core/src/model_config_utils.cc, ValidateModelConfig and ValidateInstanceGroup),
and our own: no tensor name twice, no version policy without the generated version, and parameters
that tell the model's role as it is.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from generator.errors import TemplateError
from generator.spec.triton_models import (
    ARM_PARAMETER,
    DECOUPLED,
    ENGINE_PARAMETER,
    IDLE_PARAMETER,
    LOAD_PARAMETER,
    ROLE_PARAMETER,
    STEPS,
    TASK_PARAMETER,
    Role,
    engine_name,
    runs_our_code,
    step_name,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

GENERATED_VERSION = 1
_KIND_CPU, _KIND_MODEL = "KIND_CPU", "KIND_MODEL"


def check(text: str, name: str) -> None:
    """Raises TemplateError, with every rule that is broken, unless Triton would load ``text``."""
    problems = _problems(text, name)
    if problems:
        raise TemplateError("\n".join(f"{name}/config.pbtxt: {problem}" for problem in problems))


def parse(text: str) -> Message:
    """The ModelConfig that ``text`` is. Raises TemplateError where it is none."""
    from google.protobuf import text_format

    try:
        config: Message = text_format.Parse(text, _messages().ModelConfig())
    except text_format.ParseError as error:
        raise TemplateError(f"can't be parsed: {error}") from None
    return config


@functools.cache
def _messages() -> Any:
    """The messages of tritonclient without the rest of it: importing gRPC takes longer than
    validating a hundred models.
    """
    name = "tritonclient.grpc.model_config_pb2"
    found = importlib.util.find_spec("tritonclient")  # which is not imported
    for part in (name.rpartition(".")[0], name):
        found = found and PathFinder.find_spec(part, found.submodule_search_locations)
    if found is None or found.loader is None or name in sys.modules:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return sys.modules.setdefault(name, module)


def as_text(config: Message) -> str:
    """The config.pbtxt of a ModelConfig."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config)
    return text


def as_dict(text: str) -> dict[str, Any]:
    """The ModelConfig that ``text`` is, as Triton hands it to a model. Raises TemplateError."""
    config = parse(text)
    from google.protobuf import json_format

    found: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found


def rules_broken(config: Any) -> Iterator[str]:
    """What Triton would refuse at load, one line each."""
    if not config.backend and config.platform != "ensemble":
        yield "backend is missing"
    if config.max_batch_size < 0:
        yield f"max_batch_size is {config.max_batch_size}, must not be negative"
    yield from _tensor_rules("input", config.input)
    yield from _tensor_rules("output", config.output)
    yield from _batching_rules(config)
    for group in config.instance_group:
        yield from _instance_group_rules(group)
    yield from _version_rules(config.version_policy)
    yield from _role_rules(config)
    yield from _ensemble_rules(config)


def type_word(tensor: Any) -> str:
    """The word that a ModelInput's or ModelOutput's data type has in config.pbtxt."""
    data_types = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type
    word: str = data_types.values_by_number[tensor.data_type].name
    return word


def parameters(config: Any) -> dict[str, str]:
    """The ``parameters`` of a ModelConfig."""
    return {name: value.string_value for name, value in config.parameters.items()}


def engine_of(config_file: Path) -> str | None:
    """The model that this one, a front, forwards to; None of any other, or where none is read."""
    return parameters(_read(config_file)).get(ENGINE_PARAMETER)


def is_ours(config_file: Path) -> bool:
    """Whether the model runs our library."""
    return runs_our_code(parameters(_read(config_file)).get(ROLE_PARAMETER))


def num_processes(config_file: Path) -> int:
    """The Python processes that Triton runs for a version of the model, at least: without
    ``gpus`` Triton decides how many groups there are.
    """
    config = _read(config_file)
    if config.backend != "python":
        return 0
    groups = config.instance_group
    return sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) or 1


def arm_of(config_file: Path) -> str | None:
    """The model that has this one as an arm of its own; None of any other."""
    return parameters(_read(config_file)).get(ARM_PARAMETER)


def load_of(config_file: Path) -> tuple[str, float | None]:
    """When the model is loaded, and after how many seconds in which nobody asks it may go."""
    found = parameters(_read(config_file))
    idle_s = found.get(IDLE_PARAMETER, "")
    return found.get(LOAD_PARAMETER, "always"), float(idle_s) if idle_s.isdigit() else None


def instance_groups(config_file: Path) -> list[dict[str, Any]]:
    """The model's ``instance_group``, as ``as_dict`` has it."""
    from google.protobuf import json_format

    found: dict[str, Any] = json_format.MessageToDict(
        _read(config_file), preserving_proto_field_name=True
    )
    return list(found.get("instance_group", ()))


def steps_of(config_file: Path) -> list[str]:
    """The models that this one, an ensemble, is made of; none of any other, or unread."""
    return [step.model_name for step in _read(config_file).ensemble_scheduling.step]


def _read(config_file: Path) -> Any:
    try:
        return _parsed(config_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TemplateError):
        return parse("")  # Triton says what is wrong with it


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    """For several questions about one file; nobody changes it."""
    return parse(text)


@functools.lru_cache(maxsize=4096)
def _problems(text: str, name: str) -> tuple[str, ...]:
    try:
        config: Any = parse(text)
    except TemplateError as error:
        return (str(error),)
    wrong = f'has no line name: "{name}", its folder\'s name'
    return (*rules_broken(config), *([wrong] if config.name != name else []))


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


def _role_rules(config: Any) -> Iterator[str]:
    found = parameters(config)
    role, engine = found.get(ROLE_PARAMETER), found.get(ENGINE_PARAMETER)
    if not found.get(TASK_PARAMETER):
        yield f"parameter {TASK_PARAMETER} is missing"
    if role not in get_args(Role):
        yield f"parameter {ROLE_PARAMETER} is {role}, must be {', '.join(get_args(Role))}"
    if config.model_transaction_policy.decoupled != (role in DECOUPLED):
        yield f"a model is decoupled where it is an engine and only there; this one is {role}"
    if engine != (engine_name(config.name) if role == "front" else None):
        yield f"parameter {ENGINE_PARAMETER} must be <name>_stream in a front, and nowhere else"
    groups = [(group.count, group.Kind.Name(group.kind)) for group in config.instance_group]
    if role == "front" and groups != [(1, _KIND_CPU)]:
        yield f"a front has one instance of {_KIND_CPU}; this one has {groups}"


def _ensemble_rules(config: Any) -> Iterator[str]:
    """What Triton demands of an ensemble only when it loads: every tensor must come from somewhere
    and be of use to someone (core/src/ensemble_utils.cc and ValidateEnsembleSchedulingConfig of
    core/src/model_config_utils.cc). One line for each rule; none where the config is no ensemble's
    and does not say it is.
    """
    role = config.parameters[ROLE_PARAMETER].string_value
    steps = config.ensemble_scheduling.step
    if (config.platform == "ensemble", bool(steps)) != (role == "ensemble",) * 2:
        yield "platform ensemble and ensemble_scheduling belong to role ensemble, and only to it"
    elif role == "ensemble":
        yield from _step_rules(config, steps)


def _step_rules(config: Any, steps: Any) -> Iterator[str]:
    expected = [step_name(config.name, step) for step in STEPS]
    if [step.model_name for step in steps] != expected:
        yield f"the steps must be {', '.join(f'<name>_{step}' for step in STEPS)}"
    if config.instance_group or config.HasField("dynamic_batching") or config.backend:
        yield "an ensemble has no backend, instance_group or dynamic_batching of its own"
    known = {tensor.name for tensor in config.input}
    used: set[str] = set()
    for number, step in enumerate(steps, 1):
        read = set(step.input_map.values())
        if read - known:
            missing = ", ".join(sorted(read - known))
            yield f"step {number} reads {missing}, which no step before it makes"
        used |= read
        known |= set(step.output_map.values())
    outputs = {tensor.name for tensor in config.output}
    for name in sorted(outputs - known):
        yield f"output {name} is made by no step"
    for name in sorted(known - used - outputs):
        yield f"{name} is read by no step"
