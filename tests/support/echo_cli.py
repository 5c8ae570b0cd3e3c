"""hf-triton with the echo task for its only one: python echo_cli.py TEMPLATES_FOLDER VERB ..."""

from __future__ import annotations

import sys
from pathlib import Path

from hf_triton.cli import main as cli
from tests.support.own_tasks import use_tasks

if __name__ == "__main__":
    use_tasks(Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
