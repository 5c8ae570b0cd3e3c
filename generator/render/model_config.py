"""Parses config.pbtxt as Triton's own ModelConfig, and answers questions about one."""

from __future__ import annotations

import errno
import functools
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generator.errors import TemplateError
from generator.spec.triton_models import (
    ARM_PARAMETER,
    ENGINE_PARAMETER,
    IDLE_PARAMETER,
    LOAD_PARAMETER,
    ROLE_PARAMETER,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

LACKED_HERE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # by this process: the file may be good


def check(text: str, name: str) -> None:
    try:
        config: Any = parse(text)
    except TemplateError as error:
        raise TemplateError(f"{name}/config.pbtxt: {error}") from None
    if config.name != name:
        lacks = f'has no line name: "{name}", its folder\'s name'
        raise TemplateError(f"{name}/config.pbtxt: {lacks}")


def parse(text: str) -> Message:
    from google.protobuf import text_format

    try:
        config: Message = text_format.Parse(text, _messages().ModelConfig())
    except text_format.ParseError as error:
        raise TemplateError(f"can't be parsed: {error}") from None
    return config


@functools.cache
def _messages() -> Any:
    """Without the rest of tritonclient: importing gRPC takes longer than validating 100 models."""
    name = "tritonclient.grpc.model_config_pb2"
    found = importlib.util.find_spec("tritonclient")  # which is not imported
    for part in (name.rpartition(".")[0], name):
        found = found and PathFinder.find_spec(part, found.submodule_search_locations)
    if found is None or found.loader is None or name in sys.modules:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return sys.modules.setdefault(name, module)


def as_dict(config: Message) -> dict[str, Any]:
    """Converts it to what Triton hands to a model."""
    from google.protobuf import json_format

    found: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found


def from_dict(values: dict[str, Any]) -> Any:
    """Raises ParseError."""
    from google.protobuf import json_format

    return json_format.ParseDict(values, _messages().ModelConfig(), ignore_unknown_fields=True)


def type_word(tensor: Any) -> str:
    data_types = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type
    word: str = data_types.values_by_number[tensor.data_type].name
    return word


def parameters(config: Any) -> dict[str, str]:
    return {name: value.string_value for name, value in config.parameters.items()}


def engine_of(config_file: Path) -> str | None:
    """The engine that a front forwards to; None for other models and unreadable configs."""
    return parameters(_read(config_file)).get(ENGINE_PARAMETER)


def is_ours(config_file: Path) -> bool:
    """Returns whether it runs our library: other models of a repository do not."""
    return ROLE_PARAMETER in parameters(_read(config_file))


def num_processes(config_file: Path) -> int:
    """Python processes of a version, at least: without ``gpus`` Triton decides how many groups."""
    config = _read(config_file)
    if config.backend != "python":
        return 0
    groups = config.instance_group
    return sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) or 1


def arm_of(config_file: Path) -> str | None:
    return parameters(_read(config_file)).get(ARM_PARAMETER)


def load_of(config_file: Path) -> tuple[str, float | None]:
    found = parameters(_read(config_file))
    idle_s = found.get(IDLE_PARAMETER, "")
    return found.get(LOAD_PARAMETER, "always"), float(idle_s) if idle_s.isdigit() else None


def instance_groups(config_file: Path) -> list[dict[str, Any]]:
    return list(as_dict(_read(config_file)).get("instance_group", ()))


def output_types(config_file: Path) -> dict[str, str]:
    return {tensor.name: type_word(tensor) for tensor in _read(config_file).output}


def answers_once(config_file: Path) -> bool:
    """Returns whether a model has one answer for each request; False for an unreadable config."""
    config = _read(config_file)
    return bool(config.ListFields()) and not config.model_transaction_policy.decoupled


def steps_of(config_file: Path) -> list[str]:
    return [step.model_name for step in _read(config_file).ensemble_scheduling.step]


def _read(config_file: Path) -> Any:
    try:
        return _parsed(config_file.read_text(encoding="utf-8"))
    except OSError as error:
        if error.errno in LACKED_HERE:
            raise
    except (ValueError, TemplateError):
        pass
    return parse("")  # Triton says what is wrong with it


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    return parse(text)
