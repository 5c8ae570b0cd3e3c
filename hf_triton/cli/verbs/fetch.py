"""``hf-triton fetch``: downloads the models of models.yaml before serving, and writes models.lock.
With ``--verify`` it first compares what is here with that, byte by byte.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from generator.errors import FetchError
from generator.fetch.fetching import FetchRun, update_lock
from generator.fetch.plan import hub_models
from generator.flag_values import whole
from generator.models_yaml import models_lock
from generator.models_yaml.reading import load_unpinned, named
from generator.spec.model_spec import ModelSpec
from hf_triton.cli.places import add_switches
from hf_triton.serving.python_env import ensure_environments, preview

NUM_WORKERS = 8
EPILOG = """\
  hf-triton fetch --dry-run     # what would be downloaded, and does it fit on the disk?
  hf-triton fetch               # download; what is here already is checked, not fetched again
  hf-triton fetch --locked      # the same elsewhere: exactly the files of models.lock, or an error
  hf-triton fetch --update NAME # move NAME's branch to its newest commit
  hf-triton fetch --envs-only   # only build the Python environments that models ask for
  hf-triton fetch --verify      # hash everything again, and fetch what differs from models.lock;
                                # with --dry-run name it only: exit code 1, no network

Files go to model_repository/NAME/hf_cache/. models.lock, beside models.yaml, records the commit
and the SHA-256 of every file: keep it under version control. Where it exists, `generate` pins the
commit and the server loads nothing that differs; delete it to serve without. An interrupted fetch
(Ctrl-C, kill, a lost connection) resumes where it stopped. Weights are safetensors; pickles, which
can run code of their author, are fetched only for models with `allow_pickle: true`.

A private or gated model needs HF_TOKEN (or PRIVATE_REPO_TOKEN) in the environment; HF_ENDPOINT
names another Hub, HF_HUB_DOWNLOAD_TIMEOUT the seconds until a silent connection is given up (10).
Object stores (s3://, gs://, az://) take their own credentials: docs/models-yaml.md.
exit codes: 0 all is here, 1 something is not (the others are), 2 usage, 130 interrupted
"""
_WAYS = {
    "--locked": "fetch exactly the files of models.lock; an error if models.yaml asks for more",
    "--update": "look up branches and tags again, instead of taking the commits in models.lock",
    "--verify": "read every downloaded file, unlike the server, which hashes a file once and "
    "recognizes it by its size, time and inode; fetch again what differs from models.lock",
}
_SWITCHES = {
    "--dry-run": "print what would be fetched, and whether it fits on the disk",
    "--envs-only": "build the Python environments (python_env) and fetch no weights",
    "--wait": "wait for another fetch of the same models (default: an error)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="models of models.yaml (default: all)"
    )
    add_switches(parser.add_mutually_exclusive_group(), _WAYS)
    add_switches(parser, _SWITCHES)
    parser.add_argument(
        "--max-workers",
        type=whole(1, 64),
        default=NUM_WORKERS,
        metavar="N",
        help=f"files downloaded at once (default: {NUM_WORKERS})",
    )


def run(args: argparse.Namespace) -> int:
    """Raises GeneratorError where a model can't be fetched, after all others are complete."""
    config = Path(args.config)
    args.locked |= args.verify
    specs = load_unpinned(config)
    wanted = [named(specs, name, config) for name in args.names]
    chosen = [spec for spec in specs if not wanted or spec in wanted]
    for line in preview(chosen):
        print(line, flush=True)
    failed = {} if args.dry_run else ensure_environments(chosen)
    failures = [f"{name}: {failure}" for name, failure in failed.items()]
    if not args.envs_only:
        try:
            _fetch(config, specs, chosen, args)
        except FetchError as error:
            failures.append(str(error))
    if failures:
        raise FetchError("\n".join(failures))
    return 0


def _fetch(
    config: Path, specs: Sequence[ModelSpec], chosen: Sequence[ModelSpec], args: argparse.Namespace
) -> None:
    """Raises GeneratorError where weights can't be fetched, after all others are complete."""
    lock = None if args.update else models_lock.read_lock(config)
    if args.locked:
        if lock is None:
            name = models_lock.lock_path(config)
            raise FetchError(f"{name}: no such file; run hf-triton fetch once to make it")
        chosen = models_lock.pin(chosen, lock, config)
    workers = args.max_workers
    fetching = FetchRun(Path(args.repository), chosen, lock or {}, workers, anew=args.verify)
    with contextlib.ExitStack() as stack:
        if not args.dry_run:
            fetching.lock_caches(stack, wait=args.wait)
        fetching.prepare(share_files=not args.dry_run)
        fetching.preview()
        if not args.dry_run:
            try:
                fetching.fetch()
            except KeyboardInterrupt:
                message = "received files are kept; run the same command to continue"
                print(f"hf-triton: {message}", file=sys.stderr)
                raise
            finally:
                if not args.locked:
                    named = [models_lock.lock_key(spec) for spec in hub_models(specs)]
                    update_lock(config, named, fetching.locked())
    fetching.refuse_failures()
    if args.dry_run and (wrong := fetching.num_wrong):
        files = "1 file is" if wrong == 1 else f"{wrong} files are"
        name = models_lock.lock_path(config)
        raise FetchError(f"{files} not as in {name}: run hf-triton fetch --verify")
    if args.verify or not args.dry_run:
        _report(config, specs, args.locked)


def _report(config: Path, specs: Sequence[ModelSpec], locked: bool) -> None:
    lock = models_lock.read_lock(config)
    if lock is None:
        return
    name = models_lock.lock_path(config)
    print(f"all is here, as in {name}" if locked else f"all is here, locked in {name}")
    others = [spec.name for spec in hub_models(specs) if models_lock.lock_key(spec) not in lock]
    if others:
        message = f"not in {name} yet, and generate will ask for it"
        print(f"{', '.join(others)}: {message}: run hf-triton fetch", file=sys.stderr)
