"""Runs the load generator as a child process: sends it a level and reads its records."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from perf.load.records import Policy, Record
from perf.load.routes import ROUTES, Sent
from perf.orphans import killed_with_parent, our_environment

LOAD_NICENESS = "5"  # lower than the server's priority


class LevelError(Exception):
    """The load generator failed; the text is the last line it printed."""


@dataclass(frozen=True)
class Level:
    """One closed-loop load: ``clients`` callers send these requests in turns to ``url``; answers
    are parsed as those of ``route`` (routes.ROUTES).
    """

    clients: int
    policy: Policy
    sent: Sequence[Sent]
    route: str = ""
    url: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Level:
        read = json.loads(line)
        policy, sent = Policy(**read["policy"]), [Sent(**each) for each in read["sent"]]
        return cls(**{**read, "policy": policy, "sent": sent})


def records_of(
    route: str,
    port: int,
    model: str,
    level: Level,
    on_answer: Callable[[int], object] = lambda _: None,
) -> list[Record]:
    """Runs a level against ``port`` of this machine, over one of ``routes.ROUTES``; ``model`` is
    its name there. Calls ``on_answer`` with the number of answers so far. Raises ``LevelError``.
    """
    path = ROUTES[route].path.format(model=model)
    level = replace(level, route=route, url=f"http://127.0.0.1:{port}{path}")
    command = ["nice", "-n", LOAD_NICENESS, sys.executable, "-m", "perf.load"]
    records = []
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(
            command,
            env=our_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            start_new_session=True,  # the parent handles Ctrl-C and ends this process
            preexec_fn=killed_with_parent(signal.SIGKILL),
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(level.to_json() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                records.append(Record(**json.loads(line)))
                on_answer(len(records))
            if code := process.wait():
                printed.seek(0)
                lines = printed.read().strip().splitlines()
                ended = f"the load generator ended: exit code {code}"
                raise LevelError(lines[-1] if lines else ended)
        except BrokenPipeError:
            raise LevelError("the load generator ended before it began") from None
        finally:
            process.kill()
    return records
