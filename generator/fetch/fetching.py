"""One run of ``hf-triton fetch``: lists the files that models need, shows what is missing,
downloads it, and returns what goes into models.lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from generator.errors import FetchError
from generator.fetch import hub_client, hub_errors
from generator.fetch.download import Download, DownloadEvents, download, list_files
from generator.fetch.hub_client import HubFile, InterruptedFetchError, Listing
from generator.fetch.model_cache import CachedFile, caches_of
from generator.fetch.plan import (
    ModelFetch,
    disk_spaces,
    downloads,
    find_cached,
    hub_models,
    locked_snapshot,
    resolve,
    share,
)
from generator.fetch.progress import Progress, size
from generator.fetch.threads import run_all
from generator.models_yaml.models_lock import Key, Lock, lock_key
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from generator.spec.runtime_rules import LockedFile


class FetchRun:
    """Fetches models. A failed model has its ``error`` set; the others continue."""

    def __init__(
        self, repository: Path, specs: Sequence[ModelSpec], lock: Lock, num_workers: int
    ) -> None:
        self._repository = repository
        self._local = [part for spec in specs for part in spec.parts if part.source.is_local]
        self._lock = lock
        self._num_workers = num_workers
        wanted = hub_models(specs)
        self._fetches = list(map(ModelFetch, wanted, caches_of(repository, wanted)))
        self._stop = threading.Event()
        self._progress = Progress()
        self._listings: dict[Key, Listing] = {}
        self._listing: dict[Key, threading.Lock] = {
            lock_key(fetch.spec): threading.Lock() for fetch in self._fetches
        }
        self._began = 0.0
        self._last_wait = ""

    @property
    def _good(self) -> list[ModelFetch]:
        return [fetch for fetch in self._fetches if not fetch.error]

    @property
    def _failed(self) -> list[ModelFetch]:
        return [fetch for fetch in self._fetches if fetch.error]

    def lock_caches(self, stack: contextlib.ExitStack, on_busy: Callable[[str], None]) -> None:
        """Locks the models' caches against other fetches, in the same order in every process to
        avoid deadlocks; calls ``on_busy`` for a cache that is locked. Raises GeneratorError.
        """
        caches = {fetch.cache.name: fetch.cache for fetch in self._fetches}
        for _, cache in sorted(caches.items()):
            stack.enter_context(cache.locked(on_busy))

    def prepare(self, share_files: bool) -> None:
        """Resolves each model's files, and finds the ones that are cached."""
        self._each(self._resolve)
        self._each(self._find_cached)
        if share_files:
            share(self._good)

    def _each(self, action: Callable[[ModelFetch], None]) -> None:
        """Applies an action to every model that has not failed, several at once."""

        def guarded(fetch: ModelFetch) -> None:
            try:
                action(fetch)
            except InterruptedFetchError:
                pass
            except Exception as error:  # noqa: BLE001, huggingface_hub raises many kinds
                fetch.error = hub_errors.explain(error, fetch.source, fetch.commit)

        run_all(self._good, guarded, self._num_workers, self._stop)
        self._progress.end_all()

    def _resolve(self, fetch: ModelFetch) -> None:
        resolve(fetch, self._lock, partial(self._list, fetch.spec.title))

    def _list(self, name: str, repository: str, revision: str) -> Listing:
        """Lists a revision's files once, so that models that share it get the same commit."""
        with self._listing[repository, revision]:
            if (repository, revision) not in self._listings:
                ask = partial(list_files, repository, revision)
                found = hub_client.retried(ask, self._stop, partial(self._on_wait, name))
                self._listings[repository, revision] = found
        return self._listings[repository, revision]

    def _find_cached(self, fetch: ModelFetch) -> None:
        title = f"{fetch.spec.title}: checking"
        self._progress.begin(title, fetch.num_bytes)
        try:
            find_cached(fetch, partial(self._progress.add, title), self._stop)
        finally:
            self._progress.end(title)

    def preview(self) -> None:
        """Prints sizes and free space. Raises FetchError if the download does not fit."""
        for spec in self._local:
            print(f"{spec.title}: {spec.source.text} is local, nothing to fetch")
        for fetch in self._good:
            print(_described(fetch))
        crowded = []
        for room in disk_spaces(downloads(self._good)):
            print(f"{size(room.needed)} to fetch, {size(room.free)} free in {room.folder}")
            if not room.fits:
                crowded.append(room)
        if crowded:
            missing = "; ".join(
                f"{room.folder} needs {size(room.needed)} and has {size(room.free)} free, "
                f"{size(room.needed - room.free)} too little"
                for room in crowded
            )
            failures = "".join(f"\n{fetch.spec.title}: {fetch.error}" for fetch in self._failed)
            raise FetchError(f"does not fit on the disk: {missing}{failures}")

    def fetch(self) -> None:
        """Downloads missing files, and completes each model after its last file."""
        for fetch in self._good:
            if fetch.missing:
                self._progress.begin(fetch.spec.title, fetch.num_bytes, _whole(fetch))
        for fetch in [one for one in self._good if not one.missing]:
            self._complete(fetch)
        self._began = time.monotonic()
        wanted = downloads(self._good)
        run_all(wanted, self._download, self._num_workers, self._stop)
        self._progress.end_all()

    def _download(self, wanted: Download) -> None:
        """Downloads one file for every model that needs it."""
        takers = [
            fetch
            for fetch in self._good
            if fetch.cache in wanted.caches and wanted.file in fetch.missing.values()
        ]
        if not takers:  # all of them failed with another file
            return
        try:
            sha256 = download(wanted, self._watcher(takers))
        except InterruptedFetchError:
            return
        except Exception as error:  # noqa: BLE001, huggingface_hub raises many kinds
            for fetch in takers:
                self._fail(fetch, error)
            return
        for fetch in takers:
            self._take(fetch, wanted.file, sha256)

    def _watcher(self, takers: Sequence[ModelFetch]) -> DownloadEvents:
        def on_bytes(num_bytes: int) -> None:
            for fetch in takers:
                self._progress.add(fetch.spec.title, num_bytes)

        return DownloadEvents(self._stop, on_bytes, partial(self._on_wait, takers[0].spec.title))

    def _take(self, fetch: ModelFetch, file: HubFile, sha256: str) -> None:
        found = CachedFile(sha256, fetch.cache.blob(file))
        with self._progress.lock:  # two workers may finish the last two files at once
            fetch.here.update({path: found for path, one in fetch.missing.items() if one == file})
            is_last = not fetch.missing and not fetch.error
        if is_last:
            self._complete(fetch)
            self._progress.end(fetch.spec.title)
            seconds = time.monotonic() - self._began
            self._progress.say(
                f"{fetch.spec.title}: all of {fetch.source} is here, {seconds:.0f} s"
            )

    def _complete(self, fetch: ModelFetch) -> None:
        files = {
            path: (file, LockedFile(file.size, fetch.here[path].sha256))
            for path, file in fetch.files.items()
        }
        try:
            fetch.cache.complete(fetch.commit, lock_key(fetch.spec)[1], files)
        except FetchError as error:
            self._fail(fetch, error)

    def _fail(self, fetch: ModelFetch, error: BaseException) -> None:
        if not fetch.error:
            fetch.error = hub_errors.explain(error, fetch.source, fetch.commit)
            if fetch.is_locked and isinstance(error, hub_client.WrongContentError):
                update = f"hf-triton fetch --update {fetch.spec.name}"
                fetch.error += f". models.lock expects it: if the new one is right, run {update}"
            self._progress.end(fetch.spec.title)
            if len(self._fetches) > 1:  # the full error is printed at the end
                self._progress.say(f"{fetch.spec.title}: failed: {fetch.error}")

    def _on_wait(self, name: str, error: BaseException, seconds: float) -> None:
        line = f"{name}: {hub_errors.brief(error)}; trying again in {seconds:.0f} s"
        if line != self._last_wait:  # its other files would fail alike
            self._last_wait = line
            self._progress.say(line)

    def locked(self) -> dict[Key, LockedSnapshot]:
        """The entries of models.lock for the complete models."""
        found: dict[Key, LockedSnapshot] = {}
        for fetch in [one for one in self._good if one.files and not one.missing]:
            key, snapshot = lock_key(fetch.spec), locked_snapshot(fetch)
            others = found[key].files if key in found else {}
            found[key] = LockedSnapshot(snapshot.commit, {**others, **snapshot.files})
        return found

    def refuse_failures(self) -> None:
        """Raises FetchError if a model failed."""
        failed = self._failed
        if failed:
            lines = [f"{fetch.spec.title}: {fetch.error}" for fetch in failed]
            raise FetchError("\n".join([f"{len(failed)} of {len(self._fetches)} failed", *lines]))


def _described(fetch: ModelFetch) -> str:
    here, total = fetch.num_bytes_here, fetch.num_bytes
    state = "all here" if not fetch.missing else f"{size(here)} here, {size(total - here)} to fetch"
    files = f"{len(fetch.files)} file{'s' * (len(fetch.files) != 1)}, {size(total)}"
    return f"{fetch.spec.title}: {fetch.source} ({fetch.commit[:12]}), {files}: {state}"


def _whole(fetch: ModelFetch) -> int:
    return sum(fetch.files[path].size for path in fetch.here)
