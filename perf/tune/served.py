"""Measures settings on a tritonserver of its own, on a repository of its own, and leaves nothing.

Each trial has a server that was started for it: what one settings' run left in memory can't meet
the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from generator.errors import GeneratorError, SpecError
from generator.spec.model_spec import ModelSpec
from generator.spec.triton_models import engine_name
from generator.yaml_file.regular_file import read_json
from hf_triton.tritonserver.process import TritonServer
from perf.load.process import Level, LevelError, records_of
from perf.load.records import Policy, Record, measurement_of
from perf.machine import now
from perf.report.schema import Load, Measurement, read_measurements
from perf.roofline import decoder_in
from perf.serving import free_listen
from perf.sweep.requests.bodies import Requests, requests_of
from perf.sweep.requests.targets import Target, of_repository
from perf.sweep.scenario.model import Inputs
from perf.sweep.server.limits import Limits, decoders_of, limits_in
from perf.tune.private_repository import PrivateRepository
from perf.tune.question import STREAM
from perf.tune.search import Measure, TrialError
from perf.tune.space import INSTANCES, OPTIONS, Settings
from perf.usage import available_gib, nvidia_smi, server_memory

_GIB = 2**30
_PROCESS_GIB = 0.3  # of a stub with torch and transformers in it
_LONGEST_BY_ITSELF = 4096  # tokens; the engine takes no more where it would not fit
_LONGEST = 4  # times the seconds of a level that it may last to reach its least requests
_WARM_UP_S = 120.0
_ANSWER_TIMEOUT_S = 120.0
Send = Callable[[Policy], list[Record]]


@dataclass(frozen=True)
class Room:
    """What settings need of memory, as far as a model's files tell: an estimate from below, so what
    it lets pass may still fail to load. ``cache_bytes`` are of a token, 0 where not known.
    """

    free_gib: float
    weights_gib: float  # of one instance
    cache_bytes: int = 0
    longest: int = 0  # tokens of a sequence

    @classmethod
    def of(cls, spec: ModelSpec, files: Path | None) -> Room:
        """``files`` has the model's config.json and its weights, where they are here."""
        weights = sum(path.stat().st_size for path in files.glob("*.safetensors")) if files else 0
        free_gib, weights_gib = available_gib(), weights / _GIB
        if all(group.kind != "KIND_CPU" for group in spec.instance_groups):
            rows = nvidia_smi("gpu=memory.free")
            free_gib = sum(mib for (mib,) in rows) / 1024 if rows else free_gib
        decoder = decoder_in(files, str(spec.dtype or "auto")) if files else None
        if decoder is None or files is None:
            return cls(free_gib, weights_gib)
        own = read_json(files / "config.json").get("max_position_embeddings") or 0
        longest = spec.options.get("max_model_len") or min(own, _LONGEST_BY_ITSELF)
        size = 4 if decoder.dtype == "float32" else 2
        return cls(free_gib, weights_gib, decoder.kept * size, int(str(longest)))

    def refusal(self, settings: Settings) -> str | None:
        """Why these settings can't be held, with the numbers."""
        cache = settings.get(f"{OPTIONS}kv_cache_gib")
        if cache is None:
            sequences = float(settings.get(f"{OPTIONS}max_num_seqs") or 0)
            cache = sequences * self.longest * self.cache_bytes / _GIB
        instances = float(settings.get(INSTANCES) or 1)
        need = instances * (self.weights_gib + _PROCESS_GIB + float(cache))
        if need <= self.free_gib:
            return None
        return f"needs at least {need:.1f} GiB, and {self.free_gib:.1f} GiB are free"


@dataclass
class ServedBench:
    """Measures into ``folder``, whose repeats it numbers. ``files`` has the model's config.json;
    ``show`` is told what is being done, ``show_log`` gets what the server says.
    """

    repository: PrivateRepository
    room: Room
    inputs: Inputs
    endpoint: str
    concurrency: int
    seed: int
    folder: Path
    files: Path | None = None
    show: Callable[[str], object] = field(default=lambda _: None)
    show_log: Callable[[str], None] = lambda _: None
    _limits: Limits | None = field(default=None, init=False)

    def show_to(self, show: Callable[[str], object]) -> None:
        """Has ``show`` told what is being done from now on."""
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
            target = target_in(self.repository, self.endpoint)
            bodies = self.requests(target).bodies(target)
            with TritonServer(
                self.repository.path, free_listen(), write_log=self.show_log
            ) as server:
                server.wait_ready([self.repository.name])
                send, limits = partial(self._send, server, target.model, bodies), self.limits()
                self._warm_up(send)
                yield lambda seconds: self._measure(server, settings, send, limits, seconds)
        except GeneratorError as error:
            raise TrialError(_one_line(str(error))) from error

    def _warm_up(self, send: Send) -> None:
        """As many requests as there are callers, twice; their figures are thrown away.

        Raises TrialError where none of them is answered.
        """
        self.show("warming up")
        records = send(Policy(2 * self.concurrency, 0.0, _WARM_UP_S, _ANSWER_TIMEOUT_S))
        problems = [record.problem for record in records if record.problem is not None]
        if len(problems) == len(records):
            told = problems[0] if problems else "none was sent"
            raise TrialError(f"every request failed: {told}")

    def _measure(
        self, server: TritonServer, settings: Settings, send: Send, limits: Limits, seconds: float
    ) -> Measurement:
        """Raises TrialError where the server stops answering."""
        self.show("measuring")
        load, started = self.load(settings), now()
        longest = _LONGEST * seconds
        records = send(Policy(3 * self.concurrency, seconds, longest, _ANSWER_TIMEOUT_S))
        found = measurement_of(records, load, self.num_measured(load), started)
        return limits.with_share(replace(found, machine=server_memory(server.pid)))

    def _send(
        self, server: TritonServer, model: str, bodies: Sequence[str], policy: Policy
    ) -> list[Record]:
        level = Level(self.concurrency, self.seed, policy, bodies=bodies)
        kind = "any-stream" if self.endpoint == STREAM else "any-infer"
        try:
            return records_of(kind, server.listen.http_port, model, level)
        except LevelError as error:
            if server.exit_code() is not None:
                raise TrialError(_one_line(server.exit_message("tritonserver died"))) from None
            raise TrialError(str(error)) from None

    def requests(self, target: Target) -> Requests:
        """What is sent, the same for all settings. Raises PerfError."""
        return requests_of(target, self.inputs, self.repository.path, self.seed)[0]

    def limits(self) -> Limits:
        """What this machine allows the model as it is generated now; its server is idle yet."""
        name, path = self.repository.name, self.repository.path
        if self._limits is None:
            self._limits = limits_in(self.folder, [name], path, self.files)
        return replace(self._limits, decoders=decoders_of([name], path, self.files))

    def load(self, settings: Settings) -> Load:
        """What is sent to the model with these settings."""
        inputs = self.inputs
        words = f"{inputs.words[0].label} words" if inputs.words else ""
        return Load(
            target=self.repository.name,
            endpoint=self.endpoint,
            concurrency=self.concurrency,
            prompt_tokens=inputs.prompt[0].label if inputs.prompt else words,
            output_tokens=inputs.output[0].label if inputs.output else "",
            settings=settings,
        )

    def failed(self, settings: Settings, reason: str) -> Measurement:
        """The record of settings that could not be measured."""
        load = self.load(settings)
        empty = Measurement(load, self.num_measured(load), now(), 0.0, 0, 1, 0.0)
        return replace(empty, first_error=reason)

    def num_measured(self, load: Load) -> int:
        """How often a load was measured already."""
        return sum(each.load == load for each in read_measurements(self.folder))


def target_in(repository: PrivateRepository, endpoint: str) -> Target:
    """The generated model that answers at ``endpoint``."""
    name = repository.name
    model = engine_name(name) if endpoint == STREAM else name
    return Target(name, endpoint, model, of_repository(repository.path)(model))


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:600]
