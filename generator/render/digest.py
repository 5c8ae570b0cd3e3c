"""The digest of a Triton model's rendered files. It is a parameter in config.pbtxt, so that a
running server can be asked what it runs (``ServerApi.model_config``).

Knows neither where files lie nor which version they are written as.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from generator.render import manifest
from generator.spec.triton_models import ADAPTERS_PARAMETER, LOCAL_FILES_PARAMETER

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "1/model.py"
# Read again and again by the running model: a change of them needs no reload.
ROUTING_FILE = "routing.json"
ADAPTERS_FILE = "1/adapters.json"
# Read by OpenAI's port: where adapters may come from that requests load.
SOURCES_FILE = "1/adapters_from.json"
DIGEST_PARAMETER = "hf_triton_digest"

# Read without the parser, which takes 0.4 ms: a thousand models are compared in a second.
_DIGEST = re.compile(rf'key: "{DIGEST_PARAMETER}"\s+value {{ string_value: "([0-9a-f]{{64}})" }}')
_LINE = re.compile(rb'^parameters { key: "%s" .*\n?' % DIGEST_PARAMETER.encode(), re.MULTILINE)
_LOCAL_FILES = re.compile(
    rb'^parameters { key: "%s" .*\n?' % LOCAL_FILES_PARAMETER.encode(), re.MULTILINE
)
_ADAPTERS = re.compile(rb'^(parameters { key: "%s" ).*' % ADAPTERS_PARAMETER.encode(), re.MULTILINE)


def with_digest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The rendered files, by paths such as ``1/model.json``, with their digest in config.pbtxt, in
    the place of one that is there.
    """
    config = files[CONFIG_FILE]
    if DIGEST_PARAMETER.encode() in config:
        config = _LINE.sub(b"", config)
    config = config.rstrip(b"\n") + b"\n"
    line = parameter_line(DIGEST_PARAMETER, _digest({**files, CONFIG_FILE: config}))
    return {**files, CONFIG_FILE: config + line.encode()}


def parameter_line(key: str, value: str) -> str:
    """A parameter of config.pbtxt, whose value has nothing to escape."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def without_look(config: bytes) -> bytes:
    """A config.pbtxt without what changes where a local model's files look otherwise."""
    return _LOCAL_FILES.sub(b"", _LINE.sub(b"", config))


def digest_in(config: bytes) -> str:
    """The digest that a config.pbtxt of ours carries; empty where it has none."""
    found = _DIGEST.search(config.decode(errors="replace"))
    return found[1] if found else ""


def digest_of_served(config: Mapping[str, Any] | None) -> str:
    """The digest in the configuration that a server gave of a loaded model; empty without one."""
    parameters = (config or {}).get("parameters")
    entry = parameters.get(DIGEST_PARAMETER) if isinstance(parameters, dict) else None
    return str(entry.get("string_value", "")) if isinstance(entry, dict) else ""


def _digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the paths and the SHA-256 of each file but those that are read again while the
    model runs, and without the names that config.pbtxt has of one of them.
    """
    found = hashlib.sha256()
    for path, content in sorted(files.items()):
        if path == CONFIG_FILE and ADAPTERS_FILE in files:
            content = _ADAPTERS.sub(rb"\1", content)
        if path not in (ROUTING_FILE, ADAPTERS_FILE, SOURCES_FILE):
            found.update(f"{manifest.digest(content)}  {path}\n".encode())
    return found.hexdigest()
