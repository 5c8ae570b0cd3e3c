"""Gets the files of a model and its adapters into the model's cache, or says in one line why they
can't be used. Once they are complete there, no network is used.
"""

from __future__ import annotations

import atexit
import glob
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .. import log
from ..errors import LoadError, reason
from ..regular_file import check_regular, read_json
from .hub_files import (
    ADAPTER_CONFIG,
    NotServableError,
    choose_adapter_files,
    choose_gguf_file,
    choose_model_files,
    error_line,
    has_config,
    hub_token,
    is_stored,
    needed_pickles,
    other_kind,
)
from .locked_files import (
    FileHashes,
    LockedFile,
    cached_snapshot,
    differences,
    snapshot_folder,
)
from .served_model import ServedAdapter, ServedModel
from .untrusted_files import check_files

_Read = TypeVar("_Read")
_NUM_DOWNLOADS = 8
_LISTING_S = 60.0


def model_files(served: ServedModel) -> Path:
    """The folder with the model's files: the local path, or the snapshot in the cache, downloaded
    if it is not complete. A model that models.lock pins is checked against it at every load. Raises
    LoadError: the files are missing, forbidden, unreachable, differ from models.lock, or can't be
    used (untrusted_files.py).
    """
    if served.local and served.gguf_file is not None:
        return _local_gguf(served, served.gguf_file)
    if served.local:
        check_files(served.source, served.local_path, trusts_code=served.trust_remote_code)
        return _local_files(served)
    if served.locked_files is not None:
        files = _locked_snapshot(served, served.locked_files)
    else:
        files = _cached_snapshot(served, served.cache_dir) or _download(served)
    check_files(served.source, files, trusts_code=served.trust_remote_code)
    return files


def _local_gguf(served: ServedModel, name: str) -> Path:
    """A folder that holds a link to the file alone: transformers reads nothing that lies beside."""
    path = served.local_path
    folder = Path(tempfile.mkdtemp(prefix="hf-triton-gguf-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        check_regular(path)
    except OSError as error:
        raise LoadError(f"{served.source}: {reason(error)}") from None
    (folder / name).symlink_to(path)
    return folder


def _local_files(served: ServedModel) -> Path:
    folder = served.local_path
    kind, config = ("adapter", ADAPTER_CONFIG) if served.is_adapter else ("model", "config.json")
    names = _names_in(folder)
    if not has_config(names, config):
        other = None if served.is_adapter else other_kind(names)
        why = f"no {config} in {folder}" if other is None else f"{folder} {other}"
        raise LoadError(f"local {kind}: {why}")
    if needed_pickles(names):
        _choose_files(served, names)
    return folder


def _names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _choose_files(served: ServedModel, names: Iterable[str]) -> list[str]:
    try:
        if served.gguf_file is not None:
            return choose_gguf_file(names, served.gguf_file)
        rule = choose_adapter_files if served.is_adapter else choose_model_files
        return rule(names, served.allow_pickle)
    except NotServableError as error:
        raise LoadError(f"{served.source} {error}") from None


def _cached_snapshot(served: ServedModel, cache_dir: Path) -> Path | None:
    """The snapshot in a cache if it is complete. Raises LoadError: the model may not load it."""
    files = cached_snapshot(cache_dir, served.model, served.revision)
    if not files.is_dir():
        return None
    present = _names_in(files)
    if listed := _listed_files(served, files.name, cache_dir):
        return files if present.issuperset(_choose_files(served, listed)) else None
    # As `hf-triton fetch` left it, or a program that downloads files one by one.
    config = served.gguf_file or (ADAPTER_CONFIG if served.is_adapter else "config.json")
    pickles = needed_pickles(present)
    has_weights = pickles or any(name.endswith((".safetensors", ".gguf")) for name in present)
    if not (has_weights and has_config(present, config)):
        return None
    names = FileHashes(cache_dir).names(files).union(_choose_files(served, present))
    index = f".{'bin' if pickles else 'safetensors'}.index.json"
    try:
        maps = [read_json(files / name)["weight_map"] for name in names if name.endswith(index)]
        shards = {shard for weight_map in maps for shard in weight_map.values()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None  # a broken index
    return files if names | shards <= present else None


def _listed_files(served: ServedModel, commit: str, cache_dir: Path) -> list[str]:
    """The names of the commit's files as huggingface_hub recorded them; empty without a record."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    with suppress(CachedRepoTreeNotFoundError):  # by `hf-triton fetch`: links to complete files
        if not is_stored(served.model):
            listed = get_cached_repo_tree(served.model, revision=commit, cache_dir=cache_dir)
            return [file.path for file in listed]
    return []


def _download(served: ServedModel) -> Path:
    _begin_download(served)
    from huggingface_hub import HfApi, snapshot_download

    try:
        listed = HfApi(token=hub_token()).model_info(
            served.model, revision=served.revision, timeout=_LISTING_S
        )
        names = _choose_files(served, [file.rfilename for file in listed.siblings or []])
        files = snapshot_download(
            served.model,
            revision=served.revision,
            cache_dir=served.cache_dir,
            token=hub_token(),
            allow_patterns=[glob.escape(name) for name in names],
        )
        return Path(files)
    except LoadError:
        raise
    except Exception as error:
        # However a download fails, the operator gets one line.
        found = _users_snapshot(served)
        if found is None:
            raise LoadError(_download_failure(served, error)) from error
        log.warn(
            f"{served.name}: the Hub gave no answer: loading {served.source} from HF_HOME, "
            f"{found.name}"
        )
        return found


def _begin_download(served: ServedModel, what: str = "") -> None:
    """Raises LoadError for an object store: servers download from none, so that they need no
    credentials.
    """
    if is_stored(served.model):
        raise LoadError(
            f"{served.source} is incomplete in {served.cache_dir.name}/ of {served.public_name}: "
            f"run `hf-triton fetch {served.public_name}`"
        )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    log.info(f"{served.name}: downloading {what}{served.source}")


def _users_snapshot(served: ServedModel) -> Path | None:
    """The snapshot in the cache that huggingface_hub has for all programs, if it is complete."""
    from huggingface_hub import constants

    with suppress(OSError, LoadError):  # not what may be read or loaded
        return _cached_snapshot(served, Path(constants.HF_HUB_CACHE))
    return None


def _locked_snapshot(served: ServedModel, locked: Mapping[str, LockedFile]) -> Path:
    """The snapshot of the locked commit, every file of which matches models.lock."""
    folder = snapshot_folder(served.cache_dir, served.model, str(served.revision))
    missing = [path for path in sorted(locked) if not (folder / path).is_file()]
    if missing:
        _download_missing(served, missing)
    hashes = FileHashes(served.cache_dir)
    path, different = next(differences(folder, locked, hashes.sha256), ("", ""))
    hashes.save()
    if not path:
        return folder
    if path in missing:  # just downloaded, and wrong: the next load downloads it again
        (folder / path).resolve().unlink(missing_ok=True)
        (folder / path).unlink(missing_ok=True)
    raise LoadError(
        f"{served.source}: {different} ({served.cache_dir.name}/ of {served.public_name}); nothing "
        f"was loaded. `hf-triton fetch {served.public_name}` repairs it"
    )


def _download_missing(served: ServedModel, missing: list[str]) -> None:
    _begin_download(served, f"{len(missing)} file{'s' * (len(missing) != 1)} of ")
    from huggingface_hub import hf_hub_download

    place: dict[str, Any] = {"revision": served.revision, "cache_dir": served.cache_dir}

    def download(name: str) -> None:
        hf_hub_download(served.model, name, **place, token=hub_token())

    try:
        with ThreadPoolExecutor(_NUM_DOWNLOADS) as pool:
            list(pool.map(download, missing))
    except Exception as error:
        # However a download fails, the operator gets one line.
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise LoadError(
            f"{missing[0]}{more} missing in {served.cache_dir.name}/: "
            f"{_download_failure(served, error)}; run `hf-triton fetch {served.public_name}` where "
            "the Hub can be reached"
        ) from error


def _download_failure(served: ServedModel, error: Exception) -> str:
    from huggingface_hub import errors

    source = served.source
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{source} is gated: accept its terms on the Hub and set HF_TOKEN to a token that may "
            "read it"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{source}: the Hub has no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{source}: the Hub has no such model, or it is private and HF_TOKEN is not set to a "
            "token that may read it"
        )
    return f"{source} could not be downloaded into {served.cache_dir.name}/: {error_line(error)}"


def adapters_at_load(
    served: ServedModel, read: Callable[[list[ServedAdapter]], list[_Read]]
) -> list[_Read]:
    """Reads the model's adapters with ``read``; leaves out those that a request had loaded and that
    can't be read any more. Raises LoadError as ``read``.
    """
    found: list[_Read] = []
    for one in served.adapters:
        try:
            found += read([one])
        except LoadError as error:
            if one.loaded_at is None:
                raise
            log.error(f"{served.name}: {error}; the adapter, which a request loaded, is left out")
    return found


def adapter_folder(served: ServedModel, adapter: ServedAdapter) -> Path:
    """Raises LoadError, with the adapter's name, as ``model_files``."""
    part = replace(
        served,
        model=adapter.model,
        local=adapter.local,
        revision=adapter.revision,
        locked_files=adapter.locked_files,
        adapters=(),
        gguf_file=None,
        is_adapter=True,
    )
    try:
        return model_files(part)
    except LoadError as error:
        raise LoadError(f"adapter {adapter.name}: {error}") from error
