"""Where an adapter may come from that a request loads, by ``adapters_from`` in models.yaml.

Entries of adapters_from.json have ``model`` and ``local``: a folder, whose path is relative to the
model's, with all that lies within, a name on the Hub, or ORG/* for all of ORG's.
"""

# os.path rather than pathlib: it takes `..` and links as the operating system does.
# ruff: noqa: PTH113, PTH118

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generator.spec.model_source import is_hub_id, is_revision
from generator.spec.runtime_rules import ADAPTER_FILES
from hf_triton.ports.openai.schema.errors import ApiError, bad_field

_FORMS = "a folder's absolute path, or ORG/NAME or ORG/NAME@REVISION of the Hub"
Sources = Sequence[Any]


def source_of(path: str, allowed: Sources, folder: Path) -> dict[str, Any]:
    """The source as adapters.json names it. Raises ApiError: 400 for what is no path, 403 where it
    is not allowed, 404 where nothing is there.
    """
    if path.startswith("/") and path.isprintable():
        return _local(path, allowed, folder)
    name, _, revision = path.partition("@")
    if not is_hub_id(name) or (revision and not is_revision(revision)) or path.endswith("@"):
        raise bad_field("lora_path", "something else", _FORMS)
    org, slash, _ = name.partition("/")
    names = (name, f"{org}/*") if slash else (name,)
    if not any(one["model"] in names for one in allowed if not one["local"]):
        raise _forbidden(allowed, folder)
    return {"model": name, "local": False, "revision": revision or None}


def _local(path: str, allowed: Sources, folder: Path) -> dict[str, Any]:
    roots = _roots(allowed, folder)
    found = os.path.realpath(path)
    files = [os.path.realpath(os.path.join(found, name)) for name in ADAPTER_FILES]
    if not any(all(_is_within(one, root) for one in (found, *files)) for root in roots):
        raise _forbidden(allowed, folder)
    if not os.path.isfile(files[0]):
        message = f"lora_path: no adapter there: no {ADAPTER_FILES[0]} in {found}"
        raise ApiError(404, message, "lora_path")
    return {"model": found, "local": True, "revision": None}


def _roots(allowed: Sources, folder: Path) -> list[str]:
    return [os.path.realpath(os.path.join(folder, one["model"])) for one in allowed if one["local"]]


def _is_within(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _forbidden(allowed: Sources, folder: Path) -> ApiError:
    named = [str(one["model"]) for one in allowed if not one["local"]]
    listed = ", ".join((*_roots(allowed, folder), *named))
    message = f"lora_path: not allowed by adapters_from of the model in models.yaml: {listed}"
    return ApiError(403, message, "lora_path")
