"""Downloads one file into a cache, however often the connection is cut.

Resumes where it stopped: within a run, and after an earlier run that was interrupted or killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from generator.fetch import hub_client, hub_errors, object_store
from generator.fetch.hub_client import (
    HubFile,
    InterruptedFetchError,
    Listing,
    WrongContentError,
)
from generator.fetch.model_cache import ModelCache
from generator.fetch.partial_file import PartialFile
from generator.spec.runtime_rules import is_stored


@dataclass(frozen=True)
class Download:
    """One file of a commit, and the caches that lack it; it is downloaded into the first."""

    repository: str
    commit: str
    path: str
    file: HubFile
    caches: tuple[ModelCache, ...]


@dataclass(frozen=True)
class DownloadEvents:
    """Callbacks of a download: bytes received (negative: discarded), and waits."""

    stop: Event
    on_bytes: Callable[[int], None]
    on_wait: Callable[[BaseException, float], None]


def list_files(repository: str, revision: str) -> Listing:
    """Lists the files of a revision or of a store's folder. Raises the client's errors."""
    if is_stored(repository):
        return object_store.list_files(repository)
    return hub_client.list_files(repository, revision)


def download(wanted: Download, watcher: DownloadEvents) -> str:
    """The file's SHA-256, once it is whole, right and in every cache.

    Raises:
        FetchError: it can't be written, or is not what its source or the lock says.
        Exception: whatever the client raises of a source that refuses or stays out of reach.
    """
    first, *others = wanted.caches
    with PartialFile(first.part(wanted.file), wanted.file) as part:
        watcher.on_bytes(part.size)
        is_whole = part.size == 0
        is_whole &= _complete(part, wanted, watcher)
        if (
            not part.is_right and not is_whole
        ):  # its parts may come from different versions of the file
            _restart(part, watcher)
            _complete(part, wanted, watcher)
        if not part.is_right:
            _refuse(part, wanted)
        part.finish(first.blob(wanted.file))
        found = first.note(wanted.file, part.sha256)
    for other in others:
        other.take(found, wanted.file)
    return found.sha256


def _complete(part: PartialFile, wanted: Download, watcher: DownloadEvents) -> bool:
    """Receives the missing bytes; returns whether one request sufficed."""
    waits = list(hub_client.WAITS_S)
    num_pieces = 0
    while not part.is_complete:
        before = part.size
        num_pieces += 1
        try:
            _receive(part, wanted, watcher)
            cut: BaseException = ConnectionError("the connection ended early")
        except WrongContentError:
            part.discard()
            raise
        except Exception as error:
            if not hub_errors.is_temporary(error):
                raise
            cut = error
        if part.is_complete:
            break
        if part.size > before:
            waits = list(hub_client.WAITS_S)
        elif not waits:
            raise cut
        hub_client.pause(cut, waits.pop(0), watcher.stop, watcher.on_wait)
    return num_pieces < 2


def _receive(part: PartialFile, wanted: Download, watcher: DownloadEvents) -> None:
    """Sends one request, from the end of the part, and receives until the connection ends."""
    source, path, file = wanted.repository, wanted.path, wanted.file
    if is_stored(source):
        opened = object_store.open_file(source, path, part.size, file)
    else:
        opened = hub_client.open_file(source, wanted.commit, path, part.size, file)
    with opened as (start, blocks):
        if start != part.size:  # the server ignores ranges
            _restart(part, watcher)
        for block in blocks:
            if watcher.stop.is_set():
                raise InterruptedFetchError("interrupted")
            part.write(block)
            watcher.on_bytes(len(block))


def _restart(part: PartialFile, watcher: DownloadEvents) -> None:
    watcher.on_bytes(-part.size)
    part.restart()


def _refuse(part: PartialFile, wanted: Download) -> None:
    part.discard()
    file = wanted.file
    kind, expected = ("SHA-256", file.sha256) if file.sha256 else ("git object", file.git_oid)
    got = f", got SHA-256 {part.sha256}" if file.sha256 else ""
    raise WrongContentError(
        f"{wanted.path} as it came is not the expected file ({kind} {expected}{got}); it "
        "was discarded"
    )
