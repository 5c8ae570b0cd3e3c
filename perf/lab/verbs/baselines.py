"""``hf-triton perf baselines``: compares our server with alternatives on one machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.errors import EXIT_OK
from generator.flag_values import counts, names, whole
from perf.lab.baselines.servers import DTYPES, SERVERS
from perf.verbs.arguments import options_from

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
FULL_CLIENTS, QUICK_CLIENTS = (1, 8, 32, 64, 256), (1, 8)
FULL, QUICK = (512, 3), (24, 1)  # requests, rounds
LONGEST_LEVEL_S = 900
ENVIRONMENTS = "~/.cache/hf-triton/perf"
EPILOG = """\
examples:
  hf-triton perf baselines --list
  hf-triton perf baselines --quick --targets ours,vllm --dtypes float32
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
        help=f"of {every}",
    )
    add("--dtypes", type=names(DTYPES), metavar="D,D", default=DTYPES, help=f"of {both}")
    add("--clients", type=counts, metavar="N,N,...", help="instead of 1,8,32,64,256")
    counted = f"requests measured at each level: {FULL[0]}"
    add("--requests", dest="num_requests", type=whole(), metavar="N", help=counted)
    add("--rounds", dest="num_rounds", type=whole(), metavar="N", help=f"instead of {FULL[1]}")
    add("--quick", action="store_true", help="1 round, 1 and 8 clients, 24 requests: rough figures")
    add("--streams", action="store_true", help="measure the latencies of streams too")
    longest = f"the longest that a level may take: {LONGEST_LEVEL_S}"
    add("--max-level-s", type=whole(), default=LONGEST_LEVEL_S, metavar="S", help=longest)
    add("--seed", type=int, default=0, help="of the load and the weights: 0")
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

    num_requests, num_rounds = QUICK if args.quick else FULL
    plan = options_from(
        Plan,
        args,
        clients=args.clients or (QUICK_CLIENTS if args.quick else FULL_CLIENTS),
        num_rounds=args.num_rounds or num_rounds,
        num_requests=args.num_requests or num_requests,
    )
    return compare(plan, args.output, environments)
