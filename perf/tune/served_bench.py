"""Measures settings on a tritonserver of its own, on a repository of its own, and leaves nothing.

Each trial has a server that was started for it: what one settings' run left in memory can't meet
the next one's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from generator.errors import GeneratorError, SpecError
from generator.server import TritonServer
from generator.triton_models import engine_name
from perf.load.levels import LevelArguments
from perf.load.measure import Policy, Record
from perf.load.targets import ANY_INFER, ANY_STREAM
from perf.report.schema import Load, Measurement
from perf.serving import free_listen
from perf.tune.private_repository import PrivateRepository
from perf.tune.room import Room
from perf.tune.sending import ANSWER_TIMEOUT_S, ask, send
from perf.tune.sent import Folder, Sent, requests, takes_text, text_input, words
from perf.tune.server_memory import server_memory
from perf.tune.space import Settings
from perf.tune.summary import summarize
from perf.tune.trials import Measure, TrialError

_LONGEST = 4  # times the seconds of a level that it may last to reach its least requests
_WARM_UP_S = 120.0
_SAMPLE_WORDS = 64
STREAM = "http-generate-stream"
INFER = "http-infer"


@dataclass
class ServedBench:
    """``show`` is told what is being done, ``show_log`` gets what the server says; ``with_share``
    adds what of the machine's limit a measurement is.
    """

    repository: PrivateRepository
    room: Room
    sent: Sent
    endpoint: str
    concurrency: int
    seed: int
    show: Callable[[str], object] = lambda _: None
    show_log: Callable[[str], None] = lambda _: None
    num_measured: Callable[[Load], int] = lambda _: 0
    with_share: Callable[[Measurement], Measurement] = lambda found: found
    _tokens_per_word: float | None = field(default=None, init=False)

    def show_to(self, show: Callable[[str], object]) -> None:
        """Whom it tells, from now on."""
        self.show = show

    def refusal(self, settings: Settings) -> str | None:
        """Not allowed together by models.yaml's rules, or more than memory holds."""
        try:
            self.repository.spec(settings)
        except SpecError as error:
            return "; ".join(f"{each.where}: {each.message}" for each in error.problems)
        return self.room.refusal(settings)

    @contextmanager
    def serving(self, settings: Settings) -> Iterator[Measure]:
        """Raises ``TrialError`` where the model does not load or stops answering."""
        self.show("loading")
        try:
            self.repository.generate(settings)
            with TritonServer(
                self.repository.path, free_listen(), write_log=self.show_log
            ) as server:
                server.wait_ready([self.repository.name])
                served = _Served(self, server, settings)
                served.warm_up()
                yield served.measure
        except GeneratorError as error:
            raise TrialError(_one_line(str(error))) from error

    def load(self, settings: Settings) -> Load:
        """What is sent to the model with these settings."""
        return Load(
            target=self.repository.name,
            endpoint=self.endpoint,
            concurrency=self.concurrency,
            prompt_tokens=self.sent.prompt.label if self.sent.prompt else "",
            output_tokens=self.sent.output.label if self.sent.output else "",
            settings=settings,
        )

    def failed(self, settings: Settings, reason: str) -> Measurement:
        """The record of settings that could not be measured."""
        load = self.load(settings)
        return Measurement(
            load=load,
            repeat=self.num_measured(load),
            started=now(),
            duration_s=0.0,
            num_requests=0,
            num_errors=1,
            requests_per_s=0.0,
            first_error=reason,
        )

    def tokens_per_word(self, ask: Callable[[str], dict[str, Any]], folder: Folder) -> float:
        """By the model's own tokenizer, where its task tells; asked for once."""
        if self._tokens_per_word is None:
            self._tokens_per_word = 1.0
            sample = folder.samples()
            if "return_num_input_tokens" in folder.inputs() and takes_text(sample):
                text = words(random.Random(self.seed), _SAMPLE_WORDS)
                values = {**sample, text_input(sample): text, "return_num_input_tokens": True}
                if "max_tokens" in folder.inputs():
                    values["max_tokens"] = 1
                answer = ask(folder.infer_body(values))
                found = {each["name"]: each["data"] for each in answer["outputs"]}
                self._tokens_per_word = found["num_input_tokens"][0] / _SAMPLE_WORDS
        return self._tokens_per_word


class _Served:
    """A model that is up."""

    def __init__(self, bench: ServedBench, server: TritonServer, settings: Settings) -> None:
        self.bench = bench
        self.server = server
        self.settings = settings
        folder = Folder(bench.repository.path, bench.repository.name)
        ratio = bench.tokens_per_word(self._ask, folder)
        values = requests(folder, bench.sent, bench.seed, ratio)
        if bench.endpoint == STREAM:
            self.name, self.target = engine_name(folder.name), ANY_STREAM
            self.bodies = [json.dumps({**each, "stream": True}) for each in values]
        else:
            self.name, self.target = folder.name, ANY_INFER
            self.bodies = [folder.infer_body(each) for each in values]

    def warm_up(self) -> None:
        """As many requests as there are callers, twice; their figures are thrown away.

        Raises TrialError where none of them is answered.
        """
        self.bench.show("warming up")
        records = self._records(2 * self.bench.concurrency, 0.0, _WARM_UP_S)
        problems = [record.problem for record in records if record.problem is not None]
        if len(problems) == len(records):
            raise TrialError(
                f"every request failed: {problems[0] if problems else 'none was sent'}"
            )

    def measure(self, seconds: float) -> Measurement:
        """Raises TrialError where the server stops answering."""
        bench = self.bench
        bench.show("measuring")
        load, started = bench.load(self.settings), now()
        records = self._records(3 * bench.concurrency, seconds, _LONGEST * seconds)
        memory = server_memory(self.server.pid)
        repeat = bench.num_measured(load)
        return bench.with_share(summarize(records, load, repeat, started, memory))

    def _records(self, min_requests: int, min_s: float, max_s: float) -> list[Record]:
        policy = Policy(min_requests, min_s, max_s, ANSWER_TIMEOUT_S)
        arguments = LevelArguments(
            self.bench.concurrency, self.bench.seed, policy, bodies=self.bodies
        )
        try:
            return send(self.target, self.server.listen.http_port, self.name, arguments)
        except TrialError as error:
            if self.server.exit_code() is not None:
                raise TrialError(_one_line(self.server.last_words("tritonserver died"))) from None
            raise error from None

    def _ask(self, body: str) -> dict[str, Any]:
        listen = self.server.listen
        address = listen.address(listen.http_port)
        return ask(f"http://{address}/v2/models/{self.bench.repository.name}/infer", body)


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:600]
