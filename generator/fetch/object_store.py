"""Lists a folder of an object store or a web server, and reads objects from an offset, by fsspec.
Credentials come from the environment or the machine's role; no message quotes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from operator import methodcaller
from typing import Any, NamedTuple

from generator.errors import FetchError
from generator.fetch.hub_client import HubFile, Listing, UnreachableStoreError, WrongContentError
from hf_triton.runtime.weights.hub_files import error_line, is_safe_path

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
    *("config_sentence_transformers.json", "sentence_bert_config.json", "artifact.metadata"),
    *("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
)
_FORBIDDEN = 403  # a bucket that may be read but not listed answers so for missing objects
_ABSENT = (_FORBIDDEN, 404, 410)
BLOCK = 1 << 23
# Fields that change with an object: of S3, Azure, Google, web servers.
_VERSIONS = ("ETag", "etag", "generation", "Last-Modified")
_NOTHING = "the store has no such folder, or nothing in it: check 'model' in models.yaml"
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|CONNECTION|SAS")
_ADDRESS = re.compile(r"\w+://\S+")  # its digits and words are no answer
_REFUSALS = re.compile(
    r"credential|permission|forbidden|denied|authenti|authoriz|account_name|signature|\b40[13]\b",
    re.IGNORECASE,
)


def _find_in_web_folder(files: Any, folder: str) -> dict[str, Any]:
    """Finds a model's files where a web server can't list them: by the names that transformers,
    PEFT and sentence-transformers use. Raises FetchError, PermissionError, or a request's error.
    """
    found, is_forbidden = _existing_files(files, folder, _NAMES)
    named: list[str] = []
    for place in (f"{folder}/{index}" for index in _INDEXES):
        if place in found:
            named += sorted(set(_json(files, place)["weight_map"].values()))
    if f"{folder}/{_MODULES}" in found:
        places = [str(module["path"]) for module in _json(files, f"{folder}/{_MODULES}")]
        known = [_NAMES, *[_IN_MODULE] * len(places)]  # the first module is the transformer
        each = zip(places, known, strict=False)
        named += [f"{place}/{name}" for place, names in each if place for name in names]
    found |= _existing_files(files, folder, named)[0]
    if is_forbidden and not found:
        raise PermissionError(folder)
    return found


def _json(files: Any, place: str) -> Any:
    try:
        return json.loads(files.cat_file(place))
    except ValueError:
        raise FetchError(f"{posixpath.basename(place)} is not JSON") from None


def _existing_files(files: Any, folder: str, names: Iterable[str]) -> tuple[dict[str, Any], bool]:
    answers = {place: _info(files, place) for place in (f"{folder}/{name}" for name in names)}
    found = {place: entry for place, entry in answers.items() if isinstance(entry, dict)}
    return found, _FORBIDDEN in answers.values()


def _info(files: Any, place: str) -> dict[str, Any] | int:
    try:
        found: dict[str, Any] = files.info(place)
    except FileNotFoundError as error:  # fsspec raises this for every failed request
        status = getattr(error.__cause__, "status", None)
        if status not in _ABSENT:
            raise (error.__cause__ or error) from None
        return int(status)
    return found


class _Store(NamedTuple):
    """One scheme; ``has_addresses``: its file system names files by whole addresses."""

    requirement: str
    credentials: str
    find: Callable[[Any, str], Mapping[str, Any]] | None = None  # None: as fsspec does
    options: Mapping[str, Any] = {}
    has_addresses: bool = False


STORES = {
    "s3": _Store("s3fs>=2025.3,<2028", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "gs": _Store("gcsfs>=2025.3,<2028", "GOOGLE_APPLICATION_CREDENTIALS"),
    "https": _Store(
        *("aiohttp>=3.14,<4", "NETRC, the path of a .netrc file,", _find_in_web_folder),
        options={"client_kwargs": {"trust_env": True}},  # proxies, .netrc
        has_addresses=True,
    ),
    "az": _Store(
        "adlfs>=2024.12,<2028", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    ),
}


def list_files(folder: str) -> Listing:
    """Lists all objects below a folder; the commit is a digest of versions. Raises FetchError."""
    root = _place(folder)
    find = _store(folder).find or (lambda files, root: files.find(root, detail=True))
    listed = _ask_store(folder, lambda files: find(files, root))
    found = {
        place.removeprefix(f"{root}/"): _file(place, entry)
        for place, entry in sorted(listed.items())
        if entry["type"] == "file" and not place.endswith("/") and place != root
    }
    if wrong := next((name for name in found if not is_safe_path(name)), None):
        raise WrongContentError(f"{wrong!r} is not a path inside a folder")
    if not found:
        raise FetchError(_NOTHING)
    texts = (f"{path}\0{file.size}\0{file.name}\n" for path, file in found.items())
    return Listing(_digest(folder, *texts), found)


@contextmanager
def open_file(
    folder: str, path: str, offset: int, file: HubFile
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Bytes from ``offset`` on. Raises FetchError, WrongContentError of a changed object."""
    yield offset, _blocks(folder, path, offset, _checked(folder, path, file))


def _blocks(folder: str, path: str, offset: int, file: HubFile) -> Iterator[bytes]:
    """Yields blocks; the last one only after the object is found unchanged."""
    place = f"{_place(folder)}/{path}"
    for start in range(offset, file.size, BLOCK):
        end = min(start + BLOCK, file.size)
        block: bytes = _ask_store(folder, methodcaller("cat_file", place, start=start, end=end))
        if len(block) > end - start:
            raise FetchError("the server ignores HTTP Range and sends whole files")
        if len(block) < end - start:
            raise UnreachableStoreError("the store's answer ended early")
        if end == file.size:
            _checked(folder, path, file)
        yield block


def _checked(folder: str, path: str, file: HubFile) -> HubFile:
    """The object's current listing. Raises WrongContentError where it differs from ``file``."""
    place = f"{_place(folder)}/{path}"
    found = _file(place, _ask_store(folder, methodcaller("info", place)))
    if found.size != file.size:
        raise WrongContentError(f"{path} has {found.size} bytes where {file.size} are expected")
    if file.version and file.version != found.version:
        raise WrongContentError(f"{path} has changed since it was listed: run again")
    return found


def _file(place: str, entry: Mapping[str, Any]) -> HubFile:
    if entry.get("size") is None:
        raise FetchError(f"the store reports no size of {place}")
    tag = next((str(entry[key]) for key in _VERSIONS if entry.get(key)), None)
    if tag is None:
        raise FetchError(f"the store reports no version (an ETag or a time) of {place}")
    return HubFile(int(entry["size"]), version=_digest(place, tag.strip('"')))


def _digest(*texts: str) -> str:
    """40 hexadecimal digits, the length of commits and git object ids."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:40]


def _place(folder: str) -> str:
    return folder if _store(folder).has_addresses else folder.partition("://")[2]


def _store(folder: str) -> _Store:
    return STORES[folder.partition("://")[0]]


@lru_cache
def file_system(scheme: str) -> Any:
    import fsspec

    store = STORES[scheme]
    options = {"use_listings_cache": False, "skip_instance_cache": True, **store.options}
    return fsspec.filesystem(scheme, **options)


def _ask_store(folder: str, question: Callable[[Any], Any]) -> Any:
    """The store's answer. Raises FetchError, in one line that says what to do."""
    store = _store(folder)
    try:
        return question(file_system(folder.partition("://")[0]))
    except ImportError:
        raise FetchError(
            f"needs a package that is not installed: pip install '{store.requirement}'"
        ) from None
    except FileNotFoundError:
        raise FetchError(_NOTHING) from None
    except FetchError:
        raise
    except Exception as error:  # noqa: BLE001, each store's package raises its own
        if isinstance(error, PermissionError) or _REFUSALS.search(_ADDRESS.sub("", _text(error))):
            raise FetchError(
                f"the store refuses it: set {store.credentials} in the environment to credentials "
                "that may list and read it, or give this machine a role that may"
            ) from None
        raise UnreachableStoreError(
            f"the store gave no answer: check the network and its address ({_text(error)})"
        ) from None


def _text(error: Exception) -> str:
    """The error's text without URL queries (signatures) and without secrets of the environment."""
    text = re.sub(r"\?\S+", "?***", error_line(error))
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) > 7:
            text = text.replace(value, f"${name}")
    return text
