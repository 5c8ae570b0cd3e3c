"""Tries our kernels, or times them and other tiles."""

from __future__ import annotations

import sys

import torch

from perf.gpu.kernels import timing
from perf.gpu.kernels.checks import GROUPS
from perf.gpu.told import Told, parser

TIMED = {"time": timing.time, "sweep": timing.sweep}


def main(argv: list[str]) -> int:
    """Tries or times a group; returns the exit code."""
    arguments = parser(__doc__)
    arguments.add_argument("group", choices=[*GROUPS, *TIMED])
    arguments.add_argument("--small", action="store_true", help="few and small ones")
    arguments.add_argument("--dtype", default="", help="cases of this one alone")
    args = arguments.parse_args(argv)
    told = Told(args.device)
    torch.manual_seed(0)
    if args.group in TIMED:
        TIMED[args.group](told)
        return told.exit_code
    for name, check in GROUPS[args.group](told.device, small=told.is_cpu or args.small):
        if not name.endswith(args.dtype):
            continue
        with told.case(f"{args.group} {name}") as row, torch.inference_mode():
            row["difference"], row["allowed"] = check()
            row["agrees"] = row["difference"] <= row["allowed"]
    print(f"{args.group}: {told.num_good} agree, {told.num_bad} do not")
    return told.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
