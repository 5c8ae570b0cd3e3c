"""The load generator against a running server: ``python -m perf.load``; ``process.py`` starts it.

What it costs is taken from the server's cores, so it does as little as it can, and its parent
starts it with a lower priority (``nice``) than the server's.
"""

from __future__ import annotations

import argparse
from functools import partial

from perf.load import http
from perf.load.levels import serve_levels
from perf.load.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.load", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("--model", default="", help="its name on the server")
    args = parser.parse_args()
    serve_levels(partial(http.connect, args.host, args.port, TARGETS[args.target], args.model))


if __name__ == "__main__":
    main()
