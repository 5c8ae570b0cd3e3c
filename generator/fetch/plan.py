"""Plans a fetch: each model's commit and files, the cached ones, and the room that they need."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from generator.errors import FetchError
from generator.fetch.hub_client import HubFile, InterruptedFetchError, Listing
from generator.fetch.model_cache import CachedFile, Download, ModelCache
from generator.models_yaml.models_lock import Lock, chosen_files, is_commit, lock_key
from generator.spec.model_spec import ModelSpec
from hf_triton.runtime.weights.hub_files import NotServableError
from hf_triton.runtime.weights.locked_files import LockedFile


def hub_models(specs: Iterable[ModelSpec]) -> list[ModelSpec]:
    """The models that come from the Hub; adapters are listed as models of their own."""
    return [part for spec in specs for part in spec.parts if not part.source.is_local]


@dataclass
class ModelFetch:
    """The fetch of one Hub model: ``files`` are needed, ``here`` are cached. ``is_locked``:
    models.lock determined the files; ``error`` is the reason of a failure.
    """

    spec: ModelSpec
    cache: ModelCache
    commit: str = ""
    is_locked: bool = False
    files: Mapping[str, HubFile] = field(default_factory=dict)
    here: dict[str, CachedFile] = field(default_factory=dict)
    error: str = ""

    @property
    def source(self) -> str:
        return "@".join(filter(None, (self.spec.source.text, self.spec.revision)))

    @property
    def missing(self) -> dict[str, HubFile]:
        return {path: file for path, file in self.files.items() if path not in self.here}

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def locked_files(self) -> dict[str, LockedFile]:
        files = self.files.items()
        return {path: LockedFile(file.size, self.here[path].sha256) for path, file in files}

    def resolve(self, lock: Lock, list_files: Callable[[str, str], Listing]) -> None:
        """Finds commit and files: in the lock, else at the Hub. Raises FetchError where none may be
        served, and whatever ``list_files`` raises.
        """
        repository, revision = lock_key(self.spec)
        locked = lock.get((repository, revision))
        if locked is not None and is_commit(revision) and locked.commit != revision:
            locked = None
        if locked is not None:
            known = {path: HubFile(file.size, file.sha256) for path, file in locked.files.items()}
            with contextlib.suppress(NotServableError):
                names = chosen_files(self.spec, known)
                self.commit, self.is_locked = locked.commit, True
                self.files = {name: known[name] for name in names}
                return
            # models.yaml asks for other files than before: take them from the locked commit.
            revision = locked.commit
        listing = list_files(repository, revision)
        update = f"hf-triton fetch --update {self.spec.name} looks for newer ones"
        if locked is not None and listing.commit != locked.commit:
            raise FetchError(f"it has changed since it was locked; {update}")
        try:
            names = chosen_files(self.spec, listing.files)
        except NotServableError as error:
            hint = f" in the commit of models.lock; {update}" if locked is not None else ""
            raise FetchError(f"it {error}{hint}") from None
        self.commit, self.files = listing.commit, {name: listing.files[name] for name in names}

    def find_cached(self, on_bytes: Callable[[int], None], stop: Event) -> None:
        for path, file in self.files.items():
            if stop.is_set():
                raise InterruptedFetchError("interrupted")
            found = self.cache.find(self.commit, path, file, on_bytes)
            if found is not None:
                self.here[path] = found


def share(fetch: ModelFetch, others: Sequence[ModelFetch]) -> None:
    """Takes missing files from the cache of another model of the same repository. Raises
    FetchError.
    """
    for path, file in fetch.missing.items():
        for other in others:
            same = other.cache.hub_id == fetch.cache.hub_id and other.files.get(path) == file
            if same and path in other.here:
                found, is_own = other.here[path], other.cache is fetch.cache
                fetch.here[path] = found if is_own else fetch.cache.take(found, file)
                break


def downloads(fetches: Iterable[ModelFetch]) -> list[tuple[ModelFetch, Download]]:
    """Each file once, the largest first, with one of the models that lack it."""
    wanted: dict[tuple[str, str], tuple[ModelFetch, Download]] = {}
    for fetch in fetches:
        for path, file in fetch.missing.items():
            one = Download(fetch.commit, path, file, fetch.cache)
            wanted.setdefault((fetch.cache.hub_id, file.name), (fetch, one))
    return sorted(wanted.values(), key=lambda each: (-each[1].file.size, each[1].path))


def free_space(repository: Path) -> tuple[Path, int]:
    """A folder on the repository's file system, which may not be there yet, and its free bytes."""
    folder = next(path for path in (repository, *repository.absolute().parents) if path.exists())
    return folder, shutil.disk_usage(folder).free
