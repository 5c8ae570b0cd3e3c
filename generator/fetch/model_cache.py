"""A model's cache of one Hub repository, in ``huggingface_hub``'s layout. A snapshot's folder
appears only when all of its files are complete and verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from generator.errors import RepositoryError
from generator.fetch.hub_client import HubFile, disk_error
from generator.render.manifest import WEIGHTS_FOLDER
from generator.repository.writing import locked_file
from generator.spec.model_spec import ModelSpec
from hf_triton.runtime.weights.locked_files import (
    FileHashes,
    LockedFile,
    added_files,
    repository_folder,
    snapshot_folder,
)

LOCK_FILE = ".hf-triton-fetch.lock"


class CachedFile(NamedTuple):
    """A file in a cache whose hash is right."""

    sha256: str
    place: Path


class ModelCache:
    """The cache of one Hub repository for the model ``name``, in the folder of ``hashes``."""

    def __init__(self, name: str, hub_id: str, hashes: FileHashes) -> None:
        self.name = name
        self.hub_id = hub_id
        self.folder = hashes.cache_dir
        self.hashes = hashes
        self._blobs = repository_folder(self.folder, hub_id) / "blobs"

    def snapshot(self, commit: str) -> Path:
        return snapshot_folder(self.folder, self.hub_id, commit)

    def blob(self, file: HubFile) -> Path:
        return self._blobs / file.name

    def part(self, file: HubFile) -> Path:
        return self._blobs / f"{file.name}.incomplete"

    def find(
        self, commit: str, path: str, file: HubFile, on_bytes: Callable[[int], None]
    ) -> CachedFile | None:
        """Returns the cached file, or None if no file has the right hash. Object stores report
        versions instead of hashes, so a file of theirs is found only if its hash was recorded at
        download. ``on_bytes`` is told how many bytes were hashed.
        """
        for place in (self.snapshot(commit) / path, self.blob(file)):
            with contextlib.suppress(OSError):
                if not place.is_file() or place.stat().st_size != file.size:
                    continue
                if file.version is not None:
                    sha256, is_right = self.hashes.recorded(place), True
                else:
                    sha256 = self.hashes.sha256(place, on_bytes)
                    is_right = sha256 == file.sha256
                if file.git_oid is not None:
                    content = place.read_bytes()
                    header = b"blob %d\0" % len(content)
                    found = hashlib.sha1(header + content, usedforsecurity=False)
                    is_right = found.hexdigest() == file.git_oid
                if sha256 and is_right:
                    return CachedFile(sha256, place)
        return None

    def forget(self, place: Path) -> None:
        """Drops the recorded hashes of a wrong file and, if it is a link, of its target."""
        self.hashes.forget(place)
        with contextlib.suppress(ValueError):  # the target is outside the cache
            self.hashes.forget(self.folder / place.resolve().relative_to(self.folder.resolve()))

    def note(self, file: HubFile, sha256: str) -> CachedFile:
        """Records the hash of a blob that was just written."""
        self.hashes.add(self.blob(file), sha256)
        self.hashes.save()
        return CachedFile(sha256, self.blob(file))

    def take(self, found: CachedFile, file: HubFile) -> CachedFile:
        """Hard-links or copies a file of another cache into this one. Raises FetchError."""
        target = self.blob(file)
        scratch = self.part(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch.unlink(missing_ok=True)
            try:
                os.link(found.place.resolve(), scratch)
            except OSError:  # another file system, or one without links
                shutil.copyfile(found.place, scratch)
            scratch.replace(target)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise disk_error(error, target) from error
        return self.note(file, found.sha256)

    def complete(
        self,
        commit: str,
        revision: str,
        files: Mapping[str, tuple[HubFile, LockedFile]],
        kept: Iterable[str],
    ) -> None:
        """Makes the commit's snapshot of ``files``, all of which are cached already. Removes other
        files from it except those in ``kept``. Raises FetchError.
        """
        folder = self.snapshot(commit)
        try:
            if not folder.exists():
                scratch = _scratch(folder)
                shutil.rmtree(scratch, ignore_errors=True)
                for path, (file, _) in files.items():
                    self._link(scratch / path, folder / path, self.blob(file))
                scratch.rename(folder)
            for path, (file, locked) in files.items():
                self._mend(folder / path, file, locked)
            for path in added_files(folder, {*files, *kept}):
                (folder / path).unlink()
            if revision != commit:
                ref = repository_folder(self.folder, self.hub_id) / "refs" / revision
                ref.parent.mkdir(parents=True, exist_ok=True)
                scratch = _scratch(ref)
                scratch.write_text(commit, encoding="utf-8")
                scratch.replace(ref)
            for path, (_, locked) in files.items():
                self.hashes.add(folder / path, locked.sha256)
        except OSError as error:
            raise disk_error(error, folder) from error
        self.hashes.save()

    def _mend(self, place: Path, file: HubFile, locked: LockedFile) -> None:
        """Links a snapshot's file to its blob again if its recorded hash is not the locked one."""
        blob = self.blob(file)
        if self.hashes.recorded(place) == locked.sha256 or not blob.is_file():
            return
        wrong = place.resolve()
        if wrong != blob.resolve() and wrong.parent == self._blobs.resolve():
            wrong.unlink(missing_ok=True)  # or huggingface_hub would find and link it
        scratch = _scratch(place)
        scratch.unlink(missing_ok=True)
        self._link(scratch, place, blob)
        scratch.replace(place)

    def _link(self, link: Path, place: Path, blob: Path) -> None:
        """Creates ``link``, which points to ``blob`` once it is moved to ``place``."""
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, place.parent))

    @contextlib.contextmanager
    def locked(self, on_busy: Callable[[str], None]) -> Iterator[None]:
        """Creates and locks the folder. If another process holds the lock, calls ``on_busy`` with
        a message, then waits. Raises RepositoryError.
        """
        busy = f"{self.folder}: another hf-triton is fetching {self.name}"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked_file(self.folder / LOCK_FILE, partial(on_busy, busy)))
            except OSError as error:
                why = f"{self.folder}: can't be written: {error.strerror}"
                raise RepositoryError(why) from None
            yield


def caches_of(repository: Path, specs: Iterable[ModelSpec]) -> list[ModelCache]:
    hashes = cache(lambda name: FileHashes(repository / name / WEIGHTS_FOLDER))
    cache_of = cache(lambda name, hub_id: ModelCache(name, hub_id, hashes(name)))
    return [cache_of(spec.name, spec.source.text) for spec in specs]


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.hf-triton-tmp")
