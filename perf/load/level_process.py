"""What processes that run a level have in common: arguments, and answers as JSON lines."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass

from perf.load.closed_loop import ANSWER_TIMEOUT_S, Ask, closed_loop
from perf.load.measure import Policy, Record
from perf.load.requests import LOADS

LOST = "the load generator lost the server"


@dataclass(frozen=True)
class LevelArguments:
    """How much to send, as the parent says it on the command line."""

    clients: int
    seed: int
    policy: Policy
    load: str = "mixed"  # of LOADS

    @classmethod
    def warm_up(cls, seed: int) -> LevelArguments:
        """A few requests, other ones than will be measured; their figures are thrown away."""
        return cls(clients=8, seed=seed + 1, policy=Policy(min_requests=8, min_s=0, max_s=60))

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Let ``parser`` read what ``command_line`` writes."""
        parser.add_argument("--clients", type=int, required=True)
        parser.add_argument("--seed", type=int, required=True)
        parser.add_argument("--load", choices=sorted(LOADS), default="mixed")
        parser.add_argument("--min-requests", type=int, required=True)
        parser.add_argument("--min-s", type=float, required=True)
        parser.add_argument("--max-s", type=float, required=True)

    @classmethod
    def of(cls, args: argparse.Namespace) -> LevelArguments:
        """The parsed arguments."""
        policy = Policy(args.min_requests, args.min_s, args.max_s)
        return cls(args.clients, args.seed, policy, args.load)

    def command_line(self) -> list[str]:
        """The arguments as words."""
        policy = self.policy
        return [
            *("--clients", str(self.clients), "--seed", str(self.seed), "--load", self.load),
            *("--min-requests", str(policy.min_requests)),
            *("--min-s", str(policy.min_s), "--max-s", str(policy.max_s)),
        ]


async def run_level(
    connect: Callable[[], AbstractAsyncContextManager[Ask]],
    arguments: LevelArguments,
    report: Callable[[Record], None] | None = None,
) -> None:
    """Run one level; print each answer as a JSON line unless ``report`` takes it."""
    stream = LOADS[arguments.load](arguments.seed)
    await closed_loop(connect, arguments.clients, stream, arguments.policy, report or print_record)


def print_record(record: Record) -> None:
    """One line on stdout, at once: the parent's progress bar waits for it."""
    print(json.dumps(asdict(record)), flush=True)


def run_until_lost(
    connect: Callable[[], AbstractAsyncContextManager[Ask]], arguments: LevelArguments
) -> None:
    """Run one level in this process; ends it with one line where the server goes or hangs."""
    try:
        asyncio.run(run_level(connect, arguments))
    except asyncio.TimeoutError:
        sys.exit(f"{LOST}: no answer within {ANSWER_TIMEOUT_S:.0f} s")
    except EOFError:
        sys.exit(f"{LOST}: it closed a connection without an answer")
    except OSError as error:
        sys.exit(f"{LOST}: {error}")


def head_of_post(path: str, host: str) -> str:
    """The head of a request with JSON, up to its length."""
    fields = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: "
    return f"POST {path} HTTP/1.1\r\n{fields}"
