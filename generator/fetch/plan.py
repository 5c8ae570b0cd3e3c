"""Plans a fetch: each model's commit and files, the cached ones, and whether the rest fits on the
disk.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from generator.errors import FetchError, ModelError
from generator.fetch import hub_client
from generator.fetch.download import Download
from generator.fetch.hub_client import HubFile, Listing
from generator.fetch.model_cache import CachedFile, ModelCache
from generator.fetch.partial_file import part_size
from generator.models_yaml.models_lock import Lock, chosen_files, is_commit, lock_key
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from generator.spec.runtime_rules import LockedFile, NotServableError
from generator.yaml_file.schema import did_you_mean


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
        """The model as messages name it."""
        return "@".join(filter(None, (self.spec.source.text, self.spec.revision)))

    @property
    def missing(self) -> dict[str, HubFile]:
        """The files still to be downloaded, by path."""
        return {path: file for path, file in self.files.items() if path not in self.here}

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    @property
    def num_bytes_here(self) -> int:
        """The bytes of the complete files and of partial downloads."""
        parts = (part_size(self.cache.part(file)) for file in self.missing.values())
        whole = sum(self.files[path].size for path in self.here)
        return min(whole + sum(parts), self.num_bytes)


def resolve(fetch: ModelFetch, lock: Lock, list_files: Callable[[str, str], Listing]) -> None:
    """Finds the model's commit and files: in the lock, else at the Hub.

    Raises:
        FetchError: it has no files that may be served.
        Exception: whatever ``list_files`` raises.
    """
    repository, revision = lock_key(fetch.spec)
    locked = lock.get((repository, revision))
    if locked is not None and fetch.spec.gguf_file not in (None, *locked.files):
        locked = None  # the file that the previous revision served
    if locked is not None and (not is_commit(revision) or locked.commit == revision):
        fetch.commit, fetch.is_locked = locked.commit, True
        known = {path: HubFile(file.size, file.sha256) for path, file in locked.files.items()}
    else:
        listing = list_files(repository, revision)
        fetch.commit, known = listing.commit, dict(listing.files)
    try:
        names = chosen_files(fetch.spec, known)
    except NotServableError as error:
        raise FetchError(f"it {error}") from None
    fetch.files = {name: known[name] for name in names}


def find_cached(fetch: ModelFetch, on_bytes: Callable[[int], None], stop: Event) -> None:
    """Finds cached files; hashes those without a record."""
    for path, file in fetch.files.items():
        if stop.is_set():
            raise hub_client.InterruptedFetchError("interrupted")
        found = fetch.cache.find(fetch.commit, path, file, on_bytes)
        if found is not None:
            fetch.here[path] = found


def downloads(fetches: Iterable[ModelFetch]) -> list[Download]:
    """The needed downloads, one for each content of a repository, the largest first."""
    wanted: dict[tuple[str, str], list[tuple[ModelFetch, str, HubFile]]] = defaultdict(list)
    for fetch in fetches:
        for path, file in fetch.missing.items():
            wanted[fetch.cache.hub_id, file.name].append((fetch, path, file))
    found = []
    for (repository, _), places in wanted.items():
        fetch, path, file = places[0]
        caches = tuple(dict.fromkeys(place[0].cache for place in places))
        found.append(Download(repository, fetch.commit, path, file, caches))
    return sorted(found, key=lambda one: (-one.file.size, one.path))


def share(fetches: Iterable[ModelFetch]) -> None:
    """Takes missing files from another model's cache, where that has them."""
    having = list(fetches)
    for fetch in having:
        for path, file in fetch.missing.items():
            for other in having:
                same = other.cache.hub_id == fetch.cache.hub_id and other.files.get(path) == file
                if same and path in other.here:
                    fetch.here[path] = fetch.cache.take(other.here[path], file)
                    break


@dataclass(frozen=True)
class DiskSpace:
    """The bytes that a fetch needs and those that are free on one file system."""

    folder: Path
    needed: int
    free: int

    @property
    def fits(self) -> bool:
        return self.needed <= self.free


def disk_spaces(wanted: Iterable[Download]) -> list[DiskSpace]:
    """The space needed on each file system; a file that two models share there counts once."""
    folders: dict[int, Path] = {}
    needed: dict[int, int] = defaultdict(int)
    for one in wanted:
        devices: dict[int, tuple[Path, ModelCache]] = {}
        for cache in one.caches:
            folder = existing(cache.folder)
            devices.setdefault(folder.stat().st_dev, (folder, cache))
        for device, (folder, cache) in devices.items():
            folders.setdefault(device, folder)
            needed[device] += max(0, one.file.size - part_size(cache.part(one.file)))
    return [DiskSpace(folders[device], needed[device], free(folders[device])) for device in folders]


def existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def free(folder: Path) -> int:
    """Free bytes there for users other than root."""
    return shutil.disk_usage(folder).free


def locked_snapshot(fetch: ModelFetch) -> LockedSnapshot:
    """The lock entry of a complete model."""
    files = {
        path: LockedFile(file.size, fetch.here[path].sha256) for path, file in fetch.files.items()
    }
    return LockedSnapshot(fetch.commit, files)


def chosen_models(
    specs: Sequence[ModelSpec], names: Sequence[str], config: Path
) -> list[ModelSpec]:
    """The models of these names; all of them without names. Raises ModelError for an unknown
    name.
    """
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "models")
            raise ModelError(f"{config} has no model named {name!r}{hint}")
    return [spec for spec in specs if not names or spec.name in names]


def hub_models(specs: Iterable[ModelSpec]) -> list[ModelSpec]:
    """The models that come from the Hub; adapters are listed as models of their own."""
    return [part for spec in specs for part in spec.parts if not part.source.is_local]
