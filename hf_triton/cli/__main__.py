"""The command's entry: handles a Ctrl-C also while the command line itself is being imported."""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from hf_triton.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("hf-triton: interrupted\n")
        return 130  # EXIT_INTERRUPTED, which is not imported yet


if __name__ == "__main__":
    sys.exit(main())
