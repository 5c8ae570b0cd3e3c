"""Resolves a ``model:`` value: a repository on the Hub, a local folder or file, or a folder of an
object store or a web server. Never asks the Hub. Finds the Python file of ``hooks:`` too, and looks
at it without running it: what its functions take and import shows when the model loads it and calls
them.
"""

# os.path rather than pathlib: it never raises, and abspath leaves symbolic links as written.
# ruff: noqa: PTH100, PTH111, PTH112, PTH113, PTH118

from __future__ import annotations

import ast
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from generator.yaml_file.keys import GOT, SAID, Found, Text, refused
from hf_triton.runtime.regular_file import check_regular, read_regular
from hf_triton.runtime.weights.hub_files import is_stored

# The Hub's own rule: huggingface_hub/utils/_validators.py, validate_repo_id.
GGUF_SUFFIX = ".gguf"
_HUB_ID = re.compile(r"([A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_OF_ORG = re.compile(r"[A-Za-z0-9_][\w.-]*/\*", re.ASCII)
_REVISION = r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_./-]{0,254}"
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
_FUNCTIONS = {"preprocess": "request", "postprocess": "response"}
_MAX_BYTES = 2**20  # of a hooks file


@dataclass(frozen=True)
class Source:
    """``text`` is a Hub id, an address, or a path with ``~`` expanded; ``folder`` is absolute."""

    text: str
    folder: Path | None

    @property
    def is_local(self) -> bool:
        return self.folder is not None

    @property
    def without_revisions(self) -> str:
        """Names the kind of source if it has no revisions; empty for a repository on the Hub."""
        stored = "an object store's folder" if is_stored(self.text) else ""
        return "a local path" if self.is_local else stored


def find_source(value: str, base: Path) -> Source:
    """The source that ``value`` names, paths relative to ``base``. Raises Refused."""
    path = os.path.expanduser(value)
    folder = os.path.abspath(os.path.join(base, path))
    if is_stored(value):
        return _stored(value)
    is_path = value in (".", "..") or value.startswith(("/", "./", "../", "~"))
    if is_path or value.count("/") > 1 or os.path.isdir(folder):
        if os.path.isdir(folder):
            return Source(path, Path(folder))
        what = "a file" if os.path.isfile(folder) else "no such folder"
        raise refused(f"a local path, but {folder} is {what}", GOT)
    if not is_hub_id(value):
        raise refused(_EXPECTED)
    return Source(value, None)


def find_model(value: str, base: Path) -> Source:
    """The source of a model: also a .gguf file on this machine. Raises Refused."""
    if not names_gguf(value):
        return find_source(value, base)
    path = os.path.expanduser(value)
    place = Path(os.path.abspath(base / path))  # links stay as written
    try:
        check_regular(place)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise refused(f"a local file, but {place} can't be read: {why}", GOT) from None
    return Source(path, place)


def find_adapters_source(value: str, base: Path) -> Source:
    """The source of adapters: also all models of an owner on the Hub. Raises Refused."""
    if _OF_ORG.fullmatch(value):
        return Source(value, None)
    if is_stored(value):
        raise refused("but a running server can't read an object store; use 'adapters'", GOT)
    return find_source(value, base)


def names_gguf(value: str) -> bool:
    """Returns whether ``model:`` names a file, not a folder or a repository."""
    return value.endswith(GGUF_SUFFIX) and "://" not in value


def _stored(value: str) -> Source:
    if hub := _HUB.match(value):
        raise refused(f"its name on the Hub, {hub['id']}")
    if _STORED.fullmatch(value) and not {".", ".."} & set(value.split("/")):
        return Source(value.rstrip("/"), None)
    if value.startswith("oci://"):
        raise refused(_REGISTRY, SAID)
    if _WITH_SECRETS.match(value):
        raise refused(_SECRETS, SAID)
    raise refused(_EXPECTED)


Revision = Annotated[str, Text("a branch, tag or commit", _REVISION)]
_MODEL = Text("a Hub id or a local path")
_ADAPTERS = Text("a folder (./folder), a Hub id (org/name), or all of an organization (org/*)")
# The values of `model:`, of a model and of an adapter, and the entries of `adapters_from:`.
ModelSource = Annotated[Source, _MODEL, Found(find_model)]
AdapterSource = Annotated[Source, _MODEL, Found(find_source)]
AdaptersSource = Annotated[Source, _ADAPTERS, Found(find_adapters_source)]


def is_hub_id(value: str) -> bool:
    clean = "--" not in value and ".." not in value and not value.endswith((".git", "-", "."))
    return clean and _HUB_ID.fullmatch(value) is not None


def is_revision(value: str) -> bool:
    return re.fullmatch(_REVISION, value) is not None


@dataclass(frozen=True)
class HooksFile:
    path: Path
    content: bytes


def find_hooks(value: str, base: Path) -> HooksFile:
    """Paths are relative to ``base``. Raises Refused."""
    path = Path(os.path.normpath(base / Path(value).expanduser()))
    content = _read_hooks(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if problem := python_mistake(content, path.name):
            raise refused(problem, SAID)
        tree = ast.parse(content)
    if not any(getattr(part, "name", None) in _FUNCTIONS for part in tree.body):
        names = " nor ".join(f"{one}({argument})" for one, argument in _FUNCTIONS.items())
        raise refused(f"{path.name} has neither {names} at its top level", SAID)
    return HooksFile(path, content)


def python_mistake(content: bytes, name: str) -> str:
    """A mistake in a file of Python, also one that only the compiler sees, such as a return in no
    function; else an empty text.
    """
    try:
        compile(content, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{name}:{error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{name}: can't be parsed: {error}"
    return ""


def _read_hooks(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        raise refused(f"but there is no file {path}", GOT) from None
    except IsADirectoryError:
        raise refused(f"but {path} is a folder, expected a Python file", GOT) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise refused(f"but {path} can't be read: {why}", GOT) from None
