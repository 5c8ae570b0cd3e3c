"""The command line: verbs in, exit codes out. Results go to stdout, messages to stderr.

Each verb is a module with ``run``, and ``add_arguments`` where it has some; this one knows what
they do only in a line of help. It is one of the two places where exceptions are caught; errors.py
lists the exit codes.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import stat
import sys
import traceback
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from generator.errors import (
    EXIT_BUG,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    GeneratorError,
    UsageError,
    error_text,
)
from generator.python_modules import leave_out_working_directory
from hf_triton.cli.places import Places, add_places
from hf_triton.version import VERSION

# Each with what --help says of it: here, so that only the verb that runs is imported.
VERBS = {
    "add": "write an entry for a model into models.yaml; find out its task",
    "validate": "check models.yaml; report every mistake with its line and column",
    "generate": "write the model repository: only what has changed, and never over your own edits",
    "diff": "show what generate would change; exit 1 when the repository is stale",
    "prune": "remove generated models that models.yaml no longer names; never your files",
    "tasks": "list the tasks, whether they stream, and their options with units, ranges, defaults",
    "schema": "print the JSON Schema of models.yaml, by which editors complete and check it",
    "fetch": "download the models of models.yaml into their caches, and lock them in models.lock",
    "optimize": "compare a model's engines on this machine: check and time them, recommend one",
    "serve": "serve models.yaml, or one MODEL: start Triton, and print the curl lines",
    "apply": "make a running server run what models.yaml says; no request is lost",
    "deploy": "write the files to run the models on Docker Compose, Kubernetes or KServe",
    "batch": "have the requests of a file answered, by a running server or one of models.yaml",
    "perf": "measure served models, compare results, find settings",
}
# Verbs of other packages, which need not be installed.
OTHERS = {"batch": "hf_triton.batches.verb", "perf": "perf.verbs"}
_FULL = (errno.ENOSPC, errno.EDQUOT)

DESCRIPTION = "Serve Hugging Face models on Triton Inference Server from one models.yaml."
EXAMPLE = """\
one model, without a models.yaml:

  hf-triton serve HuggingFaceTB/SmolLM2-135M-Instruct

several, in a models.yaml:

  models:
    - name: smollm2
      task: text-generation
      model: HuggingFaceTB/SmolLM2-135M-Instruct

  hf-triton validate            # is every key right?
  hf-triton add MODEL           # write such an entry, and find out its task
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
    words = sys.argv[1:] if argv is None else argv
    try:
        leave_out_working_directory()
        os.umask(os.umask(0) | stat.S_IWOTH)  # written files are run, so others may not change them
        args = make_parser(words).parse_args(words, Places())
        code: int = _module(args.verb).run(args)
        if sys.stdout is not None:  # None where it was closed before we started
            sys.stdout.flush()
        return code
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


def _instead_of(words: str) -> str | None:
    """What to use instead of a verb or an option of an earlier release."""
    import yaml

    found = yaml.safe_load((Path(__file__).parent / "gone.yaml").read_text(encoding="utf-8"))
    return found.get(words.partition(" ")[2])  # type: ignore[no-any-return]


def _discard_output() -> None:
    """Drops the text that stdout still holds, and all that follows."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Says of an unknown verb or option what stands in its place, or names the nearest option.
    ``passes_on``: what stands behind ``--`` are ``arguments`` for another program.
    """

    passes_on = False

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        verb, known = f"{self.prog} {value}", [*(action.choices or ())]
        if known and value not in known and (instead := _instead_of(verb)):
            raise UsageError(f"{verb} is gone: {instead}")
        super()._check_value(action, value)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = [*(args or ())]
        cut = words.index("--") if self.passes_on and "--" in words else len(words)
        found, unknown = super().parse_known_args(words[:cut], namespace)
        if self.passes_on:
            found.arguments = words[cut + 1 :]
        if unknown:
            from generator.yaml_file import nodes

            known = [*self._option_string_actions]
            given = next((one.partition("=")[0] for one in unknown if one.startswith("-")), "")
            # All targets of deploy have the options of `deploy`.
            for verb in accumulate(self.prog.split(), "{} {}".format):
                if instead := _instead_of(f"{verb} {given}"):
                    self.error(f"{given} is gone: {instead}")
            near = nodes.nearest(given, known)
            hint = f"; did you mean {near}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def make_parser(words: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """The command line; only verbs among ``words`` have arguments, for which they are imported."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser("hf-triton", description=DESCRIPTION, epilog=EXAMPLE, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"hf-triton {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, summary in VERBS.items():
        sentence = f"{summary[0].upper()}{summary[1:]}."
        verb = verbs.add_parser(name, help=summary, description=sentence, formatter_class=raw)
        add_places(verb)
        if name in words:
            getattr(_module(name), "add_arguments", lambda _verb: None)(verb)
    return parser


def _module(verb: str) -> Any:
    """Raises GeneratorError where images leave it out."""
    name = OTHERS.get(verb, f"hf_triton.cli.verbs.{verb}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):
            raise
        raise GeneratorError(
            f"{verb} is not installed; a checkout and hf-triton's wheel have it"
        ) from None
