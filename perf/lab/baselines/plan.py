"""What is to be measured, in which order; knows no server and no clock."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from perf.lab.baselines.targets import OURS_ON_TRITON, Variant
from perf.load.levels import LevelArguments
from perf.load.measure import Policy
from perf.load.requests import LONGEST_PROMPT, OUTPUT_LENGTHS, SHORTEST_PROMPT
from perf.report.schema import Load, Measurement

MIXED = "mixed"
PROMPT_TOKENS = f"{SHORTEST_PROMPT}-{LONGEST_PROMPT}"
OUTPUT_TOKENS = "/".join(map(str, OUTPUT_LENGTHS))
MEAN_OUTPUT_TOKENS = sum(OUTPUT_LENGTHS) / len(OUTPUT_LENGTHS)
START_S = 30.0  # of a server, roughly, with its warm-up
MOST_STREAMS = 64  # clients; what one Python process reads of streams without being late


@dataclass(frozen=True)
class Step:
    """One level of one target in one round (from 0)."""

    round: int
    clients: int
    variant: Variant
    streams: bool = False

    @property
    def load(self) -> Load:
        target = self.variant.target
        is_ours = target.name in OURS_ON_TRITON
        endpoint = "http-generate-stream" if is_ours else f"{target.endpoint}-stream"
        return Load(
            target=target.name,
            endpoint=endpoint if self.streams else target.endpoint,
            concurrency=self.clients,
            input_name=MIXED,
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            settings={"dtype": self.variant.dtype},
        )


@dataclass(frozen=True)
class Plan:
    """All that a command line asks for; ``num_requests`` are counted at a level, at least."""

    variants: tuple[Variant, ...]
    clients: tuple[int, ...]
    num_rounds: int
    num_requests: int
    max_level_s: float
    seed: int
    streams: bool = False

    def steps(self) -> Iterator[Step]:
        """Every level on each target in turn; every other round in the opposite order."""
        for number in range(self.num_rounds):
            order = self.variants if number % 2 == 0 else self.variants[::-1]
            for clients in self.clients:
                for variant in order:
                    yield Step(number, clients, variant)
            for clients in self.clients if self.streams else ():
                for variant in order:
                    if variant.target.streamed and clients <= MOST_STREAMS:
                        yield Step(number, clients, variant, streams=True)

    def missing(self, measured: Collection[Measurement]) -> list[Step]:
        done = [(measurement.load, measurement.repeat) for measurement in measured]
        return [step for step in self.steps() if (step.load, step.round) not in done]

    def arguments(self, step: Step) -> LevelArguments:
        """What is sent: the same to every target of a round, and never what was sent before, which
        a server may have kept.
        """
        name = f"{self.seed}/{step.round}/{step.clients}/{step.streams}"
        seed = random.Random(name).randrange(2**31)
        # Not counted are as many requests as there are clients, at either end.
        policy = Policy(self.num_requests + 2 * step.clients, min_s=0.0, max_s=self.max_level_s)
        return LevelArguments(step.clients, seed, policy)

    def usual_s(self, steps: Collection[Step]) -> float:
        """How long the steps take on a machine like the one of ``usual_tokens_per_s``."""
        return sum(self._usual_s(step) for step in steps) + START_S * len(
            {(step.variant, step.streams) for step in steps}
        )

    def _usual_s(self, step: Step) -> float:
        alone, many = step.variant.target.usual_tokens_per_s
        share = min(1.0, (step.clients - 1) / 15)  # most of what there is to gain comes by 16
        rate = alone + share * (many - alone)
        num_requests = self.num_requests + 2 * step.clients
        return min(self.max_level_s, num_requests * MEAN_OUTPUT_TOKENS / rate)


def variant_of(load: Load) -> Variant:
    return Variant(load.target, str(load.settings.get("dtype", "")))


def is_stream(load: Load) -> bool:
    """Whether its answers came in pieces."""
    return load.endpoint.endswith("-stream")
