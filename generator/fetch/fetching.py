"""One run of ``hf-triton fetch``: lists files, downloads, and returns what models.lock gets."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from generator.errors import FetchError, RepositoryError
from generator.fetch import hub_client, object_store
from generator.fetch.download import Download, DownloadEvents, download, part_size
from generator.fetch.hub_client import InterruptedFetchError, Listing
from generator.fetch.model_cache import CachedFile, caches_of
from generator.fetch.plan import ModelFetch, disk_spaces, downloads, hub_models, share
from generator.fetch.progress import Progress, size
from generator.models_yaml.models_lock import (
    Key,
    Lock,
    lock_key,
    lock_path,
    read_lock,
    to_bytes,
)
from generator.repository.staging import write
from generator.repository.writing import locked
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from hf_triton.runtime.weights.hub_files import is_stored

Item = TypeVar("Item")

_TICK_S = 0.1
_STOP_WITHIN_S = 2.0


class FetchRun:
    """Fetches models. A failed model has its ``error`` set; the others continue."""

    def __init__(
        self, repository: Path, specs: Sequence[ModelSpec], lock: Lock, num_workers: int
    ) -> None:
        self._local = [part for spec in specs for part in spec.parts if part.source.is_local]
        self._lock = lock
        self._num_workers = num_workers
        wanted = hub_models(specs)
        self._fetches = list(map(ModelFetch, wanted, caches_of(repository, wanted)))
        self._stop = threading.Event()
        self._progress = Progress()
        self._listings: dict[Key, Listing] = {}
        self._listing: dict[Key, threading.Lock] = defaultdict(threading.Lock)
        self._completing = threading.Lock()
        self._began = 0.0
        self._last_wait = ""

    @property
    def _good(self) -> list[ModelFetch]:
        return [fetch for fetch in self._fetches if not fetch.error]

    @property
    def _failures(self) -> list[str]:
        failed = [fetch for fetch in self._fetches if fetch.error]
        return [f"{fetch.spec.title}: {fetch.error}" for fetch in failed]

    def lock_caches(self, stack: contextlib.ExitStack, on_busy: Callable[[str], None]) -> None:
        """Locks the models' caches, in the same order in every process. Raises GeneratorError."""
        caches = {fetch.cache.name: fetch.cache for fetch in self._fetches}
        for _, cache in sorted(caches.items()):
            stack.enter_context(cache.locked(on_busy))

    def prepare(self, share_files: bool) -> None:
        self._each(lambda fetch: fetch.resolve(self._lock, partial(self._list, fetch.spec.title)))
        self._each(self._find_cached)
        if share_files:
            share(self._good)

    def _each(self, action: Callable[[ModelFetch], None]) -> None:
        def guarded(fetch: ModelFetch) -> None:
            try:
                action(fetch)
            except InterruptedFetchError:
                pass
            except Exception as error:  # noqa: BLE001, huggingface_hub raises many kinds
                fetch.error = hub_client.explain(error, fetch.source, fetch.commit)

        run_all(self._good, guarded, self._num_workers, self._stop)
        self._progress.end_all()

    def _list(self, name: str, repository: str, revision: str) -> Listing:
        """Lists a revision's files once, so that models that share it get the same commit."""
        with self._listing[repository, revision]:
            if (repository, revision) not in self._listings:
                ask = partial(hub_client.list_files, repository, revision)
                if is_stored(repository):
                    ask = partial(object_store.list_files, repository)
                found = hub_client.retried(ask, self._stop, partial(self._on_wait, name))
                self._listings[repository, revision] = found
        return self._listings[repository, revision]

    def _find_cached(self, fetch: ModelFetch) -> None:
        title = f"{fetch.spec.title}: checking"
        self._progress.begin(title, fetch.num_bytes)
        try:
            fetch.find_cached(partial(self._progress.add, title), self._stop)
        finally:
            self._progress.end(title)

    def preview(self) -> None:
        """Prints sizes and free space. Raises FetchError if the download does not fit."""
        for spec in self._local:
            print(f"{spec.title}: {spec.source.text} is local, nothing to fetch")
        for fetch in self._good:
            total, count = fetch.num_bytes, len(fetch.files)
            parts = (part_size(fetch.cache.part(file)) for file in fetch.missing.values())
            here = min(_num_bytes_here(fetch) + sum(parts), total)
            state = f"{size(here)} here, {size(total - here)} to fetch"
            state = state if fetch.missing else "all here"
            files = f"{count} file{'s' * (count != 1)}, {size(total)}"
            print(f"{fetch.spec.title}: {fetch.source} ({fetch.commit[:12]}), {files}: {state}")
        crowded = []
        for folder, needed, free in disk_spaces(downloads(self._good)):
            print(f"{size(needed)} to fetch, {size(free)} free in {folder}")
            if needed > free:
                has = f"needs {size(needed)} and has {size(free)} free"
                crowded.append(f"{folder} {has}, {size(needed - free)} too little")
        if crowded:
            message = f"does not fit on the disk: {'; '.join(crowded)}"
            raise FetchError("\n".join([message, *self._failures]))

    def fetch(self) -> None:
        for fetch in self._good:
            if fetch.missing:
                done = _num_bytes_here(fetch)
                self._progress.begin(fetch.spec.title, fetch.num_bytes, done)
        for fetch in [one for one in self._good if not one.missing]:
            self._complete(fetch)
        self._began = time.monotonic()
        run_all(downloads(self._good), self._download, self._num_workers, self._stop)
        self._progress.end_all()

    def _download(self, wanted: Download) -> None:
        """Downloads one file for all models that need it; completes those that lack no other."""
        takers = [
            fetch
            for fetch in self._good
            if fetch.cache in wanted.caches and wanted.file in fetch.missing.values()
        ]
        if not takers:  # all of them failed with another file
            return

        def on_bytes(num_bytes: int) -> None:
            for fetch in takers:
                self._progress.add(fetch.spec.title, num_bytes)

        on_wait = partial(self._on_wait, takers[0].spec.title)
        try:
            sha256 = download(wanted, DownloadEvents(self._stop, on_bytes, on_wait))
        except InterruptedFetchError:
            return
        except Exception as error:  # noqa: BLE001, huggingface_hub raises many kinds
            for fetch in takers:
                self._fail(fetch, error)
            return
        for fetch in takers:
            found = CachedFile(sha256, fetch.cache.blob(wanted.file))
            with self._progress.lock:  # two workers may finish the last two files at once
                names = [path for path, file in fetch.missing.items() if file == wanted.file]
                fetch.here.update(dict.fromkeys(names, found))
                is_last = not fetch.missing and not fetch.error
            if is_last:
                self._complete(fetch)
                self._progress.end(fetch.spec.title)
                took = f"{time.monotonic() - self._began:.0f} s"
                self._progress.say(f"{fetch.spec.title}: all of {fetch.source} is here, {took}")

    def _complete(self, fetch: ModelFetch) -> None:
        locked = fetch.locked_files
        files = {path: (file, locked[path]) for path, file in fetch.files.items()}
        place = fetch.cache, fetch.commit
        beside = [one.files for one in self._fetches if (one.cache, one.commit) == place]
        revision = lock_key(fetch.spec)[1]
        try:
            with self._completing:
                fetch.cache.complete(fetch.commit, revision, files, chain(*beside))
        except FetchError as error:
            self._fail(fetch, error)

    def _fail(self, fetch: ModelFetch, error: BaseException) -> None:
        if not fetch.error:
            fetch.error = hub_client.explain(error, fetch.source, fetch.commit)
            if fetch.is_locked and isinstance(error, hub_client.WrongContentError):
                update = f"hf-triton fetch --update {fetch.spec.name}"
                fetch.error += f". models.lock expects it: if the new one is right, run {update}"
            self._progress.end(fetch.spec.title)
            if len(self._fetches) > 1:  # the full error is printed at the end
                self._progress.say(f"{fetch.spec.title}: failed: {fetch.error}")

    def _on_wait(self, name: str, error: BaseException, seconds: float) -> None:
        line = f"{name}: {hub_client.brief(error)}; trying again in {seconds:.0f} s"
        if line != self._last_wait:  # its other files would fail alike
            self._last_wait = line
            self._progress.say(line)

    def locked(self) -> dict[Key, LockedSnapshot]:
        """The entries of models.lock for the complete models."""
        found: dict[Key, LockedSnapshot] = {}
        for fetch in [one for one in self._good if one.files and not one.missing]:
            key = lock_key(fetch.spec)
            others = found[key].files if key in found else {}
            found[key] = LockedSnapshot(fetch.commit, {**others, **fetch.locked_files})
        return found

    def refuse_failures(self) -> None:
        if lines := self._failures:
            count = f"{len(lines)} of {len(self._fetches)} failed"
            raise FetchError("\n".join([count, *lines]))


def update_lock(config: Path, named: Iterable[Key], fetched: Lock) -> None:
    """Adds what was fetched to models.lock, and drops what is no longer ``named``. Raises
    RepositoryError.
    """
    path = lock_path(config)
    with locked(path.absolute().parent, math.inf):
        old = read_lock(config) or {}
        entries = {key: old[key] for key in named if key in old}
        for key, snapshot in fetched.items():
            before = entries.get(key)
            same = before is not None and before.commit == snapshot.commit
            files = {**before.files, **snapshot.files} if before and same else snapshot.files
            entries[key] = LockedSnapshot(snapshot.commit, files)
        content = to_bytes(entries)
        if (entries or path.exists()) and not (path.exists() and path.read_bytes() == content):
            try:
                write(str(path), content)
            except OSError as error:
                raise RepositoryError(f"{path}: can't be written: {error.strerror}") from None


def _num_bytes_here(fetch: ModelFetch) -> int:
    return sum(fetch.files[path].size for path in fetch.here)


def run_all(
    items: Iterable[Item],
    action: Callable[[Item], None],
    num_workers: int,
    stop: threading.Event,
) -> None:
    """Calls ``action`` for every item, on several threads; it handles its own failures. An
    interrupt sets ``stop``; threads that have not ended two seconds later are abandoned.
    """
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    num_threads = min(num_workers, waiting.qsize())
    escaped: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                action(waiting.get_nowait())
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001, a bug of ours: raised below
            escaped.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(num_threads)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_TICK_S)
    except BaseException:
        stop.set()
        deadline = time.monotonic() + _STOP_WITHIN_S
        for thread in threads:
            if thread.is_alive():  # one that an interrupt kept from starting can't be joined
                thread.join(max(0.0, deadline - time.monotonic()))
        raise
    if escaped:
        raise escaped[0]
