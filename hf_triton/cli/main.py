"""The command line: verbs in, exit codes out. Results go to stdout, messages to stderr.

Each verb is a module with HELP, ``add_arguments`` and ``run``; this one knows nothing of what they
do. It is one of the two places where exceptions are caught; errors.py lists the exit codes.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import stat
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from generator.errors import (
    EXIT_BUG,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    GeneratorError,
    error_text,
)
from generator.python_modules import leave_out_working_directory

VERBS = (
    "validate",
    "generate",
    "diff",
    "prune",
    "tasks",
    "fetch",
    "verify",
    "optimize",
    "serve",
    "apply",
    "deploy",
    "perf",
)
# Verbs of other packages, which need not be installed: their module, and what they are for.
OTHERS = {"perf": ("perf.verbs", "measure served models, compare results, find settings")}

_FULL = (errno.ENOSPC, errno.EDQUOT)

DESCRIPTION = "Serve Hugging Face models on Triton Inference Server from one models.yaml."
EXAMPLE = """\
example: a models.yaml with one model

  models:
    - name: smollm2
      task: text-generation
      model: HuggingFaceTB/SmolLM2-135M-Instruct

  hf-triton validate            # is every key right?
  hf-triton generate            # write model_repository/: smollm2/, and smollm2_stream/
  hf-triton fetch               # download the weights ahead, and lock their commits and hashes
  hf-triton serve               # do both, start Triton, print a curl line that works
  hf-triton apply               # after a change of models.yaml: update the running server
  hf-triton deploy kubernetes   # write the files to run them elsewhere: compose, kubernetes, kserve
  hf-triton perf sweep          # measure what is served, by perf_analyzer; see also perf --help
  hf-triton optimize NAME       # find the fastest engine for an embedding model or classifier

A model that streams becomes two Triton models: /infer and /generate go to NAME, /generate_stream
and gRPC streams to NAME_stream. `streaming: false` leaves the second one out.

`hf-triton tasks` lists what a model's `options:` can hold, and which tasks stream.
exit codes: 0 fine, 1 your input or stale output, 2 usage, 3 a bug of ours, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code. Raises SystemExit(2) for a wrong command line."""
    leave_out_working_directory()
    os.umask(os.umask(0) | stat.S_IWOTH)  # what is written is run: nobody else may change it
    args = make_parser().parse_args(argv)
    try:
        return run_verb(args)
    except GeneratorError as error:
        print(f"hf-triton: {error_text(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("hf-triton: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; nothing more can be said to it.
        _discard_output()
        return EXIT_INPUT
    except Exception as error:  # noqa: BLE001, the edge: whatever escapes is a bug of ours
        if isinstance(error, OSError) and error.errno in _FULL:
            where = f"{error.filename}: " if error.filename else ""
            print(f"hf-triton: {where}{error.strerror}; free some and try again", file=sys.stderr)
            _discard_output()  # which may be what is full
            return EXIT_INPUT
        traceback.print_exc()
        print("hf-triton: this is a bug in hf-triton; please report it", file=sys.stderr)
        return EXIT_BUG


def _discard_output() -> None:
    """What stdout still holds, and all that follows."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_verb(args: argparse.Namespace) -> int:
    """Runs the verb's module; stdout is complete when it returns."""
    code: int = _module(args.verb).run(args)
    if sys.stdout is not None:  # None where it was closed before we started
        sys.stdout.flush()
    return code


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "hf-triton", description=DESCRIPTION, epilog=EXAMPLE, formatter_class=raw
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in VERBS:
        module = _module(name)
        summary = OTHERS[name][1] if name in OTHERS else module.HELP
        sentence = f"{summary[0].upper()}{summary[1:]}."
        verb = verbs.add_parser(name, help=summary, description=sentence)
        _add_places(verb)
        module.add_arguments(verb)
    return parser


def _module(verb: str) -> Any:
    """With ``add_arguments`` and ``run``."""
    if verb not in OTHERS:
        return importlib.import_module(f"hf_triton.cli.verbs.{verb}")
    name = OTHERS[verb][0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):
            raise
        return _Absent(verb)


@dataclass(frozen=True)
class _Absent:
    """A verb whose package is not there: it takes whatever it is given, and says so."""

    verb: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, args: argparse.Namespace) -> int:
        command = " ".join(["hf-triton", self.verb, *args.rest[:1]])
        raise GeneratorError(
            f"{command}: the package `{self.verb}` is not beside `generator`; install hf-triton "
            "again"
        )


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=_path, default="models.yaml", metavar="FILE", help="default: models.yaml"
    )
    parser.add_argument(
        "--repository",
        type=_path,
        default="model_repository",
        metavar="FOLDER",
        help="default: model_repository",
    )


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a path")
    return text
