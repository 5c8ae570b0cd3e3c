"""``hf-triton perf gpu``: checks correctness and speed on an NVIDIA GPU."""

from __future__ import annotations

import argparse
import os
import re

HELP = "on a GPU: is all of it right, how fast is it"
DESCRIPTION = """\
Settles in a few minutes, on a machine with an NVIDIA GPU and without network, what only that shows.
Models have random weights and are made on the spot. BAD is wrong; what is logged says which
attention and which graphs were taken, and why not others.

  check   each kind of decoder beside the CPU's tokens: captured and eager, over pages of NaN, and
          after a step that failed
  time    tokens/s of 1, 64 and 256 sequences, of a 135 M and a 7 B Llama, beside what the card's
          bandwidth allows; and with torch.compile on their layers

Without a GPU the same runs on the CPU with tiny models.
"""
EPILOG = """\
examples:
  hf-triton perf gpu check                           about four minutes on a GPU
  hf-triton perf gpu check --only 'llama|mamba'      of these alone
  python -m perf.lab.gpu check                       the same, where there is torch and little else
exit codes: 0 all is right; 1 something is wrong or failed; 2 usage; 130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("command", nargs="?", choices=("check", "time"), default="check", help="default: check")
    add("--only", type=_pattern, default="", metavar="REGEX", help="models that this is found in")
    add("--device", default="any", metavar="D", help="cuda:1, cpu (default: the first GPU, or cpu)")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, no regular expression: {error}") from None
    return text


def run(args: argparse.Namespace) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from perf.lab import gpu

    return gpu.main(args.command, args.device, args.only)
