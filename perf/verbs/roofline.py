"""``hf-triton perf roofline``: what this machine allows a model at best."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from generator.errors import EXIT_OK, PerfError
from generator.flag_values import whole
from generator.yaml_file.regular_file import read_json
from perf.verbs.arguments import counts

HELP = "the tokens/s that this machine's memory and cores allow a decoder"
DESCRIPTION = """\
Measures how fast this machine's processor reads memory and multiplies matrices (5 seconds, wants an
otherwise idle machine), counts the bytes and operations of a decoder's steps from its config.json,
and prints the most tokens/s that any engine can reach with them. How near a measurement comes says
what is left to win."""
EPILOG = """\
examples:
  hf-triton perf roofline                             # of this machine alone
  hf-triton perf roofline model_repository/demo/hf_cache/.../config.json
  hf-triton perf roofline ./my-model --sequences 1,32 --context 500 --dtype bfloat16
exit codes: 0 fine, 1 no config of a decoder of Llama's shape, 2 usage"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model's config and what is generated with it."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("model", nargs="?", type=Path, metavar="MODEL", help="its folder, or its config.json")
    add(
        "--sequences",
        type=counts,
        default=(1, 8, 32, 64),
        metavar="N,N,...",
        help="generated at once (default: 1,8,32,64)",
    )
    add("--context", type=whole(), default=100, metavar="TOKENS", help="mean; default: 100")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32")


def run(args: argparse.Namespace) -> int:
    """Measures, counts and prints. Raises PerfError."""
    config = None if args.model is None else _config(args.model)
    from perf.roofline.measured import measure

    print("measuring: about 5 seconds", file=sys.stderr)
    machine = measure()
    print(f"{'threads':24}{machine.num_threads:>10}")
    for name, figure in machine.as_figures().items():
        print(f"{name:24}{figure:>10,.1f}")
    if config is not None:
        print()
        print(_table(machine, config, args))
    return EXIT_OK


def _table(machine: Any, config: Any, args: argparse.Namespace) -> str:
    from perf.roofline.step import DecoderShape, Decoding, step_cost, tokens_per_s_limit

    shape = DecoderShape.of(config)
    lines = [f"{'sequences':>9}  {'MB read':>9}  {'GFLOP':>9}  {'ms a step':>9}  {'tokens/s':>9}"]
    for count in args.sequences:
        decoding = Decoding(count, args.context, args.dtype)
        cost, limit = step_cost(shape, decoding), tokens_per_s_limit(machine, shape, decoding)
        read = (cost.weight_bytes + cost.kv_bytes) / 1e6
        milliseconds = cost.seconds(machine, args.dtype) * 1e3
        lines.append(
            f"{count:>9,}  {read:>9,.1f}  {cost.flop / 1e9:>9,.2f}  {milliseconds:>9,.2f}  "
            f"{limit:>9,.0f}"
        )
    return "\n".join(lines)


def _config(path: Path) -> Any:
    """The config's values as attributes. Raises PerfError."""
    from perf.roofline.step import NEEDED_KEYS

    path = path / "config.json" if path.is_dir() else path
    try:
        values = read_json(path)
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise PerfError(f"{path}: this is not JSON") from None
    if not isinstance(values, dict):
        raise PerfError(f"{path}: got a {type(values).__name__}, expected a model's config")
    values = values.get("text_config", values)
    missing = [name for name in NEEDED_KEYS if not isinstance(values.get(name), int)]
    if missing:
        raise PerfError(f"{path}: no config of a decoder of Llama's shape, it lacks {missing[0]}")
    return argparse.Namespace(**values)
