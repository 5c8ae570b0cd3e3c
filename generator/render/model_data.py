"""The files of a model's folder that are data: what model.py reads, and what lies beside it.

Paths in them start from the model's folder. Reads the config.json of local models; renders no
template.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import msgspec

from generator.render.digest import ADAPTERS_FILE, ROUTING_FILE, SOURCES_FILE
from generator.render.ensemble_tensors import NATIVE_FILES
from generator.render.vllm_model_json import engine_arguments
from generator.spec import local_files
from generator.spec.model_source import Source
from generator.spec.model_spec import ModelSpec
from generator.spec.python_env import PythonEnv
from generator.spec.runtime_rules import ENVIRONMENT_CODE, ENVIRONMENT_FILE
from generator.spec.task_folders import VERSION_FOLDER
from generator.spec.triton_models import LAUNCHER_FILE, STEPS, TritonModel, engine_name, step_name
from generator.yaml_file.regular_file import read_json

VALUES_FILE = f"{VERSION_FOLDER}/model.json"
LABELS_FILE = f"{VERSION_FOLDER}/labels.txt"


def data_files(model: TritonModel, repository: Path) -> dict[str, bytes]:
    """The data files of a model's folder by path, but for its labels."""
    files: dict[str, object] = {VALUES_FILE: _values(model, repository)}
    if model.has_environment and model.spec.python_env is not None:
        folder = repository / model.name
        files[f"{VERSION_FOLDER}/{ENVIRONMENT_FILE}"] = _environment(model.spec.python_env, folder)
    if model.role in ("engine", "whole"):
        files |= _files_read_while_it_serves(model, repository)
    found = {path: json_bytes(values) for path, values in files.items()}
    return {**found, LAUNCHER_FILE: _launcher()} if model.has_environment else found


def json_bytes(values: object) -> bytes:
    """The values, keys sorted, as a file."""
    written = json.dumps(values, sort_keys=True, allow_nan=False)
    return (msgspec.json.format(written) + "\n").encode()  # json indents in Python


def labels(spec: ModelSpec) -> bytes:
    """The file that Triton's classification extension names, one label in a line, in the order of
    the model's logits; empty where they are not known, or one has several lines. Of a model on the
    Hub they are known only where it is loaded.
    """
    if spec.source.folder is None:
        return b""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        config = read_json(spec.source.folder / "config.json")
        found = {int(index): str(label) for index, label in config["id2label"].items()}
        lines = [found[index] for index in range(len(found))]
        text = "".join(f"{line}\n" for line in lines)
        if config.get("num_labels", len(lines)) == len(lines) == text.count("\n"):
            return text.encode()
    return b""


def _values(model: TritonModel, repository: Path) -> dict[str, object]:
    """The content of model.json."""
    if model.role == "front":
        most = model.spec.max_batch_size
        return {"name": model.name, "engine": model.engine, "max_batch_size": most}
    if model.role == "vllm":
        return engine_arguments(model.spec, repository)
    if model.runs_python:
        return model_values(model, repository)
    # Of a folder that runs no Python of ours: for whoever reads it.
    if model.role == "ensemble":
        return {"name": model.name, "steps": [step_name(model.name, step) for step in STEPS]}
    return {"name": model.name, "file": NATIVE_FILES[model.backend]}


def model_values(model: TritonModel, repository: Path) -> dict[str, object]:
    """The values that model.py reads from model.json."""
    spec = model.spec
    return {
        "name": model.name,
        "public_name": spec.name,
        "decoupled": model.is_decoupled,
        "task": spec.task,
        "dtype": spec.dtype,
        "device_map": spec.device_map,
        "trust_remote_code": spec.trust_remote_code,
        "max_batch_size": spec.max_batch_size,
        "options": dict(spec.options),
        **_source_values(model, spec, repository),
        **_added_values(model),
    }


def _added_values(model: TritonModel) -> dict[str, object]:
    """The values of model.json that only some models have."""
    spec = model.spec
    names = ("gguf_file", "allow_pickle", "allow_missing_weights", "max_loaded_adapters")
    added: dict[str, object] = {name: value for name in names if (value := getattr(spec, name))}
    if spec.ensemble is not None:
        added["role"] = model.role
        added["pad_to_multiple_of"] = spec.ensemble.pad_to_multiple_of
    if spec.quantization is not None:
        method = spec.quantization.method
        added["quantization"] = {"method": method, **spec.quantization.arguments}
    if spec.takes_adapters:
        added["adapters_file"] = Path(ADAPTERS_FILE).name
    if spec.hooks is not None:
        added["hooks"] = spec.hooks.path.name
    if spec.metrics:
        added["metrics"] = {
            name: {**dataclasses.asdict(metric), "help": metric.help or name.replace("_", " ")}
            for name, metric in spec.metrics.items()
        }
    if spec.response_cache is not None:
        added["response_cache_mib"] = spec.response_cache.size_mib
    return added


def _source_values(model: TritonModel, part: ModelSpec, repository: Path) -> dict[str, object]:
    """The source of a model's, or an adapter's, files."""
    values: dict[str, object] = {
        "model": _written_source(model, part.source, repository),
        "local": part.source.is_local,
        "revision": part.locked.commit if part.locked else part.revision,
    }
    if part.locked is not None:
        files = part.locked.files.items()
        values["locked_files"] = {path: dataclasses.asdict(file) for path, file in files}
    return values


def _written_source(model: TritonModel, source: Source, repository: Path) -> str:
    """A Hub id, or a path; a relative one starts from the model's folder."""
    if source.folder is None or Path(source.text).is_absolute():
        return source.text
    # The operating system takes `..` from where a linked repository really is.
    folder = repository.resolve() / model.name
    return Path(os.path.relpath(source.folder, folder)).as_posix()


def _files_read_while_it_serves(model: TritonModel, repository: Path) -> dict[str, object]:
    """The arms that share a model's requests, by the names of their Triton models; its adapters,
    where its engine takes others while it serves, and where those may come from that requests load.
    """
    spec, found = model.spec, dict[str, object]()
    if spec.canary is not None:
        arms = [
            {
                "name": arm.name,
                "engine": (engine_name if spec.streaming else str)(arm.model_of(spec.name)),
                "weight": _number(arm.weight),
            }
            for arm in spec.canary.arms
        ]
        found[ROUTING_FILE] = {"arms": arms, "sticky": spec.canary.sticky}
    if spec.takes_adapters:
        found[ADAPTERS_FILE] = [
            {
                "name": part.adapter,
                **_source_values(model, part, repository),
                **({"look": look} if (look := local_files.look(part)) else {}),
            }
            for part in spec.parts
            if part.adapter
        ]
    if spec.adapters_from:
        found[SOURCES_FILE] = [
            {"model": _written_source(model, source, repository), "local": source.is_local}
            for source in spec.adapters_from
        ]
    return found


def _number(share: Fraction) -> int | float:
    return int(share) if share.denominator == 1 else float(share)


@lru_cache
def _launcher() -> bytes:
    """The script that Triton starts as the model's Python stub; it finds the environment."""
    return (ENVIRONMENT_CODE / LAUNCHER_FILE).read_bytes()


def _environment(env: PythonEnv, model_folder: Path) -> dict[str, object]:
    """The values that find_environment.py reads, equal on every machine."""
    if env.folder is None:
        digest, below = env.digest, env.system_site_packages
        return {"written": env.written, "requirements": digest, "below": below}
    path = env.written
    if not Path(path).expanduser().is_absolute():
        path = Path(os.path.relpath(env.folder, model_folder.resolve())).as_posix()
    return {"written": env.written, "path": path}
