"""Measures settings on a tritonserver of their own, in a repository of one model that is generated
from the same entry with other settings. The user's files are only read, fetched weights used in
place. Each trial starts a new server, so that no memory state carries over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from generator.errors import GeneratorError
from generator.models_yaml.reading import load
from generator.render.manifest import WEIGHTS_FOLDER
from generator.render.memory import CPU, folder_bytes
from generator.render.model_data import newest_json
from generator.repository import writing as writer
from generator.repository.plan import plan_groups
from generator.spec.model_spec import ModelSpec
from generator.spec.triton_models import engine_name
from generator.yaml_file.keys import plain
from hf_triton.runtime.devices.device import free_cpu_bytes
from hf_triton.tritonserver.process import TritonServer
from perf.load.level import Level, LevelError, Sent, records_of
from perf.load.records import Policy, Record, measurement_of
from perf.processes import free_listen
from perf.report.schema import Load, Measurement
from perf.run_folder import now
from perf.sweep.metrics import look, machine_figures
from perf.sweep.requests import Target, of_repository, requests_of
from perf.sweep.scenario import Inputs
from perf.tune.question import STREAM, Request
from perf.tune.space import INSTANCES, Settings, entry_with

_LONGEST = 4  # times a level's seconds: how long it may last to reach its least requests
_WARM_UP_S = 120.0
_ANSWER_TIMEOUT_S = 120.0

Measure = Callable[[float], Measurement]
"""Measures for the given number of seconds. Raises ``TrialError``."""


class TrialError(Exception):
    """These settings can't be measured; the text is the reason, in one line."""


@dataclass
class Bench:
    """``scratch`` is a temporary repository."""

    request: Request
    spec: ModelSpec
    scratch: Path
    inputs: Inputs
    endpoint: str

    def __post_init__(self) -> None:
        prompt = self.inputs.prompt_tokens
        self._prompt = prompt[0].label if prompt else ""
        cache = self.request.repository / self.spec.name / WEIGHTS_FOLDER
        if cache.is_dir():  # trials load from it
            (self.scratch / self.spec.name).mkdir()
            (self.scratch / self.spec.name / WEIGHTS_FOLDER).symlink_to(cache.resolve())

    def read(self, settings: Settings) -> ModelSpec:
        """Raises SpecError where models.yaml can't express these settings."""
        entry = {key: plain(node) for key, node in self.spec.places.items()}
        if self.spec.response_cache is not None:  # the load repeats its requests
            entry["response_cache"] = False
        document = json.dumps({"models": [entry_with(entry, settings)]}, ensure_ascii=False)
        return load(self.request.config, document.encode())[0]  # JSON is YAML

    def _refuse_too_large(self, folder: Path, settings: Settings) -> None:
        """Raises TrialError where a generated model needs more memory than is free."""
        values = newest_json(folder, "model.json")
        cache_gib = float(values["options"].get("kv_cache_gib") or 0)
        need = folder_bytes(folder, values)[CPU] / 2**30
        need += cache_gib * float(settings.get(INSTANCES) or 1)
        free = free_cpu_bytes() / 2**30
        # A GPU's memory is for the trial to find.
        if need > free and not shutil.which("nvidia-smi"):
            raise TrialError(f"needs at least {need:.1f} GiB, and {free:.1f} GiB are free")

    @contextmanager
    def serving(self, settings: Settings) -> Iterator[Measure]:
        """Raises TrialError where the model does not load or stops answering."""
        name, streams = self.spec.name, self.endpoint == STREAM
        try:
            specs = [self.read(settings)]
            for group in plan_groups(specs, self.scratch, keep_edits=False):
                for folder in group:
                    writer.apply(folder)
            model = engine_name(name) if streams else name
            self._refuse_too_large(self.scratch / model, settings)
            target = Target(name, self.endpoint, model, of_repository(self.scratch, model))
            (asked,) = requests_of(target, self.inputs, self.scratch, self.request.seed)
            self._prompt = asked.prompt
            sent = [Sent(body) for body in asked.bodies(target)]
            with TritonServer(self.scratch, free_listen(), write_log=lambda _: None) as server:
                self._load_folders(server)

                def send(policy: Policy) -> list[Record]:
                    level = Level(self.request.concurrency, policy, sent)
                    port, route = server.listen.http_port, "stream" if streams else "infer"
                    try:
                        return records_of(route, port, model, level)
                    except LevelError as error:
                        died = server.exit_code() is not None
                        raise TrialError(
                            _one_line(server.exit_message("tritonserver died") if died else error)
                        ) from None

                warm_up = Policy(2 * self.request.concurrency, 0.0, _WARM_UP_S, _ANSWER_TIMEOUT_S)
                problems = [record.problem for record in send(warm_up)]
                if all(problems):
                    told = problems[0] if problems else "none was sent"
                    raise TrialError(f"every request failed: {told}")

                def measure(seconds: float) -> Measurement:
                    load, started = self.load(settings), now()
                    policy = Policy(
                        3 * self.request.concurrency, seconds, _LONGEST * seconds, _ANSWER_TIMEOUT_S
                    )
                    first = look(list, [server.pid])
                    records = send(policy)
                    last = look(list, [server.pid])
                    found = measurement_of(records, load, 0, started)
                    excess = self.request.goal.excess(found).items()
                    missed = tuple(f"{bound} missed by {by:.0%}" for bound, by in excess)
                    return replace(found, machine=machine_figures(first, last), doubts=missed)

                yield measure
        except GeneratorError as error:
            raise TrialError(_one_line(error)) from error

    def _load_folders(self, server: TritonServer) -> None:
        """Raises TrialError."""
        name = self.spec.name
        for folder in (engine_name(name), name) if self.spec.streaming else (name,):
            try:
                failure = server.api.load(folder)
            except OSError:
                failure = server.exit_message("tritonserver died")
            if failure:
                raise TrialError(_one_line(f"model '{name}' failed to load: {failure}"))

    def load(self, settings: Settings) -> Load:
        output = self.inputs.output_tokens
        return Load(
            target=self.spec.name,
            endpoint=self.endpoint,
            concurrency=self.request.concurrency,
            prompt_tokens=self._prompt,
            output_tokens=output[0].label if output else "",
            settings=settings,
        )

    def failed(self, settings: Settings, reason: str) -> Measurement:
        empty = Measurement(self.load(settings), 0, now(), 0.0, 0, 1, 0.0)
        return replace(empty, first_error=reason)


def _one_line(text: object) -> str:
    return " | ".join(line.strip() for line in str(text).splitlines() if line.strip())[:600]
