"""``hf-triton perf baselines``: compares our server with alternatives on one machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from generator.errors import EXIT_OK
from generator.flag_values import counts, names, whole
from perf.lab.baselines.servers import DTYPES, SERVERS
from perf.verbs import options_from

HELP = "compare text generation with vLLM, transformers and others, in alternating runs"
DESCRIPTION = """\
Makes a Llama of 42 M random weights and measures it on this machine, served by this project and by
other servers (peers). All get the same requests in the same order: prompts of 8 to 64 tokens that
ask for 8, 16, 32, 64 or 128, from N clients, each of which sends its next request when the last is
answered. Servers are started one after the other, every other round in the opposite order.
Useful tokens are those that were asked for. Prints a Markdown report, and saves each level as soon
as it is measured: the same command continues an interrupted run. Peers run in environments of
their own; --list says how to install those that are missing."""
NAMES = tuple(server.name for server in SERVERS)
CLIENTS = (1, 8, 32, 64, 256)
NUM_REQUESTS, NUM_ROUNDS = 512, 3
LONGEST_LEVEL_S = 900
ENVIRONMENTS = "~/.cache/hf-triton/perf"
EPILOG = """\
examples:
  hf-triton perf baselines --list
  hf-triton perf baselines --clients 1,8 --requests 24 --rounds 1     rough figures in minutes
  hf-triton perf baselines --targets ours,vllm           beside vLLM only: about 80 minutes
exit codes: 0 measured; 1 an answer failed or had the wrong length, or a target was left out;
2 usage; 130 interrupted, what was measured is kept"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    every, both = ",".join(NAMES), ",".join(DTYPES)
    add(
        "--targets",
        dest="servers",
        type=names(NAMES),
        metavar="T,T,...",
        default=NAMES,
        help=f"some of {every}",
    )
    add("--dtypes", type=names(DTYPES), metavar="D,D", default=DTYPES, help=f"some of {both}")
    each = "numbers of clients: 1,8,32,64,256"
    add("--clients", type=counts, default=CLIENTS, metavar="N,N,...", help=each)
    counted = f"requests measured at each level: {NUM_REQUESTS}"
    number: dict[str, Any] = {"type": whole(), "metavar": "N"}
    add("--requests", dest="num_requests", default=NUM_REQUESTS, help=counted, **number)
    rounds = f"number of rounds: {NUM_ROUNDS}"
    add("--rounds", dest="num_rounds", default=NUM_ROUNDS, help=rounds, **number)
    longest = f"the longest that a level may take: {LONGEST_LEVEL_S}"
    add("--max-level-s", type=whole(), default=LONGEST_LEVEL_S, metavar="S", help=longest)
    add("--seed", type=int, default=0, help="seed of the load and the weights: 0")
    environments = f"the peers' environments: {ENVIRONMENTS}"
    add("--environments", type=Path, metavar="FOLDER", help=environments)
    output = "saves the run here, and continues one that is here: perf-results/baselines"
    default = Path("perf-results/baselines")
    add("--output", type=Path, default=default, metavar="FOLDER", help=output)
    add("--list", action="store_true", help="show the targets and whether they are installed")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    environments = args.environments or Path(ENVIRONMENTS).expanduser()
    if args.list:
        for server in SERVERS:
            missing = server.missing(environments)
            where = f"not installed: {missing}" if missing else "installed"
            print(f"{server.name:20} {server.what}\n{'':21}{where}")
        return EXIT_OK
    from perf.lab.baselines.run import Plan, compare

    return compare(options_from(Plan, args), args.output, environments)
