"""``python -m perf.baselines`` is ``hf-triton perf baselines``."""

from __future__ import annotations

import sys

from generator.cli import main

if __name__ == "__main__":
    sys.exit(main(["perf", "baselines", *sys.argv[1:]]))
