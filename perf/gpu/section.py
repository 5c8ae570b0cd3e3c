"""The process of one section: ``python -m perf.gpu.section NAME``.

Writes figures to stdout as lines of JSON and everything else to stderr; ends when its stdin closes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from perf.gpu.plan import SECTIONS
from perf.gpu.results import Context, SkippedError


def main(argv: list[str]) -> int:
    """Measure, and say how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*SECTIONS, "machine"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    write = _own_stdout()
    _end_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="  %(message)s")
    section = SECTIONS.get(args.name)
    module = f"perf.gpu.sections.{section.module}" if section else "perf.gpu.machine"
    shape = "tiny" if args.tiny else section.shape if section else ""
    context = Context(args.device, args.tiny, shape, args.folder, args.seed, write)
    state = _measured(module, context)
    write({"state": state})
    return 0 if state == "done" or state.startswith("skipped") else 1


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


def _own_stdout() -> Callable[[dict[str, Any]], None]:
    """Writes lines of JSON to what was stdout; what others print goes to stderr from now on."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lambda values: print(json.dumps(values), file=lines, flush=True)


def _end_with_parent() -> None:
    """Ends this process when its parent has closed its stdin, or died."""

    def wait() -> NoReturn:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
