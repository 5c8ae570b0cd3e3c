"""Lists a folder of an object store (S3, Google Cloud Storage, Azure Blob Storage, web servers),
and reads its objects from an offset, by fsspec.

Credentials come from the environment or the machine's role, where fsspec looks for them. No
argument here holds them, and no message quotes them. Knows no cache.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from generator.errors import FetchError
from generator.fetch import web_folder
from generator.fetch.hub_client import HubFile, Listing, WrongContentError
from generator.fetch.hub_errors import UnreachableStoreError
from generator.spec.runtime_rules import error_line, is_safe_path

_BLOCK = 1 << 23
# Fields that change with an object: of S3, Azure, Google, web servers.
_VERSIONS = ("ETag", "etag", "generation", "Last-Modified")
_NOTHING = "the store has no such folder, or nothing in it: check 'model' in models.yaml"
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|CONNECTION|SAS")
_REFUSALS = re.compile(
    "credential|permission|forbidden|denied|authenti|authoriz|account_name|signature|[^0-9]40[13]",
    re.IGNORECASE,
)


def _find(files: Any, root: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = files.find(root, detail=True)
    return found


class _Store(NamedTuple):
    """Describes one scheme: its pip requirement, its secrets, how folders are listed, the file
    system's options, and whether it names files by whole addresses.
    """

    requirement: str
    credentials: str
    find: Callable[[Any, str], Mapping[str, Any]] = _find
    options: Mapping[str, Any] = {}
    has_addresses: bool = False


STORES = {
    "s3": _Store("s3fs>=2025.3,<2028", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "gs": _Store("gcsfs>=2025.3,<2028", "GOOGLE_APPLICATION_CREDENTIALS"),
    "https": _Store(
        *("aiohttp>=3.14,<4", "NETRC, the path of a .netrc file,", web_folder.find),
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
    listed = _asked(folder, lambda files: _store(folder).find(files, root))
    found = {
        _name(root, place): _file(place, entry)
        for place, entry in sorted(listed.items())
        if entry["type"] == "file" and not place.endswith("/") and place != root
    }
    if not found:
        raise FetchError(_NOTHING)
    texts = (f"{path}\0{file.size}\0{file.name}\n" for path, file in found.items())
    return Listing(_digest(folder, *texts), found)


@contextmanager
def open_file(
    folder: str, path: str, offset: int, file: HubFile
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """``offset``, and the bytes from there on as they come.

    Raises:
        WrongContentError: the object is another than ``file``, or becomes another meanwhile.
        FetchError: it can't be read.
    """
    yield offset, _blocks(folder, path, offset, _checked(folder, path, file))


def _blocks(folder: str, path: str, offset: int, file: HubFile) -> Iterator[bytes]:
    """Yields blocks; the last one only after the object is found unchanged."""
    place = f"{_place(folder)}/{path}"
    for start in range(offset, file.size, _BLOCK):
        end = min(start + _BLOCK, file.size)
        block: bytes = _asked(folder, partial(_range, place, start, end))
        if len(block) > end - start:
            raise FetchError("the server sends whole files where parts are asked for (HTTP Range)")
        if len(block) < end - start:
            raise UnreachableStoreError("the store's answer ended early")
        if end == file.size:
            _checked(folder, path, file)
        yield block


def _range(place: str, start: int, end: int, files: Any) -> Any:
    return files.cat_file(place, start=start, end=end)


def _checked(folder: str, path: str, file: HubFile) -> HubFile:
    """The object's current listing. Raises WrongContentError where it differs from ``file``."""
    place = f"{_place(folder)}/{path}"
    found = _file(place, _asked(folder, lambda files: files.info(place)))
    if found.size != file.size:
        raise WrongContentError(f"{path} has {found.size} bytes where {file.size} are expected")
    if file.version and file.version != found.version:
        raise WrongContentError(f"{path} has changed since it was listed: run again")
    return found


def _file(place: str, entry: Mapping[str, Any]) -> HubFile:
    if entry.get("size") is None:
        raise FetchError(f"the store tells no size of {place}")
    tag = next((str(entry[key]) for key in _VERSIONS if entry.get(key)), None)
    if tag is None:
        raise FetchError(f"the store tells no version of {place}")
    return HubFile(int(entry["size"]), version=_digest(place, tag.strip('"')))


def _digest(*texts: str) -> str:
    """40 hexadecimal digits, the length of commits and git object ids."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:40]


def _place(folder: str) -> str:
    """The address in fsspec's form."""
    return folder if _store(folder).has_addresses else folder.partition("://")[2]


def _store(folder: str) -> _Store:
    return STORES[folder.partition("://")[0]]


def _name(root: str, place: str) -> str:
    name = place.removeprefix(f"{root}/")
    if not is_safe_path(name):
        raise WrongContentError(f"{name!r} is not a path inside a folder")
    return name


@lru_cache
def _file_system(scheme: str) -> Any:
    """Makes fsspec's file system for an address. Raises ImportError."""
    import fsspec

    store = STORES[scheme]
    options = {"use_listings_cache": False, "skip_instance_cache": True, **store.options}
    return fsspec.filesystem(scheme, **options)


def _asked(folder: str, question: Callable[[Any], Any]) -> Any:
    """The store's answer. Raises FetchError, in one line that says what to do."""
    store = _store(folder)
    try:
        return question(_file_system(folder.partition("://")[0]))
    except ImportError:
        raise FetchError(
            f"needs a package that is not installed: pip install '{store.requirement}'"
        ) from None
    except FileNotFoundError:
        raise FetchError(_NOTHING) from None
    except FetchError:
        raise
    except Exception as error:  # noqa: BLE001, each store's package raises its own
        if isinstance(error, PermissionError) or _REFUSALS.search(_text(error)):
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
