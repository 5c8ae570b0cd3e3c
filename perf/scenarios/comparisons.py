"""Ways to serve the measured model, or to ask it, on one server and in turns.

An engine without requests sleeps, so all are up at once and whatever else the machine does meets
all alike. A ratio is of two levels of one round.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.server.listen import Listen
from perf.baselines.servers.repositories import generated
from perf.load.figures import between_chunks, measurement_of
from perf.load.http import Target
from perf.load.levels import LevelArguments
from perf.load.measure import Policy
from perf.load.process import http_command, records_of
from perf.load.targets import GRPC, IN_FLIGHT, SSE
from perf.model import llama_config, make_model
from perf.report.head import now
from perf.report.markdown import spread, table
from perf.report.schema import Load
from perf.serving import serving


@dataclass(frozen=True)
class Way:
    """One of several: a model on the server, and how it is asked (``targets.TARGETS``, GRPC)."""

    label: str
    model: str
    target: Target | str = IN_FLIGHT


@dataclass(frozen=True)
class Comparison:
    """``entries`` are of models.yaml; ratios are against the first way."""

    question: str
    entries: Mapping[str, str]  # name -> further keys
    ways: Sequence[Way]
    load: str = "mixed"
    clients: Sequence[int] = (32,)
    max_model_len: int = 512
    hidden_size: int = 512
    num_layers: int = 8

    def models_yaml(self) -> str:
        """Every model is the measured one."""
        common = "task: text-generation, model: ./model, dtype: float32, streaming: false"
        lines = (f"  - {{name: {name}, {keys}}}" for name, keys in self.entries.items())
        return "\n".join([f"defaults: {{{common}, options: {_ROOM}}}", "models:", *lines, ""])


_ROOM = "{kv_cache_gib: 1.25}"
COMPARISONS = {
    "forwarding": Comparison(
        "what a front before the engine costs, and streams over events and gRPC",
        {"direct": "streaming: false", "twin": "streaming: false", "front": "streaming: true"},
        (
            Way("/infer, engine served directly", "direct"),
            Way("the same, loaded once more", "twin"),
            Way("/infer through the front", "front"),
            Way("/generate_stream", "front_stream", SSE),
            Way("gRPC stream", "front_stream", GRPC),
        ),
    ),
    "quantization": Comparison(
        "what quantized weights cost or bring beside bfloat16",
        {
            "bfloat16": "dtype: bfloat16",
            "float32": "dtype: float32",
            "int8": "dtype: bfloat16, quantization: int8",
            "int8_dynamic": "dtype: bfloat16, quantization: int8_dynamic",
        },
        [Way(name, name) for name in ("bfloat16", "float32", "int8", "int8_dynamic")],
        clients=(1, 8, 32),
        hidden_size=1536,
        num_layers=12,
    ),
    "shared-prefixes": Comparison(
        "how soon a question behind a known system prompt of 1,000 tokens is answered",
        {
            "shared": "streaming: true",
            "alone": "streaming: true, options: {prefix_cache: false}",
        },
        (
            Way("every prompt computed whole", "alone_stream", SSE),
            Way("prefixes shared", "shared_stream", SSE),
        ),
        load="system-prompt",
        clients=(1, 8),
        max_model_len=1152,
    ),
    "nothing-shared": Comparison(
        "what requests that have nothing in common pay for the search for prefixes",
        {"alone": "options: {prefix_cache: false}", "shared": "dtype: float32"},
        (
            Way("every prompt computed whole", "alone"),
            Way("prefixes searched for", "shared"),
        ),
    ),
}


@dataclass(frozen=True)
class Measured:
    """One level of one round; times in seconds."""

    round: int
    clients: int
    way: str
    useful_tokens_per_s: float
    p50_s: float
    p99_s: float
    first_s: float | None
    between_s: float | None
    num_problems: int
    first_problem: str | None


_COLUMNS = (  # head, figure, its unit in the table's, form
    ("useful tokens/s", "useful_tokens_per_s", 1, ",.0f"),
    ("p50 s", "p50_s", 1, ".2f"),
    ("p99 s", "p99_s", 1, ".2f"),
    ("first token ms", "first_s", 1e3, ".0f"),
    ("between ms", "between_s", 1e3, ".0f"),
)


def measure(comparison: Comparison, folder: Path, rounds: int, level_s: float) -> list[Measured]:
    """Every level, in the order in which it was measured. Raises ``LevelError``, ``ServerError``,
    ``subprocess.CalledProcessError`` of the generator.
    """
    shape = llama_config(comparison.max_model_len, comparison.hidden_size, comparison.num_layers)
    make_model(folder / "model", 0, shape)
    repository = generated(folder, "measured", comparison.models_yaml())
    found = list[Measured]()
    with serving(repository, *comparison.entries) as server:
        for number in range(-1, rounds):  # the first is thrown away
            policy_s = (level_s if number >= 0 else 0, 10 * level_s)
            for clients in comparison.clients:
                for way in comparison.ways if number % 2 == 0 else comparison.ways[::-1]:
                    seed, policy = 100 * (number + 1) + clients, Policy(2 * clients, *policy_s)
                    arguments = LevelArguments(clients, seed, policy, comparison.load)
                    level = _level(number, way, arguments, server.listen)
                    found += [level] * (number >= 0)
    return found


def _level(number: int, way: Way, arguments: LevelArguments, listen: Listen) -> Measured:
    port = listen.grpc_port if way.target == GRPC else listen.http_port
    records = records_of(http_command(way.target, port, way.model), arguments)
    load = Load(way.label, "", arguments.clients)
    found = measurement_of(records, load, number, now(), waits=between_chunks)
    tokens_per_s = found.output_tokens_per_s or 0.0
    said = f"round {number + 1}, {arguments.clients} clients, {way.label}"
    print(f"{said}: {tokens_per_s:.0f} tokens/s", file=sys.stderr)
    first, between = found.time_to_first_token, found.inter_token_latency
    return Measured(
        number,
        arguments.clients,
        way.label,
        tokens_per_s,
        found.latency.p50_ms / 1e3 if found.latency else math.nan,
        found.latency.p99_ms / 1e3 if found.latency else math.nan,
        first.p50_ms / 1e3 if first else None,
        between.p50_ms / 1e3 if between else None,
        found.num_errors,
        found.first_error,
    )


def lines_of(comparison: Comparison, measured: Sequence[Measured]) -> list[str]:
    """The table: medians over the rounds, in brackets the least and the most; ``times the first``
    are ratios of two levels of one round.
    """
    heads = ["clients", "way", *(head for head, *_ in _COLUMNS), "times the first", "wrong answers"]
    rows = []
    for clients in comparison.clients:
        of_all = [each for each in measured if each.clients == clients]
        rate = {(each.way, each.round): each.useful_tokens_per_s for each in of_all}
        for way in comparison.ways:
            own = [each for each in of_all if each.way == way.label]
            first = [rate[comparison.ways[0].label, each.round] for each in own]
            row: list[object] = [clients, way.label]
            for _, name, unit, form in _COLUMNS:
                known = [v * unit for each in own if (v := getattr(each, name)) is not None]
                row.append(spread(known, form) if known else "")
            times = [o.useful_tokens_per_s / base for o, base in zip(own, first, strict=True)]
            rows.append([*row, spread(times, ".2f"), sum(each.num_problems for each in own)])
    return table(heads, rows, ">" + "<")


def problems_of(measured: Sequence[Measured]) -> list[str]:
    """What was answered wrongly."""
    return [f"{each.way}: {each.first_problem}" for each in measured if each.first_problem]
