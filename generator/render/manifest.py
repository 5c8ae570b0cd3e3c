"""The manifest of a model folder: which files are ours, and the hash each was written with."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from generator.spec.triton_models import ADAPTERS_PARAMETER, LOCAL_FILES_PARAMETER
from hf_triton.runtime.weights.hub_files import is_safe_path

MANIFEST_FILE = ".hf-triton.json"
WEIGHTS_FOLDER = "hf_cache"
CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "1/model.py"
# The running model reads these again and again, so a change needs no reload.
ROUTING_FILE = "routing.json"
ADAPTERS_FILE = "1/adapters.json"
# OpenAI's port reads here from where requests may load adapters.
SOURCES_FILE = "1/adapters_from.json"
DIGEST_PARAMETER = "hf_triton_digest"

# Found without the parser, which takes 0.4 ms: comparing a thousand models has to take a second.
_DIGEST = re.compile(rf'key: "{DIGEST_PARAMETER}"\s+value {{ string_value: "([0-9a-f]{{64}})" }}')
_LINE = re.compile(rb'^parameters { key: "%s" .*\n?' % DIGEST_PARAMETER.encode(), re.MULTILINE)
_LOCAL_FILES = re.compile(
    rb'^parameters { key: "%s" .*\n?' % LOCAL_FILES_PARAMETER.encode(), re.MULTILINE
)
_ADAPTERS = re.compile(rb'^(parameters { key: "%s" ).*' % ADAPTERS_PARAMETER.encode(), re.MULTILINE)
# Paths relative to the model's folder, with ``/``, and the SHA-256 of each in hex.
Manifest: TypeAlias = Mapping[str, str]


class _File(msgspec.Struct):
    files: dict[str, Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]]


@functools.lru_cache(maxsize=8192)
def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def to_bytes(known: Manifest) -> bytes:
    """The file's content: sorted, without anything that changes from run to run."""
    return msgspec.json.format(msgspec.json.encode(_File(dict(known)), order="sorted")) + b"\n"


def parse(raw: bytes) -> Manifest:
    """Reads a manifest. Raises ValueError for a form that hf-triton does not write."""
    try:
        files = msgspec.json.decode(raw, type=_File).files
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    for path in files:
        if not is_safe_path(path) or path.partition("/")[0] in (WEIGHTS_FOLDER, MANIFEST_FILE):
            raise ValueError(f"{path!r} is not a path inside the model's folder")
    return files


def with_digest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The rendered files, with their digest in config.pbtxt; replaces one that is there."""
    config = files[CONFIG_FILE]
    if DIGEST_PARAMETER.encode() in config:
        config = _LINE.sub(b"", config)
    config = config.rstrip(b"\n") + b"\n"
    line = parameter_line(DIGEST_PARAMETER, f'"{_digest({**files, CONFIG_FILE: config})}"')
    return {**files, CONFIG_FILE: config + line.encode()}


def parameter_line(key: str, quoted: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: {quoted} }} }}\n'


def without_fingerprint(config: bytes) -> bytes:
    """A config.pbtxt without the lines that change when a local model's files change."""
    return _LOCAL_FILES.sub(b"", _LINE.sub(b"", config))


def digest_in(config: bytes) -> str:
    found = _DIGEST.search(config.decode(errors="replace"))
    return found[1] if found else ""


def digest_of_served(config: Mapping[str, Any] | None) -> str:
    parameters = (config or {}).get("parameters")
    entry = parameters.get(DIGEST_PARAMETER) if isinstance(parameters, dict) else None
    return str(entry.get("string_value", "")) if isinstance(entry, dict) else ""


def _digest(files: Mapping[str, bytes]) -> str:
    """Hashes all but the files that the running model reads again, and the adapters' names."""
    found = hashlib.sha256()
    for path, content in sorted(files.items()):
        if path == CONFIG_FILE and ADAPTERS_FILE in files:
            content = _ADAPTERS.sub(rb"\1", content)
        if path not in (ROUTING_FILE, ADAPTERS_FILE, SOURCES_FILE):
            found.update(f"{digest(content)}  {path}\n".encode())
    return found.hexdigest()
