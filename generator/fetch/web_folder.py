"""Finds a model's files in a folder of a web server, which can't list them: asks for the file names
that transformers, PEFT and sentence-transformers use, and for the files that those name.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from typing import Any

from generator.errors import FetchError

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MODULES = "modules.json"  # of sentence-transformers
_IN_MODULE = ("config.json", "model.safetensors", "pytorch_model.bin")
_NAMES = (
    *("config.json", "generation_config.json", "model.safetensors", "pytorch_model.bin"),
    *(*_INDEXES, _MODULES),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm"),
    *("sentencepiece.bpe.model", "target.spm", "chat_template.jinja", "chat_template.json"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("config_sentence_transformers.json", "sentence_bert_config.json"),
    *("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
)
_FORBIDDEN = 403  # a bucket that may be read but not listed answers so for missing objects
_ABSENT = (_FORBIDDEN, 404, 410)


def find(files: Any, folder: str) -> dict[str, Any]:
    """Finds files with details, as fsspec's ``find`` does. Raises FetchError, PermissionError, or
    the error of a failed request.
    """
    found, is_forbidden = _those_there(files, folder, _NAMES)
    named = [name for index in _INDEXES for name in _shards(files, folder, index, found)]
    if f"{folder}/{_MODULES}" in found:
        places = [str(module["path"]) for module in _json(files, f"{folder}/{_MODULES}")]
        known = [_NAMES, *[_IN_MODULE] * len(places)]  # the first module is the transformer
        each = zip(places, known, strict=False)
        named += [f"{place}/{name}" for place, names in each if place for name in names]
    found |= _those_there(files, folder, named)[0]
    if is_forbidden and not found:
        raise PermissionError(folder)
    return found


def _shards(files: Any, folder: str, index: str, found: Iterable[str]) -> list[str]:
    place = f"{folder}/{index}"
    return sorted(set(_json(files, place)["weight_map"].values())) if place in found else []


def _json(files: Any, place: str) -> Any:
    try:
        return json.loads(files.cat_file(place))
    except ValueError:
        raise FetchError(f"{posixpath.basename(place)} is not JSON") from None


def _those_there(files: Any, folder: str, names: Iterable[str]) -> tuple[dict[str, Any], bool]:
    """The existing files, and whether the server refused any request."""
    answers = {place: _info(files, place) for place in (f"{folder}/{name}" for name in names)}
    found = {place: entry for place, entry in answers.items() if isinstance(entry, dict)}
    return found, _FORBIDDEN in answers.values()


def _info(files: Any, place: str) -> dict[str, Any] | int:
    """A file's details; without them, the status of the answer."""
    try:
        found: dict[str, Any] = files.info(place)
    except FileNotFoundError as error:  # fsspec raises this for every failed request
        status = getattr(error.__cause__, "status", None)
        if status not in _ABSENT:
            raise (error.__cause__ or error) from None
        return int(status)
    return found
