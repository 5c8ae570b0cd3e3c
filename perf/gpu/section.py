"""The process of one section: ``python -m perf.gpu.section NAME``.

Adds each figure to the results as soon as it is measured, and at the end how it ended.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import traceback
from pathlib import Path

from hf_runtime.devices.device import choose_attention_kernels

from perf.gpu.plan import FAKE, SECTIONS
from perf.gpu.report import one_line
from perf.gpu.results import Context, Figure, Results, SkippedError, counted, say


def main(argv: list[str]) -> None:
    """Measures ``name``, which ``--results`` has as not finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*SECTIONS, "machine"])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="  %(message)s")
    results = Results.read(args.results)
    measured = results.sections[args.name]

    is_fake = args.device == FAKE

    def take(figure: Figure) -> None:
        figure = counted(figure) if is_fake else figure
        measured.figures = (*measured.figures, figure)
        results.write(args.results)
        if args.name in SECTIONS:
            say(one_line(args.name, figure))

    section = SECTIONS.get(args.name)
    module = f"perf.gpu.{section.module if section else 'sections.machine'}"
    shape = "tiny" if is_fake else section.shape if section else ""
    device = "cpu" if is_fake and section else args.device
    choose_attention_kernels(device)  # as the product loads models
    context = Context(device, is_fake, shape, args.folder, args.seed, take)
    measured.state = _measured(module, context)
    results.write(args.results)


def _measured(module: str, context: Context) -> str:
    """How measuring ended, as ``Measured.state``."""
    try:
        importlib.import_module(module).measure(context)
    except SkippedError as error:
        return f"skipped: {error}"
    except ImportError as error:
        return f"failed: {error}"
    except Exception as error:  # noqa: BLE001
        # Whatever torch or a server raises: the other sections go on, and the reader gets a line.
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        return f"failed: {type(error).__name__}: {lines[0][:300]}"
    return "done"


if __name__ == "__main__":
    main(sys.argv[1:])
