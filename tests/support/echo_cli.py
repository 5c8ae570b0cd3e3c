"""hf-triton with the echo task for its only one: python echo_cli.py TEMPLATES_FOLDER VERB ..."""

from __future__ import annotations

import sys
from pathlib import Path

from generator.spec import task_folders
from hf_triton.cli import main as cli

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    task_folders.default_directory = lambda: folder
    sys.exit(cli.main(sys.argv[2:]))
