"""One engine, with prefixes shared and not, in turns: prints what it measured as one line of JSON.

Started with ``model_templates`` on the module path. No server: what is measured is the engine.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from text_generation.detokenizer import Detokenizer
from text_generation.in_flight import InFlightEngine
from text_generation.loading import LoadedModel
from text_generation.prefixes.contents import SlotContents
from text_generation.sampling_params import SamplingParams
from text_generation.sequence import Sequence, Update

from perf.load.in_process import load
from perf.load.requests import NUM_SPECIAL_TOKENS, VOCABULARY_SIZE, long_prompts, requests
from perf.shared_prefixes.report import Effort, Figures, FirstTokens, Throughput

PREFIX_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 1000, 16, 8
NUM_CLIENTS, NUM_LONG_CLIENTS = 32, 8
_ANSWER_TIMEOUT_S = 300


class Caller:
    """The recipient of one sequence: when its first token came, and who is told at its end."""

    streams = True
    request_id = ""

    def __init__(self, ended: queue.SimpleQueue[Caller]) -> None:
        self.sent_s = time.perf_counter()
        self.first_s = 0.0
        self.num_tokens = 0
        self._ended = ended

    def take(self, update: Update) -> None:
        """Notes the time."""
        self.first_s = self.first_s or time.perf_counter() - self.sent_s
        self.num_tokens += len(update.tokens)
        if update.finish_reason is not None:
            self._ended.put(self)

    def flush(self) -> None:
        """Everything is taken at once."""

    def fail(self, error: Exception) -> None:
        """Ends the measurement: the process that waits gets a caller without tokens."""
        print(f"an answer failed: {error}", file=sys.stderr)
        self.num_tokens = -1
        self._ended.put(self)


class Bench:
    """An engine that is asked by prompts of token ids."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert isinstance(loaded.engine, InFlightEngine)
        self.engine = loaded.engine
        self._loaded = loaded

    def switch(self, *, shares: bool) -> None:
        """Begins anew with an empty cache, when all is answered."""
        engine = self.engine
        while engine._scheduler.has_work:  # noqa: SLF001, its answer comes a moment earlier
            time.sleep(0.001)
        engine._contents = engine._shared_contents() if shares else SlotContents()  # noqa: SLF001
        engine._scheduler = engine._new_scheduler()  # noqa: SLF001

    def ask(self, asked: Iterator[tuple[list[int], int]], clients: int) -> list[Caller]:
        """Prompts and how many tokens each wants, from so many callers at a time; all answered."""
        ended: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        num_open, answered = 0, []
        for prompt, max_tokens in asked:
            if num_open == clients:
                answered.append(self._awaited(ended))
                num_open -= 1
            self.engine.submit([self._sequence(prompt, max_tokens, Caller(ended))])
            num_open += 1
        return answered + [self._awaited(ended) for _ in range(num_open)]

    def tokens(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self._loaded.reader.tokenize(text)

    def _sequence(self, prompt: list[int], max_tokens: int, caller: Caller) -> Sequence:
        detokenizer = Detokenizer(self._loaded.tokenizer, prompt)
        return Sequence(prompt, SamplingParams(max_tokens=max_tokens), caller, detokenizer)

    def _awaited(self, ended: queue.SimpleQueue[Caller]) -> Caller:
        caller = ended.get(timeout=_ANSWER_TIMEOUT_S)
        if caller.num_tokens < 0:
            raise SystemExit("an answer failed")
        return caller


def first_tokens(bench: Bench, clients: int, effort: Effort, seed: int) -> FirstTokens:
    """Questions behind one system prompt, which was asked for once before; a round with prefixes
    shared, a round without, in turns.
    """
    draw = random.Random(seed)
    found = FirstTokens(clients)
    for _ in range(effort.pairs):
        prefix = ids(draw, PREFIX_TOKENS)
        for shares in (True, False):
            bench.switch(shares=shares)
            bench.ask(iter([(prefix + ids(draw, QUESTION_TOKENS), ANSWER_TOKENS)]), 1)
            questions = [prefix + ids(draw, QUESTION_TOKENS) for _ in range(clients)]
            seconds = [
                caller.first_s
                for caller in bench.ask(((one, ANSWER_TOKENS) for one in questions), clients)
            ]
            (found.shared_s if shares else found.alone_s).extend(seconds)
    return found


def throughput(bench: Bench, what: str, clients: int, effort: Effort, seed: int) -> Throughput:
    """The same requests, none of which share anything, with sharing on and off, in turns."""
    found = Throughput(what, clients)
    for number in range(-1, effort.rounds):
        stream = (requests if what == "mixed" else long_prompts)(seed + number + 1)
        count = effort.requests if what == "mixed" else effort.requests // 4
        asked = [(bench.tokens(one.prompt), one.max_tokens) for one in islice(stream, count)]
        num_tokens = sum(max_tokens for _, max_tokens in asked)
        if number < 0:  # takes the memory that is taken once
            bench.switch(shares=True)
            bench.ask(iter(asked), clients)
            continue
        for shares in (number % 2 == 0, number % 2 == 1):
            bench.switch(shares=shares)
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            bench.ask(iter(asked), clients)
            seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            found.rounds.append((shares, num_tokens, seconds, cpu_s))
    return found


def ids(draw: random.Random, count: int) -> list[int]:
    """Tokens that nobody else has in this order."""
    return [draw.randrange(NUM_SPECIAL_TOKENS, VOCABULARY_SIZE) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the generated model")
    parser.add_argument("--effort", required=True, help="as JSON")
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    effort = Effort(**json.loads(args.effort))
    bench = Bench(load(args.folder))
    bench.ask(iter([([5] * 1500, 4)] * 4), 2)  # memory taken, shapes met
    figures = Figures(
        [first_tokens(bench, clients, effort, args.seed) for clients in effort.clients],
        [
            throughput(bench, "mixed", NUM_CLIENTS, effort, args.seed),
            throughput(bench, "long prompts", NUM_LONG_CLIENTS, effort, args.seed),
        ],
    )
    print(json.dumps(asdict(figures)), flush=True)
    bench.engine.stop()


if __name__ == "__main__":
    main()
