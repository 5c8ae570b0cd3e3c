"""``python -m generator``: the same as ``hf-triton``."""

import sys

from hf_triton.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
