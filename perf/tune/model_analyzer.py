"""A configuration for NVIDIA's Model Analyzer: the same question for those who have that tool.

It changes config.pbtxt and nothing else, so a task's own ``options:`` are not among what it tries.
Its keys: https://github.com/triton-inference-server/model_analyzer/blob/main/docs/config.md
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from generator.errors import EXIT_OK, ModelError, PerfError
from generator.spec.model_spec import ModelSpec
from generator.spec.triton_models import engine_name
from perf.sweep.requests.bodies import requests_of
from perf.tune.private_repository import PrivateRepository
from perf.tune.question import STREAM, Question, Request, counted_by, files_of
from perf.tune.served import target_in
from perf.tune.settings.keys import BATCH, DELAY, INSTANCES, OPTIONS, short
from perf.tune.settings.space import Space

SDK_IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3-sdk"
_HEAD = """\
# For NVIDIA's Model Analyzer, made by hf-triton perf tune. It tries what config.pbtxt has and knows
# no tokens; not tried are {left_out}, which hf-triton perf tune changes.
"""
_COMMAND = """\
# SERVER_IMAGE is the image that serves your models: of this repository's Dockerfile.
docker run --rm -it --net host --shm-size 2g \\
  -v /var/run/docker.sock:/var/run/docker.sock \\
  -v {repository}:{repository}:ro -v {folder}:{folder} \\
  {image} model-analyzer profile -f {file} --triton-docker-image "$SERVER_IMAGE\""""


def write_configuration(request: Request, file: Path) -> int:
    """Writes ``file`` and, beside it, the requests as perf_analyzer reads them; prints the command.

    Raises GeneratorError; PerfError where Model Analyzer could not change anything of the model.
    """
    question = Question.of(request)
    name = question.spec.name
    file, repository = file.absolute(), request.repository.resolve()
    data = file.with_suffix(".inputs.json")
    document = _document(question, file.parent, data)
    try:
        with tempfile.TemporaryDirectory(prefix="hf-triton-tune-") as scratch:
            private = question.repository(Path(scratch))
            private.generate({})
            content = _inputs(private, question)
        data.write_text(content, encoding="utf-8")
        text = _HEAD.format(left_out=_left_out(question.space)) + yaml.safe_dump(
            document, sort_keys=False
        )
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PerfError(f"{error.filename or file}: {error.strerror}") from None
    print(f"wrote {file} and {data}\n")
    named = {"repository": repository, "folder": file.parent, "file": file}
    quoted = {name: shlex.quote(str(path)) for name, path in named.items()}
    print(_COMMAND.format(image=SDK_IMAGE, **quoted))
    if not (request.repository / name).is_dir():
        print(f"hf-triton generate first: {request.repository} lacks {name}", file=sys.stderr)
    return EXIT_OK


def _document(question: Question, folder: Path, data: Path) -> dict[str, Any]:
    """Model Analyzer counts requests and whole answers; it knows no tokens."""
    request, spec, goal = question.request, question.spec, question.request.goal
    is_throughput, is_stream = goal.wanted == "throughput", question.endpoint == STREAM
    interval_ms = max(1, int(request.effort.seconds * 1000))
    flags: dict[str, Any] = {"input-data": str(data), "measurement-interval": interval_ms}
    constraints = {
        name: {end: max(1, int(bound))}
        for name, end, bound in (
            ("perf_latency_p99", "max", goal.max_p99_ms),
            ("perf_throughput", "min", goal.min_throughput),
        )
        if bound is not None
    }
    model = {
        "parameters": {"concurrency": [request.concurrency], "batch_sizes": [1]},
        "model_config_parameters": _parameters(spec, question.space),
        "objectives": ["perf_throughput" if is_throughput else "perf_latency_p99"],
        "perf_analyzer_flags": flags | ({"streaming": True, "async": True} if is_stream else {}),
        **({"constraints": constraints} if constraints else {}),
    }
    return {
        "model_repository": str(request.repository.resolve()),
        "output_model_repository_path": str(folder / "model-analyzer-repository"),
        "override_output_model_repository": True,
        "checkpoint_directory": str(folder / "model-analyzer-checkpoints"),
        "export_path": str(folder / "model-analyzer-results"),
        "triton_launch_mode": "docker",
        "client_protocol": "grpc" if is_stream else "http",
        "run_config_search_mode": "brute",
        "profile_models": {engine_name(spec.name) if is_stream else spec.name: model},
    }


def _parameters(spec: ModelSpec, space: Space) -> dict[str, Any]:
    """As config.pbtxt has them; raises PerfError where there is nothing to vary."""
    values = {each.key: [*each.values] for each in space.dimensions}
    found: dict[str, Any] = {}
    if BATCH in values:
        found["max_batch_size"] = values[BATCH]
    if DELAY in values:
        delays = [each for each in values[DELAY] if each is not None]
        found["dynamic_batching"] = {"max_queue_delay_microseconds": delays}
    if INSTANCES in values:
        kind = spec.instance_groups[0].kind
        found["instance_group"] = [{"kind": kind, "count": values[INSTANCES]}]
    if not found:
        raise PerfError(
            f"model '{spec.name}': Model Analyzer changes {BATCH}, {short(DELAY)} and {INSTANCES}, "
            "and none of them is searched"
        )
    return found


def _left_out(space: Space) -> str:
    names = [short(each.key) for each in space.dimensions if each.key.startswith(OPTIONS)]
    return f"options ({', '.join(names)})" if names else "options"


def _inputs(private: PrivateRepository, question: Question) -> str:
    """What perf_analyzer sends in turns, over gRPC where it streams."""
    try:
        files = files_of(question.spec, question.request.repository)
    except ModelError:  # nothing is fetched yet: then words are counted
        files = None
    inputs = counted_by(question.inputs, files)
    target = target_in(private, question.endpoint)
    seed = question.request.seed
    return requests_of(target, inputs, private.path, seed)[0].content("grpc-stream")
