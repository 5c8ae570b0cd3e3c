"""``hf-triton verify``: hashes cached files again and compares them with models.lock."""

from __future__ import annotations

import argparse
import sys
import threading
from functools import partial
from pathlib import Path

from generator.errors import FetchError
from generator.fetch.fetching import run_all
from generator.fetch.model_cache import ModelCache, caches_of
from generator.fetch.plan import chosen_models, hub_models
from generator.fetch.progress import Progress, size
from generator.models_yaml import models_lock
from generator.models_yaml.reading import load
from generator.spec.model_spec import LockedSnapshot, ModelSpec
from hf_triton.cli.verbs import fetch
from hf_triton.runtime.weights.locked_files import Difference, differences, hash_file

EPILOG = """\
  hf-triton verify              # names each missing, short, altered or added file; exit code 1
  hf-triton verify --repair     # and fetches those files again, from the locked commit

Reads every byte, unlike the server, which hashes a file once and recognizes it by its size, time
and inode. Needs no network without --repair.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="models of models.yaml (default: all)"
    )
    parser.add_argument(
        "--repair", action="store_true", help="fetch differing files again, as fetch --locked does"
    )


def run(args: argparse.Namespace) -> int:
    """Raises FetchError where a file differs from models.lock."""
    config = Path(args.config)
    if models_lock.read_lock(config) is None:
        name = models_lock.lock_path(config)
        raise FetchError(f"{name}: no such file; run hf-triton fetch once to make it")
    specs = hub_models(chosen_models(load(config), args.names, config))
    wrong = _verify(specs, Path(args.repository))
    if not wrong:
        num_models = len({spec.name for spec in specs})
        print(f"{num_models} model{'s' * (num_models != 1)} as in {models_lock.lock_path(config)}")
        return 0
    names = " ".join(dict.fromkeys(spec.name for spec in specs if spec.name in wrong))
    if args.repair:
        print(f"hf-triton: fetching again: {' '.join(wrong)}", file=sys.stderr)
        parser = argparse.ArgumentParser()
        fetch.add_arguments(parser)
        asked = argparse.Namespace(config=args.config, repository=args.repository)
        return fetch.run(parser.parse_args(["--locked", *wrong], asked))
    count = sum(map(len, wrong.values()))
    files = "1 file is" if count == 1 else f"{count} files are"
    raise FetchError(
        f"{files} not as in {models_lock.lock_path(config)}: run hf-triton verify --repair {names}"
    )


def _verify(specs: list[ModelSpec], repository: Path) -> dict[str, list[Difference]]:
    """Prints each model's faults as they are found; returns the models that have any."""
    progress, stop = Progress(), threading.Event()
    wrong: dict[str, list[Difference]] = {}

    def check(part: tuple[ModelSpec, ModelCache]) -> None:
        found = _check(*part, progress)
        if found:
            wrong.setdefault(part[0].name, []).extend(found)

    parts = list(zip(specs, caches_of(repository, specs), strict=True))
    run_all(parts, check, 2, stop)  # one thread reads while the other hashes
    return wrong


def _check(spec: ModelSpec, cache: ModelCache, progress: Progress) -> list[Difference]:
    locked = spec.locked or LockedSnapshot("", {})
    folder = cache.snapshot(locked.commit)

    def hash_anew(path: Path) -> str:
        sha256 = hash_file(path, partial(progress.add, spec.title))
        cache.hashes.add(path, sha256)
        return sha256

    progress.begin(spec.title, locked.size)
    try:
        found = list(differences(folder, locked.files, hash_anew))
    except OSError as error:
        raise FetchError(f"{error.filename}: can't be read: {error.strerror}") from None
    finally:
        progress.end(spec.title)
    for difference in found:
        progress.say(f"{spec.title}: {difference}")
        cache.forget(folder / difference.path)
    cache.hashes.save()
    if not found:
        files = f"{len(locked.files)} file{'s' * (len(locked.files) != 1)}"
        print(f"{spec.title}: {files}, {size(locked.size)}: as locked")
    return found
