"""One run of ``hf-triton fetch``: lists files, downloads, and returns what models.lock gets."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm  # type: ignore[import-untyped]

from generator.errors import FetchError, RepositoryError
from generator.fetch import hub_client, object_store
from generator.fetch.hub_client import InterruptedFetchError, Listing, size
from generator.fetch.model_cache import Download, caches_of, download, part_size
from generator.fetch.plan import ModelFetch, downloads, free_space, hub_models, share
from generator.models_yaml.models_lock import Key, Lock, lock_key, lock_path, read_lock, to_bytes
from generator.repository.staging import write
from generator.repository.writing import locked, locked_file
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from hf_triton.runtime.weights.hub_files import is_stored
from hf_triton.runtime.weights.locked_files import differences

Item = TypeVar("Item")

LINE_EVERY_S = 30.0
_LOCK_FILE = ".hf-triton-fetch.lock"
_LINE = "{desc}: {n_fmt} of {total_fmt}\n"


class Progress:
    """Shows a fetch on stderr: a bar for each model on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._bars: dict[str, tqdm] = {}
        self.lock = threading.RLock()
        self._style = {} if sys.stderr.isatty() else {"bar_format": _LINE, "delay": LINE_EVERY_S}

    def begin(self, title: str, total: int, done: int = 0) -> None:
        every_s = LINE_EVERY_S if self._style else 0.2
        sizes = {"total": total, "initial": done, "unit": "B", "unit_scale": True}
        with self.lock:
            self._bars[title] = tqdm(
                **sizes, desc=title, leave=False, mininterval=every_s, miniters=0, **self._style
            )

    def add(self, title: str, num_bytes: int) -> None:
        with self.lock:
            if title in self._bars:
                self._bars[title].update(num_bytes)

    def end(self, title: str) -> None:
        with self.lock:
            if bar := self._bars.pop(title, None):
                bar.close()

    def end_all(self) -> None:
        for title in list(self._bars):
            self.end(title)

    def say(self, line: str) -> None:
        with self.lock:
            tqdm.write(line, file=sys.stderr)
            sys.stderr.flush()


class FetchRun:
    """Fetches models. A failed model has its ``error`` set; the others continue. ``anew``: hashes
    every cached file again, and names each of the ``num_wrong`` that are not as in models.lock.
    """

    def __init__(
        self,
        repository: Path,
        specs: Sequence[ModelSpec],
        lock: Lock,
        num_workers: int,
        *,
        anew: bool = False,
    ) -> None:
        self._anew, self.num_wrong = anew, 0
        self._local = [part for spec in specs for part in spec.parts if part.source.is_local]
        self._lock = lock
        self._repository = repository
        self._num_workers = num_workers
        wanted = hub_models(specs)
        self._fetches = list(map(ModelFetch, wanted, caches_of(repository, wanted)))
        self._stop = threading.Event()
        self._progress = Progress()
        self._listings: dict[Key, Listing] = {}
        self._listing: dict[Key, threading.Lock] = defaultdict(threading.Lock)
        self._last_wait = ""

    @property
    def _good(self) -> list[ModelFetch]:
        return [fetch for fetch in self._fetches if not fetch.error]

    @property
    def _failures(self) -> list[str]:
        failed = [fetch for fetch in self._fetches if fetch.error]
        return [f"{fetch.spec.title}: {fetch.error}" for fetch in failed]

    def lock_caches(self, stack: contextlib.ExitStack, *, wait: bool) -> None:
        """Makes and locks the models' caches, in the same order in every process. Raises
        RepositoryError, and FetchError where others fetch and are not waited for.
        """
        folders = {fetch.cache.name: fetch.cache.folder for fetch in self._fetches}
        for name, folder in sorted(folders.items()):
            on_busy = partial(_wait_for, f"{folder}: another hf-triton is fetching {name}", wait)
            try:
                stack.enter_context(locked_file(folder / _LOCK_FILE, on_busy))
            except OSError as error:
                why = f"{folder}: can't be written: {error.strerror}"
                raise RepositoryError(why) from None

    def prepare(self, share_files: bool) -> None:
        self._each(lambda fetch: fetch.resolve(self._lock, partial(self._list, fetch.spec.title)))
        self._each(self._find_cached)
        if share_files:
            self._share()

    def _share(self) -> None:
        good = self._good
        for fetch in good:
            self._guard(fetch, partial(share, others=good))

    def _each(self, action: Callable[[ModelFetch], None]) -> None:
        self._run_all(self._good, partial(self._guard, action=action))
        self._progress.end_all()

    def _run_all(self, items: Sequence[Item], action: Callable[[Item], None]) -> None:
        """Calls ``action`` for every item, on several threads; it handles its own failures. An
        interrupt abandons the threads.
        """
        with ThreadPool(max(1, min(self._num_workers, len(items)))) as pool:
            try:
                pool.map(lambda one: None if self._stop.is_set() else action(one), items, 1)
            except BaseException:
                self._stop.set()
                raise

    def _guard(self, fetch: ModelFetch, action: Callable[[ModelFetch], None]) -> None:
        try:
            action(fetch)
        except InterruptedFetchError:
            pass
        except Exception as error:  # noqa: BLE001, huggingface_hub raises many kinds
            self._fail(fetch, error)

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
            for path in fetch.files if self._anew else ():
                fetch.cache.forget(fetch.cache.snapshot(fetch.commit) / path)
            fetch.find_cached(partial(self._progress.add, title), self._stop)
        finally:
            self._progress.end(title)
        if self._anew:
            self._name_wrong(fetch)

    def _name_wrong(self, fetch: ModelFetch) -> None:
        hashes, expected = fetch.cache.hashes, fetch.spec.locked or LockedSnapshot("", {})
        hashes.save()
        folder = fetch.cache.snapshot(fetch.commit)
        for _, difference in differences(folder, expected.files, hashes.sha256):
            self._progress.say(f"{fetch.spec.title}: {difference}")
            with self._progress.lock:
                self.num_wrong += 1

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
        if not (wanted := downloads(self._good)):
            return
        needed = sum(one.num_bytes for _, one in wanted)
        folder, free = free_space(self._repository)
        print(f"{size(needed)} to fetch, {size(free)} free in {folder}")
        if needed > free:
            has = f"needs {size(needed)} and has {size(free)} free"
            message = f"does not fit on the disk: {folder} {has}, {size(needed - free)} too little"
            raise FetchError("\n".join([message, *self._failures]))

    def fetch(self) -> None:
        for fetch in self._good:
            if fetch.missing:
                done = _num_bytes_here(fetch)
                self._progress.begin(fetch.spec.title, fetch.num_bytes, done)
        began = time.monotonic()
        for fetch in [one for one in self._good if not one.missing]:
            self._complete(fetch)
        while wanted := downloads(self._good):  # again for models that shared with a failed one
            lacking = [fetch for fetch in self._good if fetch.missing]
            try:
                self._run_all(wanted, self._download)
            finally:
                self._share()
                for fetch in [one for one in lacking if not one.missing and not one.error]:
                    self._complete(fetch)
                    took = f"{time.monotonic() - began:.0f} s"
                    self._progress.say(f"{fetch.spec.title}: all of {fetch.source} is here, {took}")
        self._progress.end_all()

    def _download(self, work: tuple[ModelFetch, Download]) -> None:
        self._guard(work[0], partial(self._fetch_file, work[1]))

    def _fetch_file(self, wanted: Download, fetch: ModelFetch) -> None:
        if fetch.error:  # of another file
            return
        on_bytes = partial(self._progress.add, fetch.spec.title)
        on_wait = partial(self._on_wait, fetch.spec.title)
        found = download(wanted, self._stop, on_bytes, on_wait)
        with self._progress.lock:
            same = [path for path, file in fetch.missing.items() if file == wanted.file]
            fetch.here.update(dict.fromkeys(same, found))

    def _complete(self, fetch: ModelFetch) -> None:
        locked = fetch.locked_files
        files = {path: (file, locked[path]) for path, file in fetch.files.items()}
        place = fetch.cache, fetch.commit
        beside = [one.files for one in self._fetches if (one.cache, one.commit) == place]
        revision = lock_key(fetch.spec)[1]
        try:
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
            key, own = lock_key(fetch.spec), LockedSnapshot(fetch.commit, fetch.locked_files)
            found[key] = own.beside(found.get(key))
        return found

    def refuse_failures(self) -> None:
        if lines := self._failures:
            count = f"{len(lines)} of {len(self._fetches)} failed"
            raise FetchError("\n".join([count, *lines]))


def update_lock(config: Path, named: Iterable[Key], fetched: Lock) -> None:
    """Adds what was fetched to models.lock, and drops what is no longer ``named``. Raises
    FetchError, RepositoryError.
    """
    path = lock_path(config)
    with locked(path.absolute().parent, math.inf):
        old = read_lock(config) or {}
        entries = {key: old[key] for key in named if key in old}
        for key, snapshot in fetched.items():
            entries[key] = snapshot.beside(entries.get(key))
        content = to_bytes(entries)
        if (entries or path.exists()) and not (path.exists() and path.read_bytes() == content):
            try:
                write(str(path), content)
            except OSError as error:
                raise hub_client.disk_error(error, path) from None


def _wait_for(busy: str, wait: bool) -> None:
    if not wait:
        raise FetchError(f"{busy}; wait for that one")
    print(f"{busy}; waiting for that one", file=sys.stderr, flush=True)


def _num_bytes_here(fetch: ModelFetch) -> int:
    return sum(fetch.files[path].size for path in fetch.here)
