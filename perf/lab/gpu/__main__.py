"""``hf-triton perf gpu`` from a checkout, with nothing installed: ``python perf/lab/gpu``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # a script's folder is on the path, the checkout is not
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from generator.errors import EXIT_INTERRUPTED, GeneratorError
from perf.lab.verbs import gpu
from perf.verbs.stopping import stopping_as_interrupts


def main(argv: list[str]) -> int:
    """The verb alone; returns the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python perf/lab/gpu", description=gpu.DESCRIPTION, formatter_class=raw
    )
    gpu.add_arguments(parser)
    try:
        with stopping_as_interrupts():
            return gpu.run(parser.parse_args(argv))
    except GeneratorError as error:
        print(f"perf/lab/gpu: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
