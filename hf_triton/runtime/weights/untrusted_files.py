"""Looks through a model's folder before anything in it is opened, and refuses by name what nothing
may follow: what is no regular file, links that lead out, files of a size that no model has, and
what config_rules.py finds in their JSON.

Weights are not read here; declared_size.py holds the configuration against them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import LoadError, reason
from ..regular_file import MOST_JSON_BYTES, check_regular, read_json
from .config_rules import mistakes

# What transformers, PEFT and sentence-transformers read whole.
_READ_WHOLE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
# Their JSON is followed; that of vocabularies is checked by the library that reads it.
_FOLLOWED = ("*config*.json", "*.index.json", "modules.json", "special_tokens_map.json")

# Where it is no JSON, transformers goes on without it, and so without the ends of answers.
_TAKEN_FOR_MISSING = "generation_config.json"


def check_files(folder: Path, *, trusts_code: bool) -> None:
    """Opens small files of JSON alone.

    Raises:
        LoadError: names the first file that can't be used and why, with the key where it has one.
    """
    root = folder.resolve()
    for path in _entries(folder):
        try:
            _check_place(root, path)
            if not path.is_dir():
                _check_file(path, trusts_code=trusts_code)
        except FileNotFoundError:
            continue  # a dangling link: whoever needs the file tells that it is missing
        except (OSError, ValueError, RuntimeError) as error:
            name = path.relative_to(folder).as_posix()
            said = getattr(error, "strerror", None) or reason(error)
            raise LoadError(reason(LoadError(f"{name}: {said}"))) from None


def _entries(folder: Path) -> Iterator[Path]:
    """All files, and links to folders; hidden folders are nobody's to read."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in sorted([*files, *links]))


def _check_place(root: Path, path: Path) -> None:
    """A link may lead to a blob of the Hub's cache, as all of a snapshot's do."""
    found = path.resolve()
    blobs = found.parent
    is_blob = blobs.name == "blobs" and blobs.parent.name.startswith("models--")
    if not is_blob and not found.is_relative_to(root):
        raise ValueError("it is a link that leads out of the model's folder")


def _check_file(path: Path, *, trusts_code: bool) -> None:
    check_regular(path, MOST_JSON_BYTES if path.suffix in _READ_WHOLE else None)
    if not any(fnmatchcase(path.name, pattern) for pattern in _FOLLOWED):
        return
    try:
        found = read_json(path)
    except (json.JSONDecodeError, UnicodeDecodeError):
        if path.name == _TAKEN_FOR_MISSING:
            raise
        return  # whoever needs the file tells what is wrong with it
    wrong = next(mistakes(found, trusts_code=trusts_code), None)
    if wrong is not None:
        raise ValueError(wrong)
