"""Measures each of the compared servers under the same loads, in rounds of alternating order."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, GeneratorError
from hf_triton.tritonserver.log import say
from perf.lab.baselines.servers import BY_NAME, MODEL_FOLDER, SERVERS, started
from perf.load.level import Level, LevelError, Sent, records_of
from perf.load.records import Policy, measurement_of
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS, SHORTEST_PROMPT, requests
from perf.report.rendering import MARKDOWN_FILE, write_renderings
from perf.report.schema import Load, Measurement, Run, append, read_measurements, write_run
from perf.run_folder import continued_or_new, locked_folder, now, run_context
from perf.sweep.metrics import look, machine_figures, server_pids

_STARTS_NOT = (GeneratorError, LevelError, OSError)
_WARM_UP = Policy(min_requests=8, min_s=0, max_s=60)


@dataclass(frozen=True)
class Plan:
    servers: Sequence[str]
    dtypes: Sequence[str]
    clients: Sequence[int]
    num_rounds: int
    num_requests: int
    max_level_s: float
    seed: int
    command: str = ""

    def rounds(self) -> Iterator[tuple[int, str, str]]:
        """Yields (round, server, dtype); every other round runs in the opposite order."""
        names = [server.name for server in SERVERS if server.name in self.servers]
        found = [(name, dtype) for name in names for dtype in self.dtypes]
        for number in range(self.num_rounds):
            yield from ((number, *each) for each in (found if number % 2 == 0 else found[::-1]))

    def loads(self, name: str, dtype: str) -> Iterator[Load]:
        for clients in self.clients:
            yield Load(
                target=name,
                endpoint="http-completions",
                concurrency=clients,
                input_name="mixed",
                prompt_tokens=f"{SHORTEST_PROMPT}-{LONGEST_PROMPT}",
                output_tokens="/".join(map(str, OUTPUT_LENGTHS)),
                settings={"dtype": dtype},
            )

    def level(self, load: Load, number: int, model: str) -> Level:
        """Equal requests for every server of a round, new ones in each: a server may have cached
        some.
        """
        clients = load.concurrency or 1
        seed = random.Random(f"{self.seed}/{number}/{clients}").randrange(2**31)
        # The first and the last requests, one of each client, are not counted.
        policy = Policy(self.num_requests + 2 * clients, min_s=0.0, max_s=self.max_level_s)
        drawn = islice(requests(seed), policy.min_requests + clients)
        return Level(clients, policy, [_sent(*each, model) for each in drawn])

    def scenario(self) -> dict[str, object]:
        """The settings that must stay equal within one run folder."""
        kept = ("seed", "num_requests", "max_level_s")
        return {"model": "Llama shape, 42 M random weights", **{n: asdict(self)[n] for n in kept}}


def compare(plan: Plan, output: Path, environments: Path) -> int:
    """Measures what the folder lacks, and prints the report; returns the exit code. Raises
    PerfError.
    """
    with locked_folder(output):
        run = begin(output, plan)
        code = measure(plan, run, output, environments)
        measured = read_measurements(output)
        write_renderings(output)
    print((output / MARKDOWN_FILE).read_text(encoding="utf-8"))
    return EXIT_INPUT if code == EXIT_OK and any(each.num_errors for each in measured) else code


def begin(output: Path, plan: Plan) -> Run:
    title = "Useful tokens/s of hf-triton and of other servers"
    run = Run(kind="baselines", title=title, scenario=plan.scenario(), **run_context(plan.command))
    return continued_or_new(output, run)


def measure(plan: Plan, run: Run, output: Path, environments: Path) -> int:
    """A server that can't be started is skipped; the run's notes say why. Raises OSError."""
    from perf.model import make_model

    done = [(each.load, each.repeat) for each in read_measurements(output)]
    left_out: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory(prefix="perf-baselines-") as scratch:
        folder = Path(scratch)
        try:
            make_model(folder / MODEL_FOLDER, plan.seed)
            for number, name, dtype in plan.rounds():
                missing = [each for each in plan.loads(name, dtype) if (each, number) not in done]
                if not missing or (name, dtype) in left_out:
                    continue
                say(f"round {number + 1} of {plan.num_rounds}: {name} {dtype}")
                try:
                    with started(BY_NAME[name], dtype, folder, environments) as (port, model):
                        warm = plan.level(missing[0], -1, model)
                        _measured(missing[0], -1, port, model, replace(warm, policy=_WARM_UP))
                        for load in missing:
                            level = plan.level(load, number, model)
                            append(output, _measured(load, number, port, model, level))
                except _STARTS_NOT as error:
                    left_out[name, dtype] = str(error).strip().splitlines()[-1]
                    say(f"{name} {dtype} is left out: {error}")
        except KeyboardInterrupt:
            say("interrupted; the same command continues from here")
            return EXIT_INTERRUPTED
        finally:
            notes = [f"{' '.join(key)} is left out: {why}" for key, why in left_out.items()]
            write_run(output, replace(run, notes=notes))
    return EXIT_INPUT if left_out else EXIT_OK


def _measured(load: Load, number: int, port: int, model: str, level: Level) -> Measurement:
    """The figures of a level; it is stable where the wanted number of requests was counted."""
    start = now()
    pids = server_pids(port)
    first = look(list, pids)
    records = records_of("completions", port, model, level)
    last = look(list, pids)
    found = measurement_of(records, load, number, start)
    is_stable = found.num_requests >= level.policy.min_requests - 2 * level.clients
    return replace(found, stable=is_stable, machine=machine_figures(first, last))


def _sent(prompt: str, max_tokens: int, model: str) -> Sent:
    asked = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return Sent(json.dumps(asked), max_tokens)
