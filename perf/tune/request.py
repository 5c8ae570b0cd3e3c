"""What the user asks for, and the question that it makes of a model. Starts and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.spec import ModelSpec
from generator.templates import Task
from perf.machine import num_cores
from perf.tune import settings
from perf.tune.goal import Goal
from perf.tune.search_arguments import make_space
from perf.tune.space import Space
from perf.tune.study import Effort
from perf.tune.subject import endpoint_of, sent_to


@dataclass(frozen=True)
class Request:
    """What the user asks for."""

    model: str
    config: Path
    repository: Path
    goal: Goal
    effort: Effort
    concurrency: int
    repeats: int
    seed: int
    search: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    load: str | None = None
    endpoint: str | None = None
    output: Path | None = None
    write: bool = False
    command: str = ""


def space_of(spec: ModelSpec, task: Task, request: Request) -> Space:
    """What is tried of a model. Raises UsageError."""
    usual = settings.worth_trying(spec, task, request.concurrency, num_cores())
    return make_space(spec, task, request.search, request.fix, usual)


def question_of(spec: ModelSpec, space: Space, request: Request) -> dict[str, Any]:
    """What a search is the answer to; searches that differ in it have folders of their own."""
    sent = sent_to(spec, request.load)
    return {
        "model": spec.name,
        "entry": {key: settings.plain(node) for key, node in spec.places.items()},
        "goal": request.goal.describe(),
        "endpoint": endpoint_of(spec, request.endpoint, request.goal),
        "concurrency": request.concurrency,
        "prompt_tokens": sent.prompt.label if sent.prompt else "",
        "output_tokens": sent.output.label if sent.output else "",
        "search": {each.key: list(each.values) for each in space.dimensions},
        "fixed": dict(space.fixed),
        "current": dict(space.current),
        "seconds": request.effort.seconds,
        "seed": request.seed,
    }
