"""What a ``model:`` value names: a repository on the Hugging Face Hub, a folder or a file on this
machine, or a folder of an object store or a web server.

Looks at the file system only to tell the two apart; never asks the Hub.
"""

# os.path rather than pathlib: it never raises, and abspath leaves symbolic links as written.
# ruff: noqa: PTH100, PTH111, PTH112, PTH113, PTH118

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from generator.spec.runtime_rules import is_stored
from generator.yaml_file import schema
from generator.yaml_file.nodes import Node
from generator.yaml_file.schema import Report, show

# The Hub's own rule: huggingface_hub/utils/_validators.py, validate_repo_id.
_HUB_ID = re.compile(r"([A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_REVISION = r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_./-]{0,254}"
REVISION = schema.nullable(schema.text("a branch, tag or commit", _REVISION))
_EXPECTED = (
    "a Hub id (org/name), a local path (./folder, /folder, ~/folder), or an address of an object "
    "store or a web server (s3://, gs:// or az://BUCKET/FOLDER, https://HOST/FOLDER)"
)
_STORED = re.compile(
    r"((s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*|https://[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?)"
    r"(/[\w.+=,%~-]+)*/?",
    re.ASCII,
)
_HUB = re.compile(r"https?://(www\.)?(huggingface\.co|hf\.co)/+(?P<id>[\w.-]+/[\w.-]+)", re.ASCII)
_WITH_SECRETS = re.compile("(s3|gs|az|https)://.*[@?#]")
_SECRETS = (
    "got an address with a user, a password or a query, expected s3://, gs:// or az://"
    "BUCKET/FOLDER or https://HOST/FOLDER alone: credentials come from the environment, and belong "
    "in no file"
)
_REGISTRY = (
    "got an address of a registry (oci://), which is not read: mount the artifact as an image "
    "volume and name its folder here, or name a source that hf-triton fetch downloads (a Hub id, "
    "s3://, gs://, az:// or https://)"
)


@dataclass(frozen=True)
class Source:
    """``text`` is the Hub id, the address in an object store, or the path with ``~`` expanded;
    ``folder`` is absolute.
    """

    text: str
    folder: Path | None

    @property
    def is_local(self) -> bool:
        """Whether the model is a folder on this machine."""
        return self.folder is not None

    @property
    def without_revisions(self) -> str:
        """What it is, if that has no revisions; empty for a repository on the Hub."""
        stored = "an object store's folder" if is_stored(self.text) else ""
        return "a local path" if self.is_local else stored


def find_source(node: Node, value: str, base: Path, report: Report) -> Source | None:
    """The source that ``value`` names, paths relative to ``base``; reports one that is none."""
    path = os.path.expanduser(value)
    folder = os.path.abspath(os.path.join(base, path))
    if is_stored(value):
        return _stored(node, value, report)
    if _is_written_as_path(value) or os.path.isdir(folder):
        if os.path.isdir(folder):
            return Source(path, Path(folder))
        what = "a file" if os.path.isfile(folder) else "no such folder"
        report.add(node, f"got {show(node)}, a local path, but {folder} is {what}")
    elif not is_hub_id(value):
        report.expected(node, _EXPECTED)
    else:
        return Source(value, None)
    return None


def _stored(node: Node, value: str, report: Report) -> Source | None:
    if hub := _HUB.match(value):
        report.expected(node, f"the Hub's own name of it, {hub['id']}")
        return None
    if _STORED.fullmatch(value) and not {".", ".."} & set(value.split("/")):
        return Source(value.rstrip("/"), None)
    if value.startswith("oci://"):
        report.add(node, _REGISTRY)
    elif _WITH_SECRETS.match(value):
        report.add(node, _SECRETS)
    else:
        report.expected(node, _EXPECTED)
    return None


def _is_written_as_path(value: str) -> bool:
    return value in (".", "..") or value.startswith(("/", "./", "../", "~")) or value.count("/") > 1


def is_hub_id(value: str) -> bool:
    """Whether the Hub could have a repository of that name."""
    clean = "--" not in value and ".." not in value and not value.endswith((".git", "-", "."))
    return clean and _HUB_ID.fullmatch(value) is not None


def is_revision(value: str) -> bool:
    """Whether a repository could have such a branch, tag or commit."""
    return re.fullmatch(_REVISION, value) is not None
