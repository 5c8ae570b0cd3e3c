"""The data files of a model's folder, such as model.json. Paths in them start from that folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from generator.render.manifest import ADAPTERS_FILE, ROUTING_FILE, SOURCES_FILE
from generator.spec.model_source import Source
from generator.spec.model_spec import ModelSpec
from generator.spec.python_env import PythonEnv
from generator.spec.task_folders import VERSION_FOLDER
from generator.spec.triton_models import LAUNCHER_FILE, STEPS, TritonModel, engine_name, step_name
from hf_triton.python_env.find_environment import ENVIRONMENT_FILE, LIBRARY_PATH
from hf_triton.runtime.regular_file import read_json

# The files that Triton's own backends load, in the version's folder.
NATIVE_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}
_json_text = json.JSONEncoder(sort_keys=True, allow_nan=False).encode


def newest_json(folder: Path, name: str) -> Any:
    """Reads a JSON file of a model's newest version; None where it can't be read."""
    found = folder.glob(f"[1-9]*/{name}")
    with contextlib.suppress(OSError, ValueError):
        return read_json(max(found, key=lambda path: int(path.parent.name)))
    return None


def data_files(model: TritonModel, repository: Path) -> dict[str, bytes]:
    files: dict[str, object] = {f"{VERSION_FOLDER}/model.json": _values(model, repository)}
    if model.has_environment and model.spec.python_env is not None:
        folder = repository / model.name
        files[f"{VERSION_FOLDER}/{ENVIRONMENT_FILE}"] = _environment(model.spec.python_env, folder)
    if model.role in ("engine", "whole"):
        files |= _files_read_while_it_serves(model, repository)
    found = {path: json_bytes(values) for path, values in files.items()}
    if model.has_environment:  # Triton starts this script as the stub
        found[LAUNCHER_FILE] = (LIBRARY_PATH.parent / LAUNCHER_FILE).read_bytes()
    return found


def json_bytes(values: object) -> bytes:
    return (msgspec.json.format(_json_text(values)) + "\n").encode()  # quicker than json's indent


def _values(model: TritonModel, repository: Path) -> dict[str, object]:
    if model.role == "front":
        most = model.spec.max_batch_size
        return {"name": model.name, "engine": model.engine, "max_batch_size": most}
    if model.runs_python:
        return model_values(model, repository)
    # These folders run no Python of ours: model.json only describes them to readers.
    if model.role == "ensemble":
        return {"name": model.name, "steps": [step_name(model.name, step) for step in STEPS]}
    return {"name": model.name, "file": NATIVE_FILES[model.backend]}


def model_values(model: TritonModel, repository: Path) -> dict[str, object]:
    spec, added = model.spec, dict[str, object]()
    for name in ("gguf_file", "allow_pickle", "allow_missing_weights"):
        if value := getattr(spec, name):
            added[name] = value
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
        **added,
    }


def _source_values(model: TritonModel, part: ModelSpec, repository: Path) -> dict[str, object]:
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
    """A Hub id or a path; a relative path starts from the model's folder."""
    if source.folder is None or Path(source.text).is_absolute():
        return source.text
    # If the repository is a link, `..` leads out of its target's folder: resolve it.
    folder = repository.resolve() / model.name
    return Path(os.path.relpath(source.folder, folder)).as_posix()


def _files_read_while_it_serves(model: TritonModel, repository: Path) -> dict[str, object]:
    """The files with a canary's arms, the adapters, and where requests may load adapters from."""
    spec, found = model.spec, dict[str, object]()
    if spec.canary is not None:
        arms = [
            {
                "name": arm.name,
                "engine": (engine_name if spec.streaming else str)(arm.model_of(spec.name)),
                "weight": int(arm.weight) if arm.weight.denominator == 1 else float(arm.weight),
            }
            for arm in spec.canary.arms
        ]
        found[ROUTING_FILE] = {"arms": arms, "sticky": spec.canary.sticky}
    if spec.takes_adapters:
        found[ADAPTERS_FILE] = [
            {
                "name": part.adapter,
                **_source_values(model, part, repository),
                **({"look": seen} if (seen := fingerprint(part)) else {}),
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


def _environment(env: PythonEnv, model_folder: Path) -> dict[str, object]:
    if env.folder is None:
        digest, below = env.digest, env.system_site_packages
        return {"written": env.written, "requirements": digest, "below": below}
    path = env.written
    if not Path(path).expanduser().is_absolute():
        path = Path(os.path.relpath(env.folder, model_folder.resolve())).as_posix()
    return {"written": env.written, "path": path}


def fingerprint(spec: ModelSpec) -> str:
    """Fingerprints local files, such as ``3 files, 123 bytes, newest 2026-01-01T00:00:00Z,
    1a2b3c4d``; empty where there are none. Times are whole seconds: layers of images keep no more.
    """
    folder = spec.source.folder
    seen: list[tuple[str, int, int]] = []
    for path in () if folder is None else _files(folder):
        with contextlib.suppress(OSError):  # gone meanwhile
            found = path.stat()
            name = os.path.relpath(path, folder)
            seen.append((name, found.st_size, int(found.st_mtime)))
    if not seen:
        return ""
    newest = datetime.fromtimestamp(max(seconds for *_, seconds in seen), timezone.utc)
    digest = hashlib.sha256(repr(seen).encode()).hexdigest()[:8]
    size = sum(size for _, size, _ in seen)
    return f"{len(seen)} files, {size} bytes, newest {newest:%Y-%m-%dT%H:%M:%SZ}, {digest}"


def _files(folder: Path) -> Iterator[Path]:
    """The files that a model may be loaded from, those of sentence-transformers' modules too."""
    if folder.is_file():
        yield folder
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # gone meanwhile: a load tells
        return
    for entry in entries:
        if entry.is_file() and not entry.name.startswith(".") and not entry.name.endswith(".md"):
            yield Path(entry.path)
        elif entry.is_dir() and entry.name[0].isdigit():
            yield from (path for path in sorted(Path(entry.path).iterdir()) if path.is_file())
